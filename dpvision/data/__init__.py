"""Reads image data from untrusted files into arrays, and knows what was declared and what was read off the data."""

from dpvision.data.checking import check
from dpvision.data.dataset import Broken, Dataset, Findings, Split
from dpvision.data.identity import fingerprint, identify
from dpvision.data.packing import pack
from dpvision.data.prediction import Unlabelled, image_batches
from dpvision.data.source import load

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
