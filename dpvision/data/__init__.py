"""Reads image data from untrusted files into arrays, and records which facts were declared and which were inferred."""

from dpvision.data.dataset import Broken, Dataset, Findings, Split, Unlabelled, fingerprint, identify
from dpvision.data.source import check, image_batches, load, pack

__all__ = [
    "Broken",
    "Dataset",
    "Findings",
    "Split",
    "Unlabelled",
    "check",
    "fingerprint",
    "identify",
    "image_batches",
    "load",
    "pack",
]
