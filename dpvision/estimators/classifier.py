"""PrivateImageClassifier: `dpvision train` with scikit-learn's interface."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpvision.core import accountant
from dpvision.core.ledger import home
from dpvision.errors import PrivacyError
from dpvision.estimators.account import find_accounts
from dpvision.estimators.arrays import Bounds, data_set, images_of, labels_of, plain, raw_digests
from dpvision.models.inputs import to_tensor
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import read_accounts
from dpvision.private.training import train
from dpvision.private.training.prepare import prepare_read
from dpvision.released import inference, report
from dpvision.settings.recipes import recipe as named
from dpvision.settings.training import Config, merged
from dpvision.storage.leftovers import key_of_fit

AT_A_TIME = 1024


class PrivateImageClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of images whose fit tells a limited amount about any one image it learns from.

    epsilon, delta   how much one fit may tell; the account of the images (see `account`) bounds all fits together
    recipe           a name of `dpvision recipes`; None is "default"
    classes          the classes, or their number for 0 to k - 1. None: read off y, with a warning
    n                the number of images, as a public number. None: read off X, and said on the card
    model, lr, steps, batch, clip    settings of a run by themselves, for a search; None: as the recipe has them
    settings         any other setting of a run, by name: {"full_batch": True, "part": "head"}
    bounds           the least and the largest value of X, public; None: X is uint8, or in [0, 1]
    account          None, a name, or `account_of(X)`: what is charged, see dpvision/estimators/account.py
    budget           epsilon of the account over all fits, if this is its first; None: this fit's epsilon
    out              folder in which each fit makes a run folder; None: runs/ in $DPVISION_HOME

    After a fit: classes_, epsilon_ at delta_ (an upper bound), event_, card_, run_folder_ (`dpvision report` makes a
    page of it, `dpvision predict` uses it), released_ (the model).

    A fit in a search is a fit. GridSearchCV and cross_val_score fit many times on parts of the same images: each fit is
    charged, all of them to one account. So a search with k fits needs an account whose budget has room for them and for
    the last one, and is refused with BudgetSpent where it has not (scikit-learn turns that into a FitFailedWarning,
    unless error_score="raise"). The account covers the fitted classifiers. It does not cover scores on held-out folds,
    nor settings that were chosen by them: these have no noise. Where the choice must be covered: `dpvision tune`.

        search = GridSearchCV(
            PrivateImageClassifier(epsilon=0.5, budget=3, classes=10, account="scans"), {"lr": [1, 4]}, cv=3
        )

    The noise has no seed: two fits give two classifiers.
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        delta: float = 1e-5,
        *,
        recipe: str | None = None,
        classes: Sequence[Any] | int | None = None,
        n: int | None = None,
        model: str | None = None,
        lr: float | None = None,
        steps: int | None = None,
        batch: int | None = None,
        clip: float | None = None,
        settings: Mapping[str, Any] | None = None,
        bounds: Bounds = None,
        account: str | None = None,
        budget: float | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.epsilon, self.delta, self.recipe, self.classes, self.n = epsilon, delta, recipe, classes, n
        self.model, self.lr, self.steps, self.batch, self.clip = model, lr, steps, batch, clip
        self.settings, self.bounds, self.account, self.budget, self.out = settings, bounds, account, budget, out

    def fit(self, X: Any, y: Any) -> Self:
        """Charge, train, keep the released model."""
        images = images_of(self, X, self.bounds, reset=True)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        self.classes_, labels = labels_of(y, images, self.classes)
        data = data_set("arrays", images, labels, self.classes_, declared=self.classes is not None)
        prepared = prepare_read(data, self._config(), source="arrays")
        told = accountant.epsilon(prepared.event(), prepared.config.delta)
        if told > prepared.config.epsilon:
            raise PrivacyError(f"the settings tell epsilon {told:.4f}, more than the {self.epsilon:g} asked for.")
        prepared = replace(prepared, sketch=overlap.both(prepared.sketch, *raw_digests(X)))
        accounts = find_accounts(self.account, prepared.fingerprint, prepared.sketch)
        folder = Path(self.out or home() / "runs") / secrets.token_hex(6)
        with key_of_fit() as key_name:
            run = train.begin(prepared, folder, accounts=accounts, key_name=key_name)
            outcome = train.proceed(run, prepared)
        self.run_folder_, self.event_, self.delta_ = run.folder, outcome.event, prepared.config.delta
        self.epsilon_ = accountant.epsilon(outcome.event, self.delta_)
        self.card_ = report.card(run, read_accounts(run.facts()).first.account())
        self.released_ = inference.released(run.folder).model
        return self

    def _config(self) -> Config:
        given = {
            name: value
            for name in ("n", "model", "lr", "steps", "batch", "clip", "budget")
            if (value := getattr(self, name)) is not None
        }
        base = named(self.recipe or "default", epsilon=self.epsilon)
        wanted = {**(self.settings or {}), **given, "epsilon": self.epsilon, "delta": self.delta}
        return merged(base, {k: plain(v) for k, v in wanted.items()}, source="PrivateImageClassifier")

    def _scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        images = images_of(self, X, self.bounds, reset=False)
        found = []
        for start in range(0, len(images), AT_A_TIME):
            with torch.no_grad():
                found.append(self.released_(to_tensor(images[start : start + AT_A_TIME])).double().numpy())
        return np.concatenate(found)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """(N, classes); with two classes (N,): how much more the second."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(N, classes), each row adding up to 1."""
        return np.asarray(softmax(self._scores(X), axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise has no seed
        tags.classifier_tags.poor_score = True  # of some dozens of rows noise leaves nothing
        tags.input_tags.three_d_array = True
        return tags
