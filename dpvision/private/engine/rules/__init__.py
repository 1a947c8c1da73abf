"""One file per kind of operation: its result, and the gradient of each unit. Importing this registers all rules."""

from dpvision.private.engine.rules import attention, conv, elementwise, embedding, fallback, linear, normalise, pooling

__all__ = ["attention", "conv", "elementwise", "embedding", "fallback", "linear", "normalise", "pooling"]
