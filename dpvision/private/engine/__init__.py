"""The only computation on private data in training: per-unit gradients over K views, clipped and summed."""

from dpvision.core.clipping import STYLES, Automatic, Flat, Loss, PerLayer, Public, Style
from dpvision.private.engine.clipped_sum import ClippedSum, Tally, Watch
from dpvision.private.engine.refusals import refuse_unsafe

__all__ = [
    "STYLES",
    "Automatic",
    "ClippedSum",
    "Flat",
    "Loss",
    "PerLayer",
    "Public",
    "Style",
    "Tally",
    "Watch",
    "refuse_unsafe",
]
