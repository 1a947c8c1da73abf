"""Reads image data from untrusted files into arrays, and records which facts were declared and which were inferred."""

from dpvision.data.dataset import Broken, Dataset, Findings, Split, Unlabelled, fingerprint, identify
from dpvision.data.picture import RULE
from dpvision.data.source import check, holds_features, image_batches, load, load_rows, pack, row_batches

__all__ = [
    "RULE",
    "Broken",
    "Dataset",
    "Findings",
    "Split",
    "Unlabelled",
    "check",
    "fingerprint",
    "holds_features",
    "identify",
    "image_batches",
    "load",
    "load_rows",
    "pack",
    "row_batches",
]
