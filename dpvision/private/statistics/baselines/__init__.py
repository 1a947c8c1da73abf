"""Synthetic rows by the methods that others published, to compare with: recipes of a release, and `synthesise`.

synthesis.py    a method as the mechanism of a release: recipes dp-merf, dp-hp and p3gm
synthesise.py   charge, release, generate, for rows of one's own and any setting of a method
synthetic.py    what is released
setup.py        names and settings to methods
embedding.py    mean embeddings by class, released once; generator.py a network that is fitted to them
fourier.py      random Fourier features (DP-MERF); hermite.py Hermite polynomials (DP-HP)
p3gm.py         private principal components, a mixture among them, and back (P3GM)
mixture.py      a mixture of Gaussians for each class, by private moments; decoder.py a network by clipped gradients
"""

from __future__ import annotations

from dpvision.private.statistics.baselines.setup import METHODS
from dpvision.private.statistics.baselines.synthesise import synthesise
from dpvision.private.statistics.baselines.synthetic import Synthetic

__all__ = ["METHODS", "Synthetic", "synthesise"]
