"""The command line. Each verb imports what it needs when it runs, so that help pages and `plan` do not load torch."""

from dpvision.cli import audit, data, evidence, model, plan, public, release, synth, train, tune, weights
from dpvision.cli.app import main

__all__ = [
    "audit",
    "data",
    "evidence",
    "main",
    "model",
    "plan",
    "public",
    "release",
    "synth",
    "train",
    "tune",
    "weights",
]
