"""scikit-learn estimators: private training on arrays of images, and private release of their features.

Formal guarantee: a fit runs the same code as `dpvision train` and `dpvision release`, so the ledger is charged before
anything is released, and a fit that the budget does not allow is refused with BudgetSpent. The results of a fit are in
its run folder; `epsilon_` at `delta_` covers them, but not choices made by looking at private images.

Arrays are converted to images using public bounds, each image independently:

    X   (n, H, W) or (n, H, W, C) images, or (n, features) rows, which become images with a single line
        uint8, or numbers in [0, 1]; with `bounds`, any numbers, which are clipped to the bounds and scaled to [0, 1]

Statistics of the images are not used for scaling: a mean or maximum would reveal something about them. Unusable X is
refused with ValueError, as usual in scikit-learn.

A fit is charged to the account of its images or to a named account, but never to a new one that hides earlier charges:

    account=None     the account of these images, and every other account that shares some of them, by the rule of
                     dpvision/private/accounts/accounts.py, which the command line also follows
    account="name"   only this account, for any data: for all fits of a search and those that follow it
    account_of(X)    returns the name of the account of X, which `dpvision train` also uses

`fit(X, y, persons=...)` makes the unit a person: numbers or names of the person of each image, as the `groups` of
scikit-learn's splitters. Everything that a person adds is then bounded as a whole, and n is the number of persons.

Overlaps below 2% of the images, resized or recompressed images, and concurrent fits (n_jobs) are not detected. In these
cases, name the account.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from dpvision.core import accountant
from dpvision.core.events import Event
from dpvision.core.ledger import Ledger
from dpvision.core.rows import as_persons
from dpvision.data import Dataset, Split, identify
from dpvision.errors import ConfigError, PrivacyError, PrivacyWarning
from dpvision.models.device import find_device, fix_arithmetic
from dpvision.models.featured import device_of
from dpvision.models.inputs import to_tensor
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import Accounts, choose, describe_shares, read_accounts
from dpvision.private.accounts.overlap import raw_digests
from dpvision.private.statistics import release
from dpvision.private.training import train
from dpvision.private.training.prepare import prepare_read
from dpvision.released import folder as folders
from dpvision.released import report
from dpvision.released.model import load_model
from dpvision.settings.figures import upper
from dpvision.settings.recipes import recipe as recipe_of
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import Release, with_changes
from dpvision.settings.training import Config, check_values, merge
from dpvision.storage.home import home, ledger_of
from dpvision.storage.run_folder import key_of_fit

__all__ = ["PrivateImageClassifier", "PrivateRelease", "account_of", "ledger"]

Bounds = tuple[float, float] | None
BATCH = 1024  # images per forward pass


class _OnImages(BaseEstimator):
    """The common part of both estimators: preparing data from arrays, and setting the attributes after a fit."""

    def _prepared(self, X: Any, y: Any, persons: Any, prepare: Callable[..., Any]) -> Any:
        """Prepare the data and complete the settings; set `classes_` and store the shape of the images.

        If the person of each image is given, the unit is a person.
        """
        images = _images_of(self, X, self.bounds, reset=True)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        self.classes_, labels = _labels_of(y, images, self.classes)
        names = tuple(str(name) for name in self.classes_.tolist())
        read_off = ("classes",) if self.classes is None else ()
        owners, config = None, self._config()
        if persons is not None:
            owners = as_persons(persons, "persons", count=len(images))
            config = replace(config, unit="person")
        data = Dataset("arrays", names, Split(images, labels, owners), None, None, read_off)
        prepared = prepare(data, config, source="arrays")
        return replace(prepared, sketch=overlap.add_digests(prepared.sketch, *raw_digests(X)))

    def _given(self, *names: str) -> dict[str, Any]:
        """Return settings by name: those of `settings`, overridden by the parameters `names` that are not None."""
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        wanted = {**(self.settings or {}), **own, "epsilon": self.epsilon, "delta": self.delta}
        # Convert numpy scalars, which a search may pass, to Python numbers.
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in wanted.items()}

    def _folder(self, kind: str) -> Path:
        return Path(self.out or home() / kind) / secrets.token_hex(6)

    def _set_results(self, folder: Path, event: Event, delta: float, card: dict[str, Any]) -> None:
        self.run_folder_, self.event_, self.delta_, self.card_ = folder, event, delta, card
        self.epsilon_ = accountant.epsilon(event, delta)

    def _apply_in_batches(self, network: nn.Module, X: Any, apply: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Apply a function of a network to images in batches, on the network's device."""
        images, device = _images_of(self, X, self.bounds, reset=False), device_of(network)
        with torch.no_grad():
            starts = range(0, len(images), BATCH)
            return [apply(to_tensor(images[start : start + BATCH]).to(device)).cpu() for start in starts]

    def _device(self) -> torch.device:
        device = find_device(self.device)
        fix_arithmetic(device)
        return device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise has no seed
        tags.input_tags.three_d_array = True
        return tags


class PrivateImageClassifier(ClassifierMixin, _OnImages):
    """An image classifier whose fit reveals a bounded amount about any single training image.

    epsilon, delta   privacy budget of one fit; the account of the images (see `account`) bounds all fits together
    recipe           name of a recipe that `dpvision recipes` lists; None: "auto", by public numbers
    objective        "accuracy", or "balanced" for the mean of the accuracies on each class
    classes          the classes, or their number if they are 0 to k - 1. None: read from y, with a warning
    n                number of images (or persons), as a public number. None: read from X, and stated on the card
    model, lr, steps, batch, clip    individual settings of a run, for a search; None: those of the recipe
    settings         any other settings of a run by name: {"full_batch": True, "part": "head"}
    bounds           smallest and largest value of X, which are public; None: X is uint8, or in [0, 1]
    account          account to charge: None, a name, or `account_of(X)`; see the docstring of this module
    budget           epsilon of the account over all fits, if this is the first one; None: the epsilon of this fit
    device           device to compute on: "auto" is an accelerator if there is one, or else the CPU
    out              folder in which each fit creates a run folder; None: runs/ in $DPVISION_HOME

    Attributes after a fit: classes_, epsilon_ at delta_ (an upper bound), event_, card_ (as in card.json), run_folder_
    (for `dpvision report` and `dpvision predict`), released_ (the model).

    Every fit of a search counts. GridSearchCV and cross_val_score fit many times on parts of the same images; each fit
    is charged, all of them to the same account. So a search with k fits needs an account whose budget covers these fits
    and the final one; or else it is refused with BudgetSpent (which scikit-learn turns into a FitFailedWarning, unless
    error_score="raise"). The account covers the fitted classifiers. It covers neither scores on held-out folds, which
    have no noise, nor settings chosen by these scores. If the choice must be covered, use `dpvision tune`.

        search = GridSearchCV(
            PrivateImageClassifier(epsilon=0.5, budget=3, classes=10, account="scans"), {"lr": [1, 4]}, cv=3
        )

    The noise has no seed, so two fits give two different classifiers.
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        delta: float = 1e-5,
        *,
        recipe: str | None = None,
        objective: str | None = None,
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
        device: str = "auto",
        out: str | Path | None = None,
    ) -> None:
        self.epsilon, self.delta, self.recipe, self.objective = epsilon, delta, recipe, objective
        self.classes, self.n = classes, n
        self.model, self.lr, self.steps, self.batch, self.clip = model, lr, steps, batch, clip
        self.settings, self.bounds, self.account, self.budget = settings, bounds, account, budget
        self.device, self.out = device, out

    def fit(self, X: Any, y: Any, persons: Any = None) -> Self:
        """Charge the account, train, and load the released model; `persons` has the person of each image."""
        prepared = self._prepared(X, y, persons, prepare_read)
        epsilon = accountant.epsilon(prepared.event(), prepared.config.delta)
        if epsilon > prepared.config.epsilon:
            raise PrivacyError(
                f"the settings give epsilon {epsilon:.4f}, more than the requested {self.epsilon:g}. Fix: use "
                "more noise."
            )
        accounts = _find_accounts(self.account, prepared.fingerprint, prepared.sketch)
        with key_of_fit() as key_name:
            outcome = train.run(prepared, self._folder("runs"), accounts=accounts, key_name=key_name)
        run = outcome.run
        card = report.card(run, read_accounts(run.facts()).first.account())
        self._set_results(run.folder, outcome.event, prepared.config.delta, card)
        self.released_ = load_model(run.folder).model.to(self._device())
        return self

    def _config(self) -> Config:
        given = self._given("objective", "n", "model", "lr", "steps", "batch", "clip", "budget")
        if self.device != "auto":
            given["device"] = self.device
        config = merge(recipe_of(self.recipe or "auto", epsilon=self.epsilon), given, source="PrivateImageClassifier")
        if config.task != "classes" or config.group is not None:
            raise ConfigError(
                "settings: the estimator has one class per image and no test split, so task and group do not apply. "
                "Fix: use `dpvision train` with --task or --group."
            )
        return config

    def _scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return np.concatenate(
            [scores.double().numpy() for scores in self._apply_in_batches(self.released_, X, self.released_)]
        )

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return scores (N, classes); with two classes (N,), the score of the second minus that of the first."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities (N, classes); each row sums to 1."""
        return np.asarray(softmax(self._scores(X), axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        best = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise dominates on a few dozen rows
        return tags


class PrivateRelease(TransformerMixin, _OnImages):
    """A released data set of private features, and the public map that computes the same features for other images.

        release = PrivateRelease(epsilon=1, classes=10).fit(X, y)
        learner = DiscriminantLearner().fit(release.released_, release.released_labels_)   # at no further privacy cost
        learner.score(release.transform(X_test), y_test)

    epsilon, delta   privacy budget of the release
    recipe           name of a release recipe that `dpvision recipes` lists; None: "moments"
    objective        "accuracy", or "balanced": rows with as many of each class
    encoder, rank, rows, settings    settings of a release, as in `dpvision release`
    classes, n, bounds, account, budget, device, out    as in PrivateImageClassifier; `out` is releases/ by default

    Attributes after a fit: released_ (rows), released_labels_ (classes, or their proportions in each row), classes_,
    epsilon_ at delta_, event_, card_, run_folder_ (which may be published).

    `transform` returns features without noise, so features of private images are as private as the images. Therefore
    fit_transform is refused: the next step of a pipeline would learn from private features.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        recipe: str | None = None,
        objective: str | None = None,
        classes: Sequence[Any] | int | None = None,
        n: int | None = None,
        encoder: str | None = None,
        rank: int | None = None,
        rows: int | None = None,
        settings: Mapping[str, Any] | None = None,
        bounds: Bounds = None,
        account: str | None = None,
        budget: float | None = None,
        device: str = "auto",
        out: str | Path | None = None,
    ) -> None:
        self.epsilon, self.delta, self.recipe, self.objective = epsilon, delta, recipe, objective
        self.classes, self.n = classes, n
        self.encoder, self.rank, self.rows, self.settings, self.bounds = encoder, rank, rows, settings, bounds
        self.account, self.budget, self.device, self.out = account, budget, device, out

    def fit(self, X: Any, y: Any, persons: Any = None) -> Self:
        """Charge the account, create the release, and load its rows; `persons` has the person of each image."""
        prepared = self._prepared(X, y, persons, release.prepare_read)
        accounts = _find_accounts(self.account, prepared.fingerprint, prepared.sketch)
        folder = self._folder("releases")
        release.require_possible(prepared, folder, accounts=accounts)
        encoded = release.Encoded(prepared, device=self._device())
        with key_of_fit(release.name_of_key(prepared, folder)):
            card = release.make(prepared, folder, encoded=encoded, accounts=accounts)
        self._set_results(folder, prepared.event(), prepared.config.delta, card)
        self.encoder_, self.preparation_ = encoded.encoder, encoded.preparation
        self.released_, labels = folders.read_rows(folder)
        self.released_labels_ = self.classes_[labels] if labels.ndim == 1 else labels
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Compute features of images with the public map of the release; without noise, as private as the images."""
        check_is_fitted(self)
        rows = [batch.float().numpy() for batch in self._apply_in_batches(self.encoder_, X, self.encoder_.features)]
        return np.asarray(self.preparation_.apply(np.concatenate(rows))[0])

    def fit_transform(self, X: Any, y: Any = None) -> NoReturn:
        """Raise a PrivacyError: the next step of a pipeline would learn from private features without noise."""
        raise PrivacyError(
            "fit_transform would return features of the private images without noise, so a model trained on them would "
            "not be private. Fix: call fit, then train on released_ and released_labels_; transform only other images."
        )

    def _config(self) -> Release:
        given = self._given("objective", "n", "encoder", "rank", "rows", "budget")
        return with_changes(
            release_recipe(self.recipe or "moments"), check_values(Release, given, source="PrivateRelease")
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def account_of(X: Any) -> str:
    """Return the account name of images (n, H, W[, C]) or (n, features), which are uint8, or float32 in [0, 1]."""
    x = np.asarray(X)
    if x.dtype not in (np.uint8, np.float32) or not 2 <= x.ndim <= 4:
        raise ConfigError(
            f"X is {x.dtype} {x.shape}: an account is that of uint8 or float32 images, (n, H, W[, C]) or (n, features)."
        )
    return identify(Split(_with_channels(x), np.zeros(len(x), np.int64), None))[0]


def ledger(account: str) -> Ledger:
    """Return the ledger of an account. `.account()` reads it; `.set_budget(...)` is up to the owner of the data."""
    return ledger_of(_account_id(account))


def _find_accounts(account: str | None, fingerprint: str, sketch: overlap.Sketch) -> Accounts:
    """Find the accounts to which a fit on these images is charged, and warn about each of them."""
    accounts = choose(fingerprint, sketch, named=None if account is None else _account_id(account))
    if account is not None:
        for share in accounts.overlaps:
            _warn(
                f"account {share.ledger.account().id} also has {describe_shares(share)}, but it is not charged, since "
                f"account {account!r} was named. Only both together bound what is revealed about those images."
            )
    for charged in (accounts.first, *accounts.others):
        if charged.exists():
            known = charged.account()
            _warn(
                f"this fit is charged to account {known.id}, which has {len(known.charges)} charges and has spent "
                f"epsilon {upper(known.spent())} of {known.budget.epsilon:g}: every fit on the same images counts, "
                "including those of a search or a cross-validation."
            )
    return accounts


def _account_id(account: Any) -> str:
    """Return the identifier of an account from the result of `account_of`, or from a name."""
    if not isinstance(account, str) or not account.strip():
        raise ConfigError(f"account is {account!r}: it must be a name or the result of account_of(X).")
    if re.fullmatch(r"[0-9a-f]{64}", account):
        return account
    return hashlib.blake2b(account.encode(), digest_size=32, person=b"account by name").hexdigest()


def _warn(text: str) -> None:
    """Issue a warning that points to the caller of `fit`, three calls above this one."""
    warnings.warn(text, PrivacyWarning, stacklevel=4)


def _images_of(estimator: BaseEstimator, X: Any, bounds: Bounds, *, reset: bool) -> NDArray[Any]:
    """Return (n, H, W, C) images, uint8 or float32 in [0, 1]; store their shape in a fit and require it afterwards."""
    x = np.asarray(validate_data(estimator, X, reset=reset, allow_nd=True, dtype="numeric"))
    shape = x.shape[1:]
    if reset:
        estimator.shape_ = shape
    elif shape != estimator.shape_:
        raise ValueError(f"images have shape {shape}, but those of the fit had shape {estimator.shape_}.")
    x = _with_channels(x)
    if x.ndim != 4 or x.shape[3] not in (1, 3):
        raise ValueError(
            f"X has shape {(len(x), *shape)}: images must be (n, height, width) or (n, height, width, 1 or 3). Fix: "
            "reshape X."
        )
    return _scale(x, bounds)


def _with_channels(x: NDArray[Any]) -> NDArray[Any]:
    """Return (n, H, W, C) images from rows, from images without a channel axis, or from images."""
    return x[:, None, :, None] if x.ndim == 2 else x[..., None] if x.ndim == 3 else x


def _scale(x: NDArray[Any], bounds: Bounds) -> NDArray[Any]:
    if bounds is not None:
        low, high = _check_bounds(bounds)
        return ((np.clip(x.astype(np.float64), low, high) - low) / (high - low)).astype(np.float32)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(
            "X has values outside of [0, 1] and is not uint8. Fix: pass `bounds`, the smallest and largest possible "
            "values from public knowledge; they are not read from the data."
        )
    return x.astype(np.float32)


def _check_bounds(bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise ConfigError(f"bounds is {bounds!r}: it must be two numbers, such as (0, 255).") from None
    if not (np.isfinite([low, high]).all() and low < high):
        raise ConfigError(f"bounds is {bounds!r}: both must be finite, and the first below the second.")
    return low, high


def _labels_of(y: Any, images: NDArray[Any], classes: Sequence[Any] | int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the sorted classes and the index of each label among them; warn if the classes were read from y."""
    y = column_or_1d(y, warn=True)
    check_consistent_length(images, y)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    if classes is None:
        known = np.unique(y)
        warnings.warn(
            "the classes were read from y and are treated as public: a class with a single image would reveal that "
            "image's presence, which epsilon does not cover. Fix: declare the classes, classes=[...].",
            PrivacyWarning,
            stacklevel=4,
        )
    else:
        known = np.arange(classes) if isinstance(classes, int) else np.unique(np.asarray(classes))
    if len(known) < 2:
        raise ValueError(f"there is {len(known)} class: a classifier needs at least two classes.")
    if not np.isin(y, known).all():
        raise ValueError(f"y has a label that is not one of the declared classes {known.tolist()!r}.")
    return known, np.searchsorted(known, y).astype(np.int64)
