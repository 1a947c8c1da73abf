"""Self-Aug, DP-Mix_Self, DP-Mix_Diff and the pure one: what the views are made of, and what their targets say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpvision.views import Augment, UnitRandom, Views
from dpvision.views.eight_bit import to_floats
from dpvision.views.views import cutmix, draw_pairs
from tests.views.builders import CLASSES, SEED, by_image, images_of, labels_of, public_set, rng_of, same_bits

CROP = ("crop", "flip")


def test_self_augmentation_gives_k_views_and_keeps_the_label() -> None:
    images, labels = images_of(6), labels_of(6)
    views = Views(CROP, base=4, classes=CLASSES)
    assert views.count == 4 and not views.mixes_labels
    out, targets = views(images, labels, rng_of(*range(6)))
    assert out.shape == (24, 3, 9, 11) and out.is_contiguous() and out.dtype == torch.float32
    assert targets.dtype == torch.int64 and torch.equal(targets, labels.repeat_interleave(4))
    expected = Augment(CROP)(images.unsqueeze(1), rng_of(*range(6)), 4)
    assert same_bits(out, expected.flatten(0, 1).contiguous())


def test_no_operations_no_change() -> None:
    images = images_of(3)
    out, _ = Views((), base=2, classes=CLASSES)(images, labels_of(3), rng_of(0, 1, 2))
    assert torch.equal(out, images.repeat_interleave(2, 0))


def _share(mixture: Tensor, u: Tensor, v: Tensor) -> tuple[float, float]:
    """The l for which l u + (1 - l) v is nearest to the mixture, and how far it is then."""
    u, v, mixture = (x.double().flatten() for x in (u, v, mixture))
    l = float(((mixture - v) @ (u - v)) / ((u - v) @ (u - v)))
    return l, float((l * u + (1 - l) * v - mixture).abs().max())


def _parents(mixture: Tensor, pool: Tensor) -> tuple[int, int, float]:
    """Which two members the mixture is of, and the share of the first."""
    fits = []
    for i in range(len(pool)):
        for j in range(i):
            if not torch.equal(pool[i], pool[j]):
                l, distance = _share(mixture, pool[i], pool[j])
                fits.append((distance, i, j, l))
    distance, i, j, l = min(fits)
    assert distance < 1e-6 and -1e-6 <= l <= 1 + 1e-6, "it is a convex combination of two members"
    return i, j, l


def test_self_mixtures_are_of_two_views_of_the_same_image_with_its_label() -> None:
    images, labels = images_of(12), labels_of(12)
    views = Views(("jitter",), base=4, self_mix=5, classes=CLASSES, alpha=1.0)
    assert views.count == 9 and not views.mixes_labels
    out, targets = by_image(views, images, labels, rng_of(*range(12)))
    assert torch.equal(targets, labels.unsqueeze(1).expand(-1, 9))
    for of_image in out:
        for mixture in of_image[4:]:
            _, _, l = _parents(mixture, of_image[:4])
            assert 1e-4 < l < 1 - 1e-4


def test_pairs_are_two_different_members_and_all_equally_likely() -> None:
    first, second = draw_pairs(rng_of(*range(5000)), 5, 4)
    assert (first != second).all()
    cells = torch.bincount((first * 5 + second).flatten(), minlength=25).view(5, 5)
    off = cells[~torch.eye(5, dtype=torch.bool)]
    assert cells.sum() == off.sum() and stats.chisquare(off.numpy()).pvalue > 1e-4
    assert set(map(tuple, torch.stack(draw_pairs(rng_of(*range(50)), 2, 1)).squeeze(-1).T.tolist())) == {
        (0, 1),
        (1, 0),
    }


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_shares_follow_beta(alpha: float) -> None:
    """Recovered from the pixels: black and white members, so that a mixture's level is its share."""
    public = torch.stack([torch.zeros(1, 1, 1), torch.ones(1, 1, 1)])
    labels = torch.tensor([0, 1])
    views = Views((), base=0, diff=8, self_mix=8, alpha=alpha, classes=2, public=(public, labels))
    out, targets = by_image(
        views, torch.zeros(4000, 1, 1, 1), torch.zeros(4000, dtype=torch.int64), rng_of(*range(4000))
    )
    assert torch.equal(out[:, :8, 0, 0, 0], targets[:, :8, 1])
    torch.testing.assert_close(out[:, 8:, 0, 0, 0], targets[:, 8:, 1])
    levels = out[:, 8:].flatten().double().numpy()
    # Both members have the same colour in about half of the pools' pairs: those give 0 or 1 exactly, or nearly so.
    law = stats.beta(alpha, alpha)
    inner = levels[(levels > 0.01) & (levels < 0.99)]
    conditional = stats.kstest(inner, lambda x: (law.cdf(x) - law.cdf(0.01)) / (law.cdf(0.99) - law.cdf(0.01)))
    assert len(inner) > 3000 and conditional.pvalue > 1e-4
    pool = out[:, :8, 0, 0, 0].mean(1)
    different = float((2 * pool * (1 - pool) * 8 / 7).mean())
    expected = different * (law.cdf(0.99) - law.cdf(0.01))
    assert abs(len(inner) / levels.size - expected) < 4.5 * np.sqrt(expected * (1 - expected) / levels.size)


def test_labels_are_mixed_by_the_share_of_the_pixels() -> None:
    images, labels = images_of(10), labels_of(10)
    images_public, labels_public = public_set()
    views = Views(
        ("flip",), base=2, diff=3, self_mix=6, classes=CLASSES, alpha=1.0, public=(images_public, labels_public)
    )
    assert views.count == 11 and views.mixes_labels
    out, targets = by_image(views, images, labels, rng_of(*range(10)))
    assert targets.shape == (10, 11, CLASSES) and targets.dtype == torch.float32
    as_float = to_floats(images_public, torch.float32)
    across = mirrored = 0
    for i in range(10):
        one_hot = torch.eye(CLASSES)
        assert torch.equal(targets[i, :2], one_hot[labels[i]].expand(2, -1))
        for k in range(2):
            assert torch.equal(out[i, k], images[i]) or torch.equal(out[i, k], images[i].flip(-1))
        for k in range(2, 5):
            source = [
                m
                for m in range(7)
                if torch.equal(out[i, k], as_float[m]) or torch.equal(out[i, k], as_float[m].flip(-1))
            ]
            assert len(source) == 1 and torch.equal(targets[i, k], one_hot[labels_public[source[0]]])
            mirrored += torch.equal(out[i, k], as_float[source[0]].flip(-1))
        for k in range(5, 11):
            a, b, l = _parents(out[i, k], out[i, :5])
            torch.testing.assert_close(targets[i, k], l * targets[i, a] + (1 - l) * targets[i, b], atol=1e-5, rtol=0)
            across += a >= 2 > b and 0.001 < l < 0.999
    assert across > 15, "private views are mixed with public images"
    assert 5 < mirrored < 25, "public images are augmented too"
    assert torch.allclose(targets.sum(-1), torch.ones(10, 11))


def test_without_mixtures_public_images_keep_their_labels_as_classes() -> None:
    images_public, labels_public = public_set()
    views = Views((), base=1, diff=2, classes=CLASSES, public=(images_public, labels_public))
    out, targets = by_image(views, images_of(9), labels_of(9), rng_of(*range(9)))
    assert targets.dtype == torch.int64 and not views.mixes_labels
    assert torch.equal(targets[:, 0], labels_of(9)) and torch.equal(out[:, 0], images_of(9))
    as_float = to_floats(images_public, torch.float32)
    for view, target in zip(out[:, 1:].flatten(0, 1), targets[:, 1:].flatten(), strict=True):
        source = (as_float == view).flatten(1).all(1).nonzero()
        assert len(source) == 1 and labels_public[source.item()] == target


def test_public_images_are_drawn_uniformly_and_may_be_floats() -> None:
    pixels, labels = public_set(size=(2, 2))
    floats = to_floats(pixels, torch.float32)
    batch = (torch.zeros(3000, 3, 2, 2), torch.zeros(3000, dtype=torch.int64))
    out = [
        Views((), base=0, diff=2, classes=CLASSES, public=(which, labels))(*batch, rng_of(*range(3000)))[0]
        for which in (pixels, floats)
    ]
    assert same_bits(out[0], out[1])
    result = (out[0].unsqueeze(1) == floats).flatten(2).all(2).long().argmax(1)
    assert stats.chisquare(torch.bincount(result, minlength=7).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("diff", [0, 3])
def test_cutmix_takes_a_box_of_the_other_member_and_its_share_of_the_label(diff: int) -> None:
    size = (8, 12)  # an even width: no pixel of an image is at the same place in its mirror
    images, labels, public = images_of(30, size=size), labels_of(30), public_set(size=size)
    views = Views(("flip",), base=4, diff=diff, self_mix=6, classes=CLASSES, alpha=1.0, mix="cutmix", public=public)
    out, targets = by_image(views, images, labels, rng_of(*range(30)))
    pool, boxed = 4 + diff, 0
    assert views.mixes_labels == bool(diff)
    for of_image, target in zip(out, targets, strict=True):
        for k in range(pool, views.count):
            from_member = (of_image[k] == of_image[:pool]).all(1)  # (pool, H, W)
            assert from_member.any(0).all(), "every pixel is of a member"
            main = int(from_member.flatten(1).sum(1).argmax())
            left = float(from_member[main].double().mean())
            if left == 1:
                continue
            boxed += 1
            rest = ~from_member[main]
            other = int(from_member[:, rest].sum(1).argmax())
            box = rest.any(1).unsqueeze(1) & rest.any(0)
            assert torch.equal(from_member[main] | from_member[other], torch.ones_like(rest))
            assert torch.equal(rest, box) or torch.equal(~rest, (~rest).any(1).unsqueeze(1) & (~rest).any(0)), (
                "one is a box"
            )
            if diff:
                expected = left * target[main] + (1 - left) * target[other]
                torch.testing.assert_close(target[k], expected, atol=1e-6, rtol=0)
            else:
                assert target[k] == target[0]
    assert boxed > 60


def test_cutmix_boxes_have_the_area_asked_for_where_they_fit() -> None:
    u, v = torch.zeros(400, 3, 1, 32, 32), torch.ones(400, 3, 1, 32, 32)
    share = torch.full((400, 3), 0.75)
    out, left = cutmix(u, v, share, rng_of(*range(400)))
    taken = out.flatten(2).sum(2)
    assert taken.max() == 16 * 16 and (taken >= 8 * 8).all()
    torch.testing.assert_close(left, 1 - taken / 1024)
    whole, left = cutmix(u, v, torch.ones(400, 3), rng_of(*range(400)))
    assert torch.equal(whole, u) and (left == 1).all()
    # Every place is the centre of as many boxes: seen by boxes of one row and column.
    out, _ = cutmix(u, v, torch.full((400, 3), 1 - 1.1 / 32**2), rng_of(*range(400)))
    places = out.flatten(2).argmax(2)
    assert (out.flatten(2).sum(2) == 1).all()
    assert stats.chisquare(torch.bincount(places.flatten() // 32, minlength=32).numpy()).pvalue > 1e-4
    assert stats.chisquare(torch.bincount(places.flatten() % 32, minlength=32).numpy()).pvalue > 1e-4


def test_pure_mixing_has_nothing_of_the_private_image() -> None:
    views = Views(CROP, base=0, diff=3, self_mix=4, classes=CLASSES, public=public_set())
    mine = views(images_of(4), labels_of(4), rng_of(*range(4)))
    other = views(torch.full((4, 3, 9, 11), float("nan")), torch.full((4,), 3), rng_of(*range(4)))
    assert all(same_bits(a, b) for a, b in zip(mine, other, strict=True))


def test_images_of_a_person_get_views_of_their_own() -> None:
    views = Views(CROP, base=3, self_mix=2, classes=CLASSES)
    same = images_of(1).expand(5, -1, -1, -1)
    out, _ = by_image(views, same, labels_of(1).expand(5), UnitRandom.grouped(SEED, np.array([4, 8]), [2, 3]))
    assert len({row.numpy().tobytes() for row in out}) == 5
    alone, _ = by_image(views, same[:3], labels_of(1).expand(3), UnitRandom.grouped(SEED, np.array([8]), [3]))
    assert same_bits(out[2:].contiguous(), alone.contiguous())


def test_steps_have_other_views() -> None:
    views = Views(CROP, base=4, self_mix=4, classes=CLASSES)
    first, second = (views(images_of(4), labels_of(4), rng_of(*range(4), seed=s))[0] for s in (1, 2))
    assert not (first == second).flatten(1).all(1).any() or (first != second).any()
    assert (first != second).flatten(1).any(1).double().mean() > 0.9


def test_an_empty_batch_has_no_views() -> None:
    none = UnitRandom(SEED, np.empty(0, dtype=np.int64))
    for views in (
        Views(CROP, base=4, self_mix=2, classes=CLASSES),
        Views(CROP, base=1, diff=1, self_mix=2, classes=CLASSES, public=public_set()),
    ):
        out, targets = views(torch.empty(0, 3, 9, 11), torch.empty(0, dtype=torch.int64), none)
        assert out.shape == (0, 3, 9, 11) and len(targets) == 0


def test_the_inputs_stay_as_they_are() -> None:
    images, labels, (pixels, marks) = images_of(6), labels_of(6), public_set()
    floats = to_floats(pixels, torch.float32)
    kept = [x.clone() for x in (images, labels, floats, marks)]
    every = ("autoaugment", "resized-crop", "crop", "flip", "jitter", "grayscale", "cutout")
    for names in (every, ()):
        Views(names, base=2, diff=2, self_mix=3, classes=CLASSES, public=(floats, marks))(
            images, labels, rng_of(*range(6))
        )
    assert all(same_bits(a, b) for a, b in zip(kept, (images, labels, floats, marks), strict=True))


def test_doubles_stay_doubles() -> None:
    every = ("autoaugment", "resized-crop", "crop", "flip", "jitter", "grayscale", "cutout")
    views = Views(every, base=2, diff=2, self_mix=3, classes=CLASSES, public=public_set())
    out, targets = views(images_of(3).double(), labels_of(3), rng_of(0, 1, 2))
    assert out.dtype == targets.dtype == torch.float64


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to see the peak of memory")
def test_hardly_more_than_the_result_is_alive() -> None:
    def memory(line: str) -> int:
        return next(int(x.split()[1]) * 1024 for x in Path("/proc/self/status").read_text().splitlines() if line in x)

    public = public_set(50, size=(32, 32))
    views = Views(CROP, base=8, diff=2, self_mix=6, classes=CLASSES, public=public)
    images, labels = images_of(512, size=(32, 32)), labels_of(512)
    views(images[:16], labels[:16], rng_of(*range(16)))  # the first call sets things up
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = memory("VmRSS")
    out, _ = views(images, labels, rng_of(*range(512)))
    assert memory("VmHWM") - before < 1.6 * out.nbytes
