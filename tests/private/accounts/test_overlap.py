"""The same images are found in whatever type they come, by gates that let nothing pass that they cannot read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpvision.core.events import Budget
from dpvision.core.ledger import Ledger
from dpvision.data import Split, identify
from dpvision.errors import LedgerMismatch, PrivacyError
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import require_not_private
from dpvision.private.accounts.blocks import QUADRANTS, SCATTERED, digest_blocks
from dpvision.private.accounts.overlap import raw_digests
from dpvision.public.provenance import pixel_digests
from dpvision.storage.home import ledger_of

PIXELS = np.random.default_rng(0).integers(0, 256, (1000, 4, 4, 1), dtype=np.uint8)
OTHERS = np.random.default_rng(1).integers(0, 256, (1000, 4, 4, 1), dtype=np.uint8)
OTHER = "ab" * 32  # the fingerprint of another data set


def smooth(seed: int, count: int, side: int) -> np.ndarray:
    """Images with structure: each cell of a coarse grid has its own brightness, with a little texture."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(20, 220, (count, side // 4, side // 4))
    fine = np.kron(coarse, np.ones((1, 4, 4), np.int64)) + rng.integers(0, 30, (count, side, side))
    return fine.astype(np.uint8)[..., None]


def split(images: np.ndarray) -> Split:
    return Split(images, np.zeros(len(images), np.int64), None)


def sketch(given: np.ndarray, trained_on: np.ndarray) -> overlap.Sketch:
    """As a fit makes it."""
    known = overlap.sketch(identify(split(trained_on))[2], pixel_digests(trained_on), images=trained_on)
    return overlap.add_digests(known, *raw_digests(given))


def of_file(images: np.ndarray) -> overlap.Sketch:
    """As the command line makes it."""
    return overlap.sketch(identify(split(images))[2], pixel_digests(images), images=images)


def account(images: np.ndarray, ours: overlap.Sketch | None = None) -> Ledger:
    result = ledger_of(identify(split(images))[0])
    result.open(Budget(3, 1e-5))
    overlap.remember(result, ours or sketch(images, images))
    return result


def with_one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(x: np.ndarray) -> np.ndarray:
        changed = x.astype(np.float64)
        changed[0, 0, 0] = value
        return changed

    return change


TYPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "numbers up to 255": lambda x: x.astype(np.float64),
    "numbers up to 1": lambda x: (x / 255).astype(np.float32),
    "one pixel below": with_one(-1),
    "one pixel above": with_one(256),
    "one pixel above, up to 1": lambda x: with_one(1.5)(x / 255),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("share", [0.02, 1.0])
def test_two_per_cent_are_found_in_any_type_and_one_pixel_renames_one_image(name: str, share: float) -> None:
    """By other bounds too, so that what is trained on has no digest of the account's."""
    account(PIXELS)
    same = int(share * 1000) + 2  # with room for the image that the pixel is in
    given = TYPES[name](np.concatenate([PIXELS[:same], OTHERS[same:]]))
    scaled = ((given - given.min()) / 300).astype(np.float32)
    (near,) = overlap.find(OTHER, sketch(given, scaled))
    assert near.of_ours == pytest.approx(share, abs=0.003)
    assert overlap.find(OTHER, sketch(TYPES[name](OTHERS), OTHERS)) == []


FEATURES = np.random.default_rng(2).normal(size=(400, 160)).astype(np.float32)
MULTIPLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
    "times 2": lambda x: x * 2,
    "times 1/8 in float16": lambda x: (x / 8).astype(np.float16),
    "times 3": lambda x: x * np.float32(3),
    "of norm 1": lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
}


def of_rows(rows: np.ndarray) -> overlap.Sketch:
    images = rows.astype(np.float32).reshape(len(rows), 1, -1, 1)
    return overlap.sketch_rows(images, identify(split(images))[2])


@pytest.mark.parametrize("how", MULTIPLES)
@pytest.mark.parametrize("width", [8, 160])
def test_rows_are_found_in_other_types_and_as_multiples(how: str, width: int) -> None:
    rows = FEATURES[:, :width]
    account(rows, of_rows(rows))
    changed = MULTIPLES[how](np.concatenate([rows[:40], FEATURES[40:, -width:] + 1]))
    (near,) = overlap.find(OTHER, of_rows(changed))
    assert near.of_ours == pytest.approx(0.1, abs=0.02) and near.of_theirs == near.of_ours
    assert overlap.find(OTHER, of_rows(MULTIPLES[how](FEATURES[:, :width][::-1] + 1))) == []


def test_scaled_rows_of_few_numbers_are_not_all_the_same() -> None:
    few = np.zeros((6, 200), np.float32)
    few[:, :4] = np.arange(1, 25).reshape(6, 4)
    kinds = overlap.scaled_digests(np.concatenate([few, np.full((1, 200), np.nan, np.float32)]))
    assert all(digest == b"" for kind in kinds for digest in kind)
    assert all(len(set(kind)) == 400 and b"" not in kind for kind in overlap.scaled_digests(FEATURES))


def test_accounts_without_scaled_digests_are_compared_by_the_others() -> None:
    """Those of earlier versions."""
    known = of_rows(FEATURES)
    known.digests[:, overlap.EXACT + overlap.PARTS :] = 0
    account(FEATURES, known)
    (near,) = overlap.find(OTHER, of_rows(FEATURES[:100].astype(np.float64)))
    assert near.of_ours == 1.0 and near.of_theirs == 0.25
    assert overlap.find(OTHER, of_rows(FEATURES * 2)) == []


def test_images_of_two_values_are_the_same_as_numbers_and_as_truths() -> None:
    two = (PIXELS > 127).astype(np.uint8)
    account(two)
    for given in (two.astype(np.float32), two > 0):
        assert len(overlap.find(OTHER, sketch(given, given.astype(np.float32) / 2))) == 1


def one_pixel_each(x: np.ndarray) -> np.ndarray:
    changed = x.copy()
    changed[:, 3, 5] ^= 255
    return changed


def stamp(x: np.ndarray) -> np.ndarray:
    changed = x.copy()
    changed[:, : x.shape[1] // 3, : x.shape[2] // 3] = 255
    return changed


COPIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32 in [0, 1]": lambda x: (x / 255).astype(np.float32),
    "float32 in [-1, 1]": lambda x: (x / 127.5 - 1).astype(np.float32),
    "float32 up to 255": lambda x: x.astype(np.float32),
    "half precision": lambda x: (x / 255).astype(np.float16).astype(np.float32),
    "int16": lambda x: x.astype(np.int16) * 16 - 2000,
    "RGB": lambda x: np.repeat(x, 3, axis=3),
    "RGB, float32": lambda x: np.repeat(x / 255, 3, axis=3).astype(np.float32),
    "one pixel of each image": one_pixel_each,
    "a stamp on each image": stamp,
    "darker": lambda x: ((x * 0.7 + 3) / 255).astype(np.float32),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("side", [28, 32])
def test_a_copy_that_was_saved_in_another_way_is_the_same_data_set(how: str, side: int) -> None:
    images, others = smooth(0, 300, side), smooth(1, 300, side)
    account(images, of_file(images))
    (near,) = overlap.find(OTHER, of_file(COPIES[how](images)))
    assert near.of_ours > 0.98 and near.of_theirs > 0.98
    assert overlap.find(OTHER, of_file(COPIES[how](others)), min_share=1e-9) == []


def test_shares_are_not_divided_by_the_kinds_of_digests() -> None:
    images = smooth(0, 200, 28)
    account(images, of_file(images))
    half = np.concatenate([(images[:100] / 255), smooth(1, 100, 28) / 255]).astype(np.float32)
    (near,) = overlap.find(OTHER, of_file(half))
    assert near.of_ours == near.of_theirs == 0.5


def test_a_small_part_counts_from_both_sides() -> None:
    """40 images of a hospital among 4,000 of all: all of theirs, one per cent of ours."""
    few = smooth(0, 40, 28)
    account(few, of_file(few))
    (near,) = overlap.find(OTHER, of_file(np.concatenate([few, smooth(1, 3960, 28)])))
    assert near.of_ours == pytest.approx(0.01) and near.of_theirs == 1.0 and near.is_charged


def test_an_account_that_took_in_other_images_is_still_found_by_its_first_ones() -> None:
    few, many = smooth(0, 40, 28), smooth(1, 4000, 28)
    own = account(few, of_file(few))
    overlap.remember(own, of_file(np.concatenate([few, many])))
    (near,) = overlap.find(OTHER, of_file(np.concatenate([few, smooth(2, 3960, 28)])))
    assert near.of_theirs == 1.0
    (near,) = overlap.find(OTHER, of_file(many[:2000]))
    assert near.of_ours == 1.0, "and by those it took in"


@pytest.mark.parametrize("kind", ["black", "one value each", "one odd pixel", "a few odd pixels", "nearly black"])
def test_blank_images_are_not_all_the_same(kind: str) -> None:
    def blank(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        images = np.zeros((300, 28, 28, 1), np.uint8)
        if kind == "one value each":
            images += rng.integers(0, 256, (300, 1, 1, 1), dtype=np.uint8)
        if kind == "one odd pixel":
            images[np.arange(300), rng.integers(0, 28, 300), rng.integers(0, 28, 300)] = rng.integers(1, 256, (300, 1))
        if kind == "a few odd pixels":
            images[:, :3, :3, 0] = rng.integers(0, 2, (300, 3, 3))
        if kind == "nearly black":
            images[:, 10:13, 10:13, 0] = rng.integers(0, 256, (300, 3, 3))
        return images

    first, second = blank(0), blank(1)
    account(first, of_file(np.concatenate([first, smooth(0, 300, 28)])))
    assert overlap.find(OTHER, of_file(np.concatenate([second, smooth(1, 300, 28)])), min_share=1e-9) == []


def test_sparse_images_are_found_as_a_whole() -> None:
    """Twenty stars on a black sky: too few for most parts, enough for the image."""
    rng = np.random.default_rng(0)
    images = np.zeros((300, 28, 28, 1), np.uint8)
    for image in images:
        image.reshape(-1)[rng.choice(784, 20, replace=False)] = 255
    account(images, of_file(images))
    (near,) = overlap.find(OTHER, of_file(images[1:]))
    assert near.of_ours == 1.0


def test_a_large_account_keeps_a_sample_that_estimates_both_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MAX_IMAGES", 500)
    images = smooth(0, 3000, 16)
    own = account(images, of_file(images))
    assert own.images_path.stat().st_size < 500 * 8 * 16
    (near,) = overlap.find(OTHER, of_file(np.concatenate([images[:750], smooth(1, 750, 16)])))
    assert near.of_ours == pytest.approx(0.5, abs=0.12) and near.of_theirs == pytest.approx(0.25, abs=0.08)
    assert overlap.find_undecided(OTHER, of_file(smooth(1, 20, 16)))
    assert not overlap.find_undecided(OTHER, of_file(images))


def old_sketch(expected: Ledger, *kinds: list[bytes]) -> None:
    """As earlier versions wrote it: the smallest digests of all kinds together, as text."""
    members = sorted({digest.hex()[:24] for kind in kinds for digest in kind})[: 1 << 14]
    expected.path.with_suffix(".sketch").write_text("\n".join([expected.fingerprint, *members]) + "\n")


@pytest.mark.parametrize("count", [1000, 20_000])
def test_sketches_of_earlier_versions_are_still_found(count: int) -> None:
    """Whole ones and those that are cut; by the kinds of digests that they have, which are not averaged."""
    images = np.random.default_rng(5).integers(0, 256, (count, 4, 4, 1), dtype=np.uint8)
    result = ledger_of(identify(split(images))[0])
    result.open(Budget(3, 1e-5))
    old_sketch(result, identify(split(images))[2], pixel_digests(images))
    (near,) = overlap.find(OTHER, of_file((images / 255).astype(np.float32)))
    assert near.ledger.fingerprint == result.fingerprint and near.of_ours > 0.95
    assert overlap.find(OTHER, of_file(OTHERS), min_share=1e-9) == []
    overlap.remember(result, of_file(OTHERS))
    assert {actual.of_ours > 0.95 for actual in overlap.find(OTHER, of_file(OTHERS))} == {True}
    (near,) = overlap.find(OTHER, of_file(images))
    assert near.of_ours > 0.95, "what was there before is not lost by a new charge"


def test_real_images_of_two_splits_are_different() -> None:
    images = (load_digits().images * 15.9).astype(np.uint8)[..., None]
    account(images[:900], of_file(images[:900]))
    assert overlap.find(OTHER, of_file(images[900:]), min_share=0.005) == []


def test_parts_of_images() -> None:
    images = smooth(0, 5, 28)
    digests, drawn = digest_blocks(images)
    assert digests.shape == (5, SCATTERED + QUADRANTS) and drawn.all()
    changed, _ = digest_blocks(one_pixel_each(images))
    assert ((digests == changed).sum(axis=1) == SCATTERED + QUADRANTS - 2).all(), "a pixel is in one part of each way"
    tiny, drawn = digest_blocks(np.arange(8, dtype=np.uint8).reshape(2, 2, 2, 1))
    assert not tiny.any() and drawn.all(), "a few pixels are compared as a whole only"
    large, _ = digest_blocks(smooth(0, 2, 512))
    assert large.all()


def test_a_gate_lets_nothing_pass_that_it_cannot_read() -> None:
    own = account(PIXELS)
    some = split(PIXELS[:400])
    with pytest.raises(PrivacyError, match="on account"):
        require_not_private("some", [some], fix="others")
    ledger, kept = own.path.read_bytes(), own.images_path.read_bytes()
    own.path.write_bytes(ledger.replace(b'"open"', b'"oben"'))
    with pytest.raises(LedgerMismatch):
        require_not_private("some", [some], fix="others")
    own.path.write_bytes(ledger)
    for damaged in (b"\xff" + kept[1:], kept[:-1], kept[:20], b"", kept.replace(b" 0,", b" 9,", 1)):
        own.images_path.write_bytes(damaged)
        with pytest.raises(LedgerMismatch, match=r"images: cannot be read.*Fix"):
            require_not_private("some", [some], fix="others")


def test_one_image_of_an_account_is_not_public() -> None:
    images = smooth(0, 2000, 28)
    account(images[:1], of_file(images[:1]))
    account(images[1:1000], of_file(images[1:1000]))
    with pytest.raises(PrivacyError, match="on account"):
        require_not_private("some", [split(images[999:])], fix="others")
    require_not_private("some", [split(images[1000:])], fix="others")


def test_what_is_kept_at_the_same_time_is_kept_of_all() -> None:
    result = account(PIXELS[:1])
    members = [overlap.sketch([bytes([1 + thread]) * 16]) for thread in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda some: overlap.remember(result, some), members))
    for some in members:
        assert [near.of_ours for near in overlap.find(OTHER, some)] == [1.0]


def test_only_the_owner_may_read_digests() -> None:
    assert account(PIXELS).images_path.stat().st_mode & 0o077 == 0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    return tmp_path
