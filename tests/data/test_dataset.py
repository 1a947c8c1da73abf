"""The fingerprint changes with the records and with nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dpvision.data import Split, fingerprint, identify, load, pack


def records(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (count, 5, 4, 3), dtype=np.uint8)
    return images, draw.integers(0, 3, count), draw.integers(0, 7, count)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), with_persons=st.booleans())
def test_order_and_numbering_do_not_matter(seed: int, with_persons: bool) -> None:
    images, labels, persons = records(seed)
    draw = np.random.default_rng(seed + 1)
    order, renamed = draw.permutation(40), draw.permutation(7)
    first = Split(images, labels, persons if with_persons else None)
    second = Split(images[order], labels[order], renamed[persons][order] if with_persons else None)
    assert fingerprint(first) == fingerprint(second)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), what=st.sampled_from(["pixel", "drop", "double"]))
def test_every_change_of_the_images_shows(seed: int, what: str) -> None:
    images, labels, persons = records(seed)
    before = identify(Split(images, labels, persons))
    i = seed % 40
    images = images.copy()
    if what == "pixel":
        images[i, 0, 0, 0] ^= 1
    elif what == "drop":
        images, labels, persons = images[1:], labels[1:], persons[1:]
    else:
        images, labels, persons = (np.concatenate([array, array[:1]]) for array in (images, labels, persons))
    after = identify(Split(images, labels, persons))
    assert after[0] != before[0] and after[1] != before[1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), what=st.sampled_from(["label", "person", "no persons", "swap", "order"]))
def test_the_same_images_have_one_ledger_but_another_training(seed: int, what: str) -> None:
    """Other labels, persons or places: the same people, so the same fingerprint; never the same noise."""
    images, labels, persons = records(seed)
    before = identify(Split(images, labels, persons))
    i, j = seed % 40, (seed + 1) % 40
    labels, persons = labels.copy(), persons.copy()
    if what == "label":
        labels[i] += 1
    elif what == "person":
        persons[i] = 99
    elif what == "swap":
        labels[[i, j]] = labels[[j, i]] + 5
    elif what == "order":
        images, labels, persons = images[::-1], labels[::-1], persons[::-1]
    after = identify(Split(images, labels, None if what == "no persons" else persons))
    assert after[0] == before[0] and after[1] != before[1]


def test_shape_and_type_count() -> None:
    images, labels, _ = records(0)
    splits = [
        Split(images, labels, None),
        Split(images.reshape(40, 4, 5, 3), labels, None),
        Split((images / 255).astype(np.float32), labels, None),
        Split(np.ascontiguousarray(images[..., :1]), labels, None),
    ]
    assert len({fingerprint(split) for split in splits}) == len(splits)


def test_a_resized_or_recoloured_folder_has_the_same_ledger(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "pets" / "train" / name).mkdir(parents=True)
        for i in range(5):
            pixels = draw.integers(0, 256, (6, 6) if i else (6, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / "train" / name / f"{i}.png")
    plain = load(tmp_path / "pets")
    assert plain.train.images.shape == (10, 6, 6, 3) and "channels" in plain.inferred
    gray = load(tmp_path / "pets", channels=1)
    assert gray.train.images.shape == (10, 6, 6, 1) and "channels" not in gray.inferred
    others = [load(tmp_path / "pets", size=9), gray, load(tmp_path / "pets", classes=["b", "c", "a"])]
    pack(tmp_path / "pets", tmp_path / "store", size=4, channels=1)
    others.append(load(tmp_path / "store"))
    for other in others:
        assert identify(other.train)[0] == identify(plain.train)[0]
        assert identify(other.train)[1] != identify(plain.train)[1]


@pytest.mark.parametrize("form", ["fortran", "strided", "big-endian"])
def test_layout_in_memory_does_not_matter(form: str) -> None:
    images, labels, _ = records(0)
    scaled = (images / 255).astype(np.float32)
    forms = {
        "fortran": np.asfortranarray(scaled),
        "strided": np.repeat(scaled, 2, axis=0)[::2],
        "big-endian": scaled.astype(">f4"),
    }
    assert fingerprint(Split(forms[form], labels, None)) == fingerprint(Split(scaled, labels, None))


def test_it_stays_what_it_is() -> None:
    images = np.arange(2 * 2 * 2, dtype=np.uint8).reshape(2, 2, 2, 1)
    want = "2e47c12eae119a6836583221502d9587da297019b21b3bff8c7ce7a7df6895ee"
    assert fingerprint(Split(images, np.array([0, 1]), None)) == want, "a ledger is bound to this value"
