"""Noisy sums of rows: releases, and private linear classifiers (heads) on frozen features.

row_sums.py     bounded sums of rows: class sums, counts, second moments

Releases
release.py      the command `dpvision release`: features, charge, noise, rows, card; the kinds of release by name
mechanism.py    the interface of every kind of release
moments.py      class sums, counts and a second moment, from which rows are drawn
mixtures.py     noisy means of a few records, with equal or random weights
baselines/      synthetic rows by published methods: DP-MERF, DP-HP, P3GM

Heads: `fit_head` fits one, and `choose` selects its settings on public rows
head.py         the charge, the fit and the released head
head_run.py     the command `dpvision train FEATURES.npz`: a head as a run, from the rows to the card
choose.py       selection of settings on public rows
setup.py        methods and their settings by name; centring of rows
logistic.py     logistic regression by noisy gradient descent: gd, newton
closed_form.py  ridge regression and the linear discriminant from one noisy vector: moments, lda
charge.py       the charge that heads and baselines share
whitening.py    a public linear map for the rows
ranges.py       ranges of a method's settings
"""

from __future__ import annotations

from dpvision.private.statistics.choose import Choice, choose
from dpvision.private.statistics.head import Head, fit_head
from dpvision.private.statistics.logistic import scaled_rate
from dpvision.private.statistics.setup import METHODS
from dpvision.private.statistics.whitening import Whitening

__all__ = ["METHODS", "Choice", "Head", "Whitening", "choose", "fit_head", "scaled_rate"]
