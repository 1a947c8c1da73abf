"""Learners for released data: rows of noisy features with noisy or exact labels, or noisy moments.

Formal guarantee: everything here is post-processing. None of these modules can import private data, a ledger or noise
(an import contract in pyproject.toml), so learning from a release reveals nothing beyond the release itself.

learner.py     the base class: scikit-learn's interface, and the conversion of labels
descent.py     LinearLearner and NetworkLearner, by Adam on the generalised Kullback-Leibler loss
closed.py      RidgeLearner and DiscriminantLearner, corrected for known noise; fit_moments, from released moments
"""

from __future__ import annotations

from dpvision.released.learners.closed import DiscriminantLearner, RidgeLearner, fit_moments
from dpvision.released.learners.descent import LinearLearner, NetworkLearner
from dpvision.released.learners.learner import Learner

__all__ = ["DiscriminantLearner", "Learner", "LinearLearner", "NetworkLearner", "RidgeLearner", "fit_moments"]
