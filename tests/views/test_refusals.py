"""Impossible plans are refused with the name of the setting, the reason and the fix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.errors import ConfigError, DataError
from dpvision.views import Augment, UnitRandom, Views
from tests.views.builders import CLASSES, SEED, images_of, labels_of, public_set, rng_of


def _public(labels: list[int], images: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return (public_set(len(labels))[0] if images is None else images), torch.tensor(labels)


ALL = list(range(CLASSES))


@pytest.mark.parametrize(
    ("settings", "error", "about"),
    [
        ({"base": 0}, ConfigError, "all 0, so images would have no views. Fix: set base to 1"),
        ({"base": -1}, ConfigError, "base is -1"),
        ({"base": 2, "self_mix": -3}, ConfigError, "self_mix is -3"),
        ({"base": 2, "diff": -1}, ConfigError, "diff is -1"),
        ({"base": 1.5}, ConfigError, "base is 1.5"),
        ({"base": 1, "classes": 0}, ConfigError, "classes is 0"),
        ({"base": 1, "self_mix": 2}, ConfigError, r"base \+ diff is 1: a mixture needs two different views.*Fix"),
        ({"base": 0, "self_mix": 2}, ConfigError, r"base \+ diff is 0"),
        ({"base": 0, "diff": 1, "self_mix": 2, "public": _public(ALL)}, ConfigError, r"base \+ diff is 1"),
        ({"base": 2, "self_mix": 2, "alpha": 0.0}, ConfigError, "alpha is 0.0"),
        ({"base": 2, "self_mix": 2, "alpha": float("nan")}, ConfigError, "alpha is nan"),
        ({"base": 2, "self_mix": 2, "alpha": float("inf")}, ConfigError, "alpha is inf"),
        ({"base": 2, "self_mix": 2, "mix": "cutmx"}, ConfigError, "Did you mean 'cutmix'"),
        ({"base": 2, "diff": 2}, ConfigError, "diff is 2, but there is no public set.*Fix"),
        ({"augment": ("crop", "flap"), "base": 1}, ConfigError, "named 'flap'. Did you mean 'flip'"),
        ({"augment": ("xyz",), "base": 1}, ConfigError, "Available: autoaugment, crop"),
        ({"augment": "crop", "base": 1}, ConfigError, "list of names"),
        ({"base": 1, "diff": 1, "public": _public([*ALL, 5])}, DataError, "label 5, but the 5 classes are 0 to 4"),
        ({"base": 1, "diff": 1, "public": _public([*ALL, -1])}, DataError, "label -1"),
        ({"base": 1, "diff": 1, "public": _public([0, 1, 3])}, DataError, r"no images of 2 of the 5 classes \(2, 4\)"),
        ({"base": 1, "diff": 1, "public": _public([], torch.empty(0, 3, 9, 11))}, DataError, "at least one image"),
        ({"base": 1, "diff": 1, "public": (public_set()[0], torch.tensor(ALL))}, DataError, "label for each"),
        ({"base": 1, "diff": 1, "public": (public_set()[0], torch.ones(7))}, DataError, "float32"),
        (
            {"base": 1, "diff": 1, "public": _public(ALL, torch.zeros(5, 3, 9, 11).int())},
            DataError,
            "int32. Fix: use uint8",
        ),
        (
            {"base": 1, "diff": 1, "public": _public(ALL, torch.full((5, 3, 9, 11), 1.5))},
            DataError,
            r"outside of \[-1, 1\]",
        ),
        (
            {"base": 1, "diff": 1, "public": _public(ALL, torch.full((5, 3, 9, 11), float("nan")))},
            DataError,
            "NaN",
        ),
    ],
)
def test_an_impossible_plan_is_refused(settings: dict[str, object], error: type[Exception], about: str) -> None:
    with pytest.raises(error, match=about):
        Views(**{"augment": (), "classes": CLASSES, **settings})


def test_many_missing_classes_are_not_all_listed() -> None:
    with pytest.raises(DataError, match=r"no images of 95 of the 100 classes \(5, 6, 7, 8, 9 \.\.\.\)"):
        Views((), base=1, diff=1, classes=100, public=_public(ALL))


@pytest.mark.parametrize("shape", [(3, 9, 12), (3, 8, 11), (1, 9, 11)])
def test_a_public_set_of_another_size_or_other_channels_is_refused(shape: tuple[int, int, int]) -> None:
    views = Views((), base=1, diff=1, classes=CLASSES, public=public_set())
    views.require((3, 9, 11))
    with pytest.raises(
        DataError, match=f"9x11 with 3 channels, but the private ones are {shape[1]}x{shape[2]} with {shape[0]} channel"
    ):
        views.require(shape)
    with pytest.raises(DataError, match="cannot be mixed"):
        views(torch.zeros(2, *shape), labels_of(2), rng_of(0, 1))


@pytest.mark.parametrize(
    ("images", "labels", "rng"),
    [
        (images_of(3).mul(100).to(torch.uint8), labels_of(3), rng_of(0, 1, 2)),
        (images_of(3)[0], labels_of(3), rng_of(0, 1, 2)),
        (images_of(3), labels_of(2), rng_of(0, 1, 2)),
        (images_of(3), labels_of(3).int(), rng_of(0, 1, 2)),
        (images_of(3), labels_of(3), rng_of(0, 1)),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_by_its_shapes(images, labels, rng) -> None:
    with pytest.raises(ConfigError):
        Views((), base=1, classes=CLASSES)(images, labels, rng)


def test_errors_reveal_nothing_about_private_values() -> None:
    """Whatever the pixels and labels are, there are views."""
    views = Views(("autoaugment", "jitter"), base=1, diff=1, self_mix=2, classes=CLASSES, public=public_set())
    strange = torch.full((2, 3, 9, 11), float("nan"))
    for label in (-(10**9), -1, CLASSES, 2**62):
        out, targets = views(strange, torch.tensor([label, 0]), UnitRandom(SEED, np.array([0, 1])))
        assert out.shape == (8, 3, 9, 11)
        assert torch.equal(targets[0], torch.zeros(CLASSES)), "every class has weight 0"


def test_augment_shows_its_names() -> None:
    assert repr(Augment(("crop", "flip"))) == "Augment(crop, flip)"
