"""Private linear classifiers on frozen features: `fit_head` fits one, `choose` picks the settings on public rows.

fit.py          charge, release, fit: the only file here that has private rows, a ledger and a key in its hands
charged.py      the charge and its name; releases.py noise for as many sums as were charged
rows.py         rows of length at most 1; arrays.py what is accepted as features and labels
whitening.py    a public linear map for the rows; centre.py their noisy mean, taken off
logistic.py     the clipped gradient in closed form, and descent; gd.py plain, newton.py with public curvature
second_moment.py  x x^T as a vector; moments.py ridge regression; lda.py the linear discriminant
setup.py        names and settings to methods; choose.py among them, on public rows
head.py         what is released
"""

from __future__ import annotations

from dpvision.private.statistics.choose import Choice, choose
from dpvision.private.statistics.fit import fit_head
from dpvision.private.statistics.gd import scaled_rate
from dpvision.private.statistics.head import Head
from dpvision.private.statistics.setup import METHODS
from dpvision.private.statistics.whitening import Whitening

__all__ = ["METHODS", "Choice", "Head", "Whitening", "choose", "fit_head", "scaled_rate"]
