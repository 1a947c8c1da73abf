"""The one function of private data: per-unit gradients over K views, clipped and summed."""

from dpvision.core.clipping import STYLES, Automatic, Flat, Loss, PerLayer, Public, Style
from dpvision.private.engine.clipped_sum import ClippedSum
from dpvision.private.engine.safety import refuse_unsafe
from dpvision.private.engine.seen import Seen, Watch

__all__ = [
    "STYLES",
    "Automatic",
    "ClippedSum",
    "Flat",
    "Loss",
    "PerLayer",
    "Public",
    "Seen",
    "Style",
    "Watch",
    "refuse_unsafe",
]
