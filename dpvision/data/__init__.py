"""Reads image data from untrusted files into arrays, and knows what was declared and what was read off the data."""

from dpvision.data.checking import check
from dpvision.data.dataset import Broken, Dataset, Findings, Split, fingerprint, identify
from dpvision.data.prediction import Unlabelled, image_batches
from dpvision.data.source import load, pack

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
