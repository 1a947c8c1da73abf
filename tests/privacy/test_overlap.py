"""The same images are found in whatever type they come, by gates that let nothing pass that they can not read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpvision.data import Split, identify
from dpvision.errors import LedgerMismatch, PrivacyError
from dpvision.estimators.arrays import raw_digests
from dpvision.privacy import overlap
from dpvision.privacy.events import Budget
from dpvision.privacy.ledger import Ledger, ledger_of
from dpvision.public.taught_by import pixel_digests
from dpvision.unaccounted import require_unaccounted

PIXELS = np.random.default_rng(0).integers(0, 256, (1000, 4, 4, 1), dtype=np.uint8)
OTHERS = np.random.default_rng(1).integers(0, 256, (1000, 4, 4, 1), dtype=np.uint8)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    return tmp_path


def split(images: np.ndarray) -> Split:
    return Split(images, np.zeros(len(images), np.int64), None)


def sketch(given: np.ndarray, trained_on: np.ndarray) -> tuple[str, ...]:
    """As a fit makes it."""
    known = overlap.sketch(identify(split(trained_on))[2], pixel_digests(trained_on))
    return overlap.both(known, raw_digests(given))


def account(images: np.ndarray) -> Ledger:
    found = ledger_of(identify(split(images))[0])
    found.open(Budget(3, 1e-5))
    overlap.keep(found, sketch(images, images))
    return found


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
    assert len(overlap.ledgers("ab" * 32, sketch(given, scaled))) == 1
    assert overlap.ledgers("ab" * 32, sketch(TYPES[name](OTHERS), OTHERS)) == []


def test_images_of_two_values_are_the_same_as_numbers_and_as_truths() -> None:
    two = (PIXELS > 127).astype(np.uint8)
    account(two)
    for given in (two.astype(np.float32), two > 0):
        assert len(overlap.ledgers("ab" * 32, sketch(given, given.astype(np.float32) / 2))) == 1


def test_a_gate_lets_nothing_pass_that_it_can_not_read() -> None:
    own = account(PIXELS)
    some = split(PIXELS[:400])
    with pytest.raises(PrivacyError, match="on account"):
        require_unaccounted("some", [some], fix="others")
    ledger, kept = own.path.read_bytes(), own.sketch_path.read_bytes()
    own.path.write_bytes(ledger.replace(b'"open"', b'"oben"'))
    with pytest.raises(LedgerMismatch):
        require_unaccounted("some", [some], fix="others")
    own.path.write_bytes(ledger)
    own.sketch_path.write_bytes(b"\xff" + kept[1:])
    with pytest.raises(LedgerMismatch, match=r"sketch: can not be read.*Fix"):
        require_unaccounted("some", [some], fix="others")
    assert overlap.others("ab" * 32, sketch(PIXELS, PIXELS)) == [], "a note does not stop a run"


def test_what_is_kept_at_the_same_time_is_kept_of_all() -> None:
    found = account(PIXELS[:1])
    members = [[f"{thread:024x}"] for thread in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda some: overlap.keep(found, some), members))
    kept = found.sketch_path.read_text().split()
    assert all(some in kept for (some,) in members)
