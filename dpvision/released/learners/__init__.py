"""Learners for released data: rows of noisy features with noisy or exact labels, or noisy moments.

Formal guarantee: all of it is post-processing. Nothing here can reach private data, a ledger or noise (pyproject.toml
has the contract), so the release reveals no more, however often and whatever is learned from it.

learner.py     the base class: scikit-learn's interface, and labels as numbers
descent.py     LinearLearner and NetworkLearner, by Adam on the generalised Kullback-Leibler loss
closed.py      RidgeLearner and DiscriminantLearner, from averages without the known noise; fit_moments, from moments
"""

from __future__ import annotations

from dpvision.released.learners.closed import DiscriminantLearner, RidgeLearner, fit_moments
from dpvision.released.learners.descent import LinearLearner, NetworkLearner
from dpvision.released.learners.learner import Learner

__all__ = ["DiscriminantLearner", "Learner", "LinearLearner", "NetworkLearner", "RidgeLearner", "fit_moments"]
