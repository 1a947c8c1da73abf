"""The fingerprint changes with the records and with nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpvision.data import Split, fingerprint


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
@given(seed=st.integers(0, 2**32), what=st.sampled_from(["pixel", "label", "person", "drop", "double", "swap"]))
def test_every_change_of_a_record_shows(seed: int, what: str) -> None:
    images, labels, persons = records(seed)
    before = fingerprint(Split(images, labels, persons))
    i = seed % 40
    images, labels, persons = images.copy(), labels.copy(), persons.copy()
    if what == "pixel":
        images[i, 0, 0, 0] ^= 1
    elif what == "label":
        labels[i] += 1
    elif what == "person":
        persons[i] = 99 if (persons == persons[i]).sum() > 1 else persons[(i + 1) % 40]
    elif what == "drop":
        images, labels, persons = images[1:], labels[1:], persons[1:]
    elif what == "double":
        images, labels, persons = (np.concatenate([array, array[:1]]) for array in (images, labels, persons))
    else:
        j = int(np.flatnonzero(labels != labels[i])[0])
        labels[i], labels[j] = labels[j], labels[i]
    assert fingerprint(Split(images, labels, persons)) != before


def test_shape_type_and_presence_of_persons_count() -> None:
    images, labels, _ = records(0)
    splits = [
        Split(images, labels, None),
        Split(images.reshape(40, 4, 5, 3), labels, None),
        Split(images, labels, np.arange(40)),
        Split((images / 255).astype(np.float32), labels, None),
        Split(np.ascontiguousarray(images[..., :1]), labels, None),
        Split(images, labels, np.zeros(40, np.int64)),
    ]
    assert len({fingerprint(split) for split in splits}) == len(splits)


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
    want = "c762840241f473ddc6f2a9f34b515e93fac5431a970e9d3786ec083f1b8102ee"
    assert fingerprint(Split(images, np.array([0, 1]), None)) == want, "a ledger is bound to this value"
