"""Rules, one file per kind of operation, which compute its result and the gradient of each unit.

Importing this package registers all rules.
"""

from dpvision.private.engine.rules import attention, conv, elementwise, embedding, fallback, linear, normalise, pooling

__all__ = ["attention", "conv", "elementwise", "embedding", "fallback", "linear", "normalise", "pooling"]
