"""The command line. Verbs import what they need when they run, so that help and plans do not load torch."""

from dpvision.cli import audit, data, model, plan, public, release, synth, train, tune, weights
from dpvision.cli.app import main

__all__ = ["audit", "data", "main", "model", "plan", "public", "release", "synth", "train", "tune", "weights"]
