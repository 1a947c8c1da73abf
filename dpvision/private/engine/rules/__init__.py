"""One file per operation: what it computes, and the gradient of each unit alone. Importing this registers all rules."""

from dpvision.private.engine.rules import anything, attention, broadcast, conv, embedding, linear, normalise, pointwise

__all__ = ["anything", "attention", "broadcast", "conv", "embedding", "linear", "normalise", "pointwise"]
