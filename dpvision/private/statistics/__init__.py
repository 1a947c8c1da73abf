"""Noisy sums of rows: releases, and private linear classifiers on frozen features.

A release
release.py      features, charge, noise, rows, card: `dpvision release` from top to bottom
kinds.py        what each kind of release does to rows, by name; mechanism.py what it has to be
moments.py      class sums, counts and a second moment; rows are drawn from them
mixtures.py     noisy means of a few records; mixture_weights.py weights of their own; sums.py exact sums
baselines/      synthetic rows by published methods

A head: `fit_head` fits one, `choose` picks the settings on public rows
fit.py          charge, release, fit
setup.py        names and settings to methods; choose.py among them, on public rows; head.py what is released
logistic.py     the clipped gradient in closed form, and descent; gd.py plain, newton.py with public curvature
ridge.py        ridge regression by second moments; lda.py the linear discriminant; second_moment.py x x^T as a vector
whitening.py    a public linear map for the rows; centre.py their noisy mean, taken off
"""

from __future__ import annotations

from dpvision.private.statistics.choose import Choice, choose
from dpvision.private.statistics.fit import fit_head
from dpvision.private.statistics.gd import scaled_rate
from dpvision.private.statistics.head import Head
from dpvision.private.statistics.setup import METHODS
from dpvision.private.statistics.whitening import Whitening

__all__ = ["METHODS", "Choice", "Head", "Whitening", "choose", "fit_head", "scaled_rate"]
