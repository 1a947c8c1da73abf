"""Synthetic rows by published methods, as baselines: recipes of a release, and `synthesise`.

synthesis.py    the methods by name; a method as the mechanism of a release; `synthesise` for features of your own
embedding.py    mean embeddings by class, released once, and a generator fitted to them (DP-MERF and DP-HP)
kernels.py      random Fourier features (DP-MERF), Hermite polynomials (DP-HP)
p3gm.py         P3GM: private principal components, a mixture of Gaussians in their space, and a decoder
"""

from __future__ import annotations

from dpvision.private.statistics.baselines.synthesis import METHODS, Synthetic, synthesise

__all__ = ["METHODS", "Synthetic", "synthesise"]
