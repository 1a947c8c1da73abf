"""The scikit-learn face: private training and private release of arrays of images.

Formal guarantee: a fit goes the same way as `dpvision train` and `dpvision release`, so what it releases is in the
ledger before it exists, and a fit that the budget does not allow is refused with BudgetSpent. What a fit learned is in
its run folder; `epsilon_` at `delta_` covers that, and nothing that was chosen by looking at private images.

classifier.py   PrivateImageClassifier; release.py PrivateRelease
arrays.py       images and labels of arrays, by public bounds; account.py which account a fit is charged to
"""

from __future__ import annotations

from dpvision.estimators.account import account_of, ledger
from dpvision.estimators.classifier import PrivateImageClassifier
from dpvision.estimators.release import PrivateRelease

__all__ = ["PrivateImageClassifier", "PrivateRelease", "account_of", "ledger"]
