"""The one function of private data: per-unit gradients over K views, clipped and summed."""

from dpvision.mechanism.clip.clipped_sum import ClippedSum, Public
from dpvision.mechanism.clip.passes import Loss
from dpvision.mechanism.clip.safety import refuse_unsafe, verify
from dpvision.mechanism.clip.seen import Seen, Watch
from dpvision.mechanism.clip.styles import STYLES, Automatic, Flat, PerLayer, Style

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
    "verify",
]
