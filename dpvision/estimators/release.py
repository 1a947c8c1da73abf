"""PrivateRelease: `dpvision release` with scikit-learn's interface."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpvision.core import accountant, files
from dpvision.core.events import from_json
from dpvision.core.ledger import Account, home
from dpvision.errors import PrivacyError
from dpvision.estimators import said
from dpvision.estimators.account import find_accounts
from dpvision.estimators.arrays import Bounds, data_set, images_of, labels_of, plain, raw_digests
from dpvision.models.inputs import to_tensor
from dpvision.private.accounts import overlap
from dpvision.private.statistics.release import Encoded, make, name_of_key, prepare_read, require_possible
from dpvision.released import folder as folders
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import Release, changed
from dpvision.settings.setting import checked
from dpvision.storage.leftovers import key_of_fit

AT_A_TIME = 1024


class PrivateRelease(TransformerMixin, BaseEstimator):
    """Features of private images that may leave, once, and the public map that makes the same features of others.

        release = PrivateRelease(epsilon=1, classes=10).fit(X, y)
        learner = DiscriminantLearner().fit(release.released_, release.released_labels_)   # for ever, it costs nothing
        learner.score(release.transform(X_test), y_test)

    epsilon, delta   how much the release may tell
    recipe           a name of `dpvision recipes` that is one of releases; None is "moments"
    encoder, rank, rows, settings    settings of a release, as in `dpvision release`
    classes, n, bounds, account, budget, out    as PrivateImageClassifier has them; `out` is releases/ by default

    After a fit: released_ (rows), released_labels_ (classes, or their shares in each row), classes_, epsilon_ at
    delta_, event_, card_, run_folder_ (what may leave).

    `transform` gives features without noise: those of private images are as private as the images. So there is no
    fit_transform, and in a pipeline what follows would learn from private features: it is refused.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        recipe: str | None = None,
        classes: Sequence[Any] | int | None = None,
        n: int | None = None,
        encoder: str | None = None,
        rank: int | None = None,
        rows: int | None = None,
        settings: Mapping[str, Any] | None = None,
        bounds: Bounds = None,
        account: str | None = None,
        budget: float | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.epsilon, self.delta, self.recipe, self.classes, self.n = epsilon, delta, recipe, classes, n
        self.encoder, self.rank, self.rows, self.settings, self.bounds = encoder, rank, rows, settings, bounds
        self.account, self.budget, self.out = account, budget, out

    def fit(self, X: Any, y: Any) -> Self:
        """Charge, release, keep the rows."""
        images = images_of(self, X, self.bounds, reset=True)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        self.classes_, labels = labels_of(y, images, self.classes)
        data = data_set("arrays", images, labels, self.classes_, declared=self.classes is not None)
        prepared = prepare_read(data, self._config(), source="arrays")
        prepared = replace(prepared, sketch=overlap.both(prepared.sketch, *raw_digests(X)))
        accounts = find_accounts(self.account, prepared.fingerprint, prepared.sketch)
        folder = Path(self.out or home() / "releases") / secrets.token_hex(6)
        require_possible(prepared, folder, accounts=accounts)
        encoded = Encoded(prepared)

        def write_card(place: Path, facts: dict[str, Any], account: Account) -> dict[str, Any]:
            told = said.card(
                from_json(facts["event"]),
                self.delta,
                account,
                read_off=facts["read_off"],
                private=facts["private"],
                accounts=facts.pop("accounts"),
            )
            card = {**facts, **told}
            files.write(place / "card.json", json.dumps(card, indent=1, allow_nan=False) + "\n", mode=0o644)
            return card

        with key_of_fit(name_of_key(prepared, folder)):
            self.card_ = make(prepared, folder, write_card=write_card, encoded=encoded, accounts=accounts)
        self.run_folder_, self.event_, self.delta_ = folder, prepared.event(), prepared.config.delta
        self.epsilon_ = accountant.epsilon(self.event_, self.delta_)
        self.encoder_, self.preparation_ = encoded.encoder, encoded.preparation
        self.released_, found = folders.read_rows(folder)
        self.released_labels_ = self.classes_[found] if found.ndim == 1 else found
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Features of images by the public map of the release: without noise, and as private as the images."""
        check_is_fitted(self)
        images = images_of(self, X, self.bounds, reset=False)
        found = []
        for start in range(0, len(images), AT_A_TIME):
            with torch.no_grad():
                found.append(self.encoder_.features(to_tensor(images[start : start + AT_A_TIME])).float().numpy())
        return np.asarray(self.preparation_.apply(np.concatenate(found))[0])

    def fit_transform(self, X: Any, y: Any = None) -> NoReturn:
        """Refused: what a pipeline does next would learn from private features, without noise."""
        raise PrivacyError(
            "fit_transform would give the features of the private images themselves, and what learns from them is not "
            "private. Fix: fit, then learn from released_ and released_labels_; transform is for other images."
        )

    def _config(self) -> Release:
        given = {
            name: value
            for name in ("n", "encoder", "rank", "rows", "budget")
            if (value := getattr(self, name)) is not None
        }
        wanted = {**(self.settings or {}), **given, "epsilon": self.epsilon, "delta": self.delta}
        base = release_recipe(self.recipe or "moments")
        return changed(base, checked(Release, {k: plain(v) for k, v in wanted.items()}, source="PrivateRelease"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise has no seed
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        return tags
