"""The privacy of views: one example changes only its own views, which do not depend on the rest of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpvision.core import unit_random
from dpvision.views import OPERATIONS, UnitRandom, Views, views
from tests.views.builders import CLASSES, SEED, by_image, images_of, labels_of, public_set, same_bits

EVERY = ("autoaugment", "resized-crop", "crop", "flip", "jitter", "grayscale", "cutout")
PLANS: dict[str, dict[str, object]] = {
    **{name: {"augment": (name,), "base": 3} for name in OPERATIONS},
    "crop and flip": {"augment": ("crop", "flip"), "base": 4},
    "flip after colours": {"augment": ("jitter", "crop", "cutout", "flip"), "base": 2},
    "every operation": {"augment": EVERY, "base": 2},
    "copies": {"augment": (), "base": 2},
    "self": {"augment": ("crop", "flip"), "base": 3, "self_mix": 4},
    "self, every operation": {"augment": EVERY, "base": 3, "self_mix": 3},
    "self, cutmix": {"augment": ("crop", "flip"), "base": 3, "self_mix": 4, "mix": "cutmix"},
    "diff": {"augment": ("crop", "flip"), "base": 2, "diff": 2, "self_mix": 4},
    "diff, every operation": {"augment": EVERY, "base": 1, "diff": 2, "self_mix": 3},
    "diff, cutmix": {"augment": ("flip",), "base": 2, "diff": 1, "self_mix": 3, "mix": "cutmix"},
    "diff, no mixtures": {"augment": ("flip",), "base": 1, "diff": 2},
    "pure": {"augment": ("crop", "flip"), "base": 0, "diff": 3, "self_mix": 3},
}
UNITS = np.array([3, 0, 1, 2, 900, 77, 12, 2**40, 5, 6, 8])
COUNT, CHANGED = len(UNITS), 4


def build(name: str, channels: int = 3) -> Views:
    return Views(classes=CLASSES, public=public_set(channels=channels), **PLANS[name])


def views_of(views: Views, images: Tensor, labels: Tensor, rows: list[int]) -> tuple[Tensor, Tensor]:
    """Views and targets of some of the units, in this order."""
    return by_image(views, images[rows], labels[rows], UnitRandom(SEED, UNITS[rows]))


def spoiled(images: Tensor, labels: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """The batch with one example changed."""
    images, labels = images.clone(), labels.clone()
    if how == "label":
        labels[CHANGED] = (labels[CHANGED] + 1) % CLASSES
    elif how == "label out of range":
        labels[CHANGED] = 10**6
    elif how == "one pixel":
        images[CHANGED, 0, 4, 5] = -images[CHANGED, 0, 4, 5]
    elif how == "one pixel is NaN":
        images[CHANGED, 0, 4, 5] = math.nan
    else:
        images[CHANGED] = {"noise": -images[CHANGED], "NaN": math.nan, "infinite": math.inf, "huge": 1e30}[how]
    return images, labels


HOWS = ["label", "label out of range", "one pixel", "one pixel is NaN", "noise", "NaN", "infinite", "huge"]


@pytest.fixture(params=[1, 3], ids=["grey", "colours"])
def channels(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[views.BLOCK, 8000], ids=["one block", "some blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "BLOCK", request.param)


def check_one_example_changes_its_own_views_only(name: str, channels: int) -> None:
    views, images, labels = build(name, channels), images_of(COUNT, channels=channels), labels_of(COUNT)
    everybody = list(range(COUNT))
    before = views_of(views, images, labels, everybody)
    others = [i for i in everybody if i != CHANGED]
    for how in HOWS:
        after = views_of(views, *spoiled(images, labels, how), everybody)
        for a, b in zip(before, after, strict=True):
            assert same_bits(a[others], b[others]), f"{how}: somebody else's views changed"
        own = [same_bits(a[CHANGED].contiguous(), b[CHANGED].contiguous()) for a, b in zip(before, after, strict=True)]
        about_label, pure = how.startswith("label"), name == "pure"
        assert own[0] == (about_label or pure) or how.startswith("one pixel"), f"{how}: its own views"
        assert own[1] == (not about_label or pure), f"{how}: its own targets"


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("name", sorted(PLANS))
def test_one_example_changes_its_own_views_only(name: str, channels: int) -> None:
    check_one_example_changes_its_own_views_only(name, channels)


def check_views_do_not_depend_on_company(name: str, channels: int) -> None:
    views, images, labels = build(name, channels), images_of(COUNT, channels=channels), labels_of(COUNT)
    everybody = list(range(COUNT))
    all_views = views_of(views, images, labels, everybody)
    companies = [[i for i in everybody if i != left_out] for left_out in (0, CHANGED, COUNT - 1)]
    companies += [[CHANGED], [9, 2], everybody[::-1], everybody[3:] + everybody[:3]]
    for rows in companies:
        for whole, part in zip(all_views, views_of(views, images, labels, rows), strict=True):
            assert same_bits(whole[rows], part), f"in the company {rows}"


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("name", sorted(PLANS))
def test_views_do_not_depend_on_company(name: str, channels: int) -> None:
    check_views_do_not_depend_on_company(name, channels)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.integers(0, COUNT - 1), unique=True, min_size=1), name=st.sampled_from(sorted(PLANS)))
def test_in_any_company_and_order(rows: list[int], name: str) -> None:
    views, images, labels = build(name), images_of(COUNT), labels_of(COUNT)
    all_views = views_of(views, images, labels, list(range(COUNT)))
    for whole, part in zip(all_views, views_of(views, images, labels, rows), strict=True):
        assert same_bits(whole[rows], part)


@pytest.mark.parametrize("name", ["crop and flip", "self, every operation", "diff, every operation"])
def test_many_images_change_no_bit(name: str) -> None:
    """Kernels choose other ways for many numbers: whole vectors and rests of vectors must not show."""
    count, size = 41, (31, 33)
    views = Views(classes=CLASSES, public=public_set(size=size), **PLANS[name])
    images, labels = images_of(count, size=size), labels_of(count)
    together = by_image(views, images, labels, UnitRandom(SEED, np.arange(count)))
    for i in range(0, count, 5):
        alone = by_image(views, images[i : i + 1], labels[i : i + 1], UnitRandom(SEED, np.array([i])))
        for whole, part in zip(together, alone, strict=True):
            assert same_bits(whole[i : i + 1], part)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_large_images_and_threads_change_no_bit(name: str) -> None:
    """A single large image may be shared out among threads, several of them not; that must not show either."""
    images, labels = images_of(3, size=(200, 210)), labels_of(3)
    views = Views((name,), base=1, classes=CLASSES)
    outcomes = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outcomes.append(views(images, labels, UnitRandom(SEED, np.arange(3)))[0])
        outcomes.append(views(images[2:], labels[2:], UnitRandom(SEED, np.arange(2, 3)))[0])
    assert same_bits(outcomes[0], outcomes[2])
    assert all(same_bits(outcomes[0][2:], alone) for alone in outcomes[1::2])


@pytest.mark.usefixtures("block")
def test_a_person_changes_nobody_elses_views() -> None:
    views, images, labels = build("diff, every operation"), images_of(9), labels_of(9)
    persons, sizes = np.array([5, 2, 7]), [3, 4, 2]
    before = by_image(views, images, labels, UnitRandom.grouped(SEED, persons, sizes))
    without = torch.cat([torch.arange(3), torch.arange(7, 9)])
    after = by_image(views, images[without], labels[without], UnitRandom.grouped(SEED, persons[[0, 2]], [3, 2]))
    for a, b in zip(before, after, strict=True):
        assert same_bits(a[without], b)
    fewer = torch.cat([torch.arange(5), torch.arange(7, 9)])  # person 2 has two images less
    after = by_image(views, images[fewer], labels[fewer], UnitRandom.grouped(SEED, persons, [3, 2, 2]))
    for a, b in zip(before, after, strict=True):
        assert same_bits(a[fewer], b)


def _random_numbers_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    original = unit_random.UnitRandom._words

    def by_position(self: UnitRandom, shape: tuple[int, ...]) -> np.ndarray:
        self._units = np.arange(len(self), dtype=np.uint64)
        return original(self, shape)

    monkeypatch.setattr(unit_random.UnitRandom, "_words", by_position)


def _mixing_across_images(monkeypatch: pytest.MonkeyPatch) -> None:
    original = views.take_members
    monkeypatch.setattr(views, "take_members", lambda pool, indices: original(pool.roll(1, 0), indices))


def _statistics_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = views.Views._fill

    def centred(self: Views, images: Tensor, *rest: object) -> None:
        original(self, images - images.mean(0, keepdim=True) * 1e-6, *rest)

    monkeypatch.setattr(views.Views, "_fill", centred)


def _one_stream_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(self: UnitRandom, shape: tuple[int, ...]) -> np.ndarray:
        self._draws += 1
        rng = np.random.default_rng(self._draws)
        return rng.integers(0, 2**63, (len(self), *shape), dtype=np.int64).astype(np.uint64) * np.uint64(2)

    monkeypatch.setattr(unit_random.UnitRandom, "_words", shared)


@pytest.mark.parametrize(
    ("plant_bug", "check"),
    [
        (_random_numbers_by_position, check_views_do_not_depend_on_company),
        (_one_stream_for_all, check_views_do_not_depend_on_company),
        (_mixing_across_images, check_one_example_changes_its_own_views_only),
        (_mixing_across_images, check_views_do_not_depend_on_company),
        (_statistics_of_the_batch, check_one_example_changes_its_own_views_only),
    ],
)
def test_the_checks_find_planted_bugs(
    plant_bug: Callable[[pytest.MonkeyPatch], None], check: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check("self", 3)
    plant_bug(monkeypatch)
    with pytest.raises(AssertionError):
        check("self", 3)
