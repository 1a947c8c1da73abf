"""The command line, verbs to functions. Imports are inside the verbs, so that help and plan load no torch."""

from dpvision.cli import (
    audit,
    datasets,
    export,
    geometry,
    images,
    models,
    plan,
    pretrain,
    quality,
    recipes,
    release,
    reporting,
    synth,
    train,
    tune,
    warm,
)
from dpvision.cli.main import main

__all__ = [
    "audit",
    "datasets",
    "export",
    "geometry",
    "images",
    "main",
    "models",
    "plan",
    "pretrain",
    "quality",
    "recipes",
    "release",
    "reporting",
    "synth",
    "train",
    "tune",
    "warm",
]
