"""The command line. Verbs import what they need when they run, so that help and plans load no torch."""

from dpvision.cli import audit, data, geometry, model, plan, public, recipes, release, report, synth, train, tune
from dpvision.cli.app import main

__all__ = [
    "audit",
    "data",
    "geometry",
    "main",
    "model",
    "plan",
    "public",
    "recipes",
    "release",
    "report",
    "synth",
    "train",
    "tune",
]
