"""Private images in the training data of public weights or images are found by their provenance records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpvision.errors import DataError
from dpvision.private.features.encoders import load_encoder
from dpvision.public.provenance import provenance_of, read_card_provenance
from dpvision.storage import safetensors
from tests.public.words import Say, say

__all__ = ["say"]
PIXELS = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
LABELS = np.arange(60) % 4
WARM = ("--model", "small-cnn", "--steps", 2, "--batch", 4, "--augment", "none")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """private.npz has 30 training and ten test images; public.npz has ten other images, and other.npz ten more."""
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "home"))
    parts = {"train": slice(0, 30), "test": slice(50, 60)}
    arrays = {f"{n}_images": PIXELS[s] for n, s in parts.items()} | {f"{n}_labels": LABELS[s] for n, s in parts.items()}
    np.savez(tmp_path / "private.npz", **arrays)
    some(tmp_path / "public.npz", slice(30, 40))
    some(tmp_path / "other.npz", slice(40, 50))
    return tmp_path


def some(path: Path, rows: slice, *, scale: float | None = None) -> None:
    pixels = PIXELS[rows] if scale is None else (PIXELS[rows] / scale).astype(np.float32)
    np.savez(path, train_images=pixels, train_labels=LABELS[rows])


def train(say: Say, place: Path, name: str, *, start: Path | None = None, data: str = "private.npz", **more: object):
    words = (
        "train",
        place / data,
        "--epsilon",
        3,
        "--model",
        "small-cnn",
        "--steps",
        1,
        "--out",
        place / f"run-{name}",
    )
    begin = () if start is None else ("--pretrained", start)
    code, _, err = say(*words, *begin, *(str(w) for pair in more.items() for w in (f"--{pair[0]}", pair[1])))
    return code, err


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(slice(30, 40), 0), (slice(29, 40), 2), (slice(30, 51), 2)],
    ids=["public", "private", "test"],
)
def test_weights_trained_on_private_or_test_images_are_refused(
    rows: slice, expected: int, place: Path, say: Say
) -> None:
    """As floats: the same pixels in other bytes."""
    some(place / "mixed.npz", rows, scale=255)
    assert say("warm", place / "mixed.npz", *WARM, "--out", place / "warm")[0] == 0
    code, err = train(say, place, "one", start=place / "warm" / "weights.safetensors")
    assert code == expected, err
    if expected:
        assert "1 of the private images or test images" in err and not (place / "run-one").exists()


def test_the_record_is_kept_by_a_private_run_on_other_images(place: Path, say: Say) -> None:
    some(place / "mixed.npz", slice(29, 40))
    assert say("warm", place / "mixed.npz", *WARM, "--out", place / "warm")[0] == 0
    assert train(say, place, "other", start=place / "warm" / "weights.safetensors", data="other.npz")[0] == 0
    code, err = train(say, place, "back", start=place / "run-other" / "weights.safetensors")
    assert code == 2 and "1 of the private images" in err


def test_the_record_passes_from_a_diffusion_model_to_samples_and_to_weights(place: Path, say: Say) -> None:
    some(place / "mixed.npz", slice(28, 40))
    fit = ("--size", "tiny", "--steps", 1, "--batch", 2, "--out", place / "edm")
    assert say("synth", "fit", place / "mixed.npz", *fit)[0] == 0
    drawn = place / "drawn.npz"
    assert say("synth", "sample", place / "edm", "--count", 8, "--steps", 2, "--out", drawn)[0] == 0
    code, err = train(say, place, "assisted", public=drawn, assist="dope")
    assert code == 2 and "synthesised by a model that learned from 2 of the private images" in err
    assert say("warm", drawn, *WARM, "--out", place / "warm")[0] == 0
    code, err = train(say, place, "warmed", start=place / "warm" / "weights.safetensors")
    assert code == 2 and "2 of the private images" in err
    assert say("synth", "sample", place / "edm", "--count", 8, "--steps", 2, "--out", place / "drawn.npz")[0] == 2


def test_the_record_passes_through_a_guide_a_second_model_a_store_and_a_part(place: Path, say: Say) -> None:
    """Samples of a guide or a second model, stores and parts all carry the record of private.npz."""
    some(place / "mixed.npz", slice(28, 40))
    tiny, steps = ("--size", "tiny", "--steps", 1, "--batch", 2), ("--count", 8, "--steps", 2)
    guide = ("--samples", 4, "--extractor-steps", 1, "--steps", 1, "--batch", 2, "--width", 8)

    def done(*words: object) -> None:
        code, _, err = say(*words)
        assert code == 0, err

    done("synth", "fit", place / "public.npz", *tiny, "--out", place / "clean")
    done("synth", "guide", place / "clean", place / "mixed.npz", *guide, "--out", place / "guide")
    done("synth", "sample", place / "clean", "--guide", place / "guide", *steps, "--out", place / "guided.npz")
    done("synth", "fit", place / "guided.npz", *tiny, "--out", place / "second")
    done("synth", "sample", place / "second", *steps, "--out", place / "second.npz")
    done("data", "pack", place / "guided.npz", "--out", place / "far.pack")
    done("data", "split", place / "guided.npz", "--public", 4, "--out", place / "parts")
    done("synth", "sample", place / "clean", *steps, "--out", place / "clean.npz")
    assert train(say, place, "clean", public=place / "clean.npz", assist="dope")[0] == 0
    for name in ("guided.npz", "second.npz", "far.pack", "parts/public.npz"):
        code, err = train(say, place, "assisted", public=place / name, assist="dope")
        assert code == 2 and "synthesised by a model that learned from 2 of the private images" in err, name


def test_a_release_refuses_an_encoder_trained_on_its_images(place: Path, say: Say) -> None:
    some(place / "mixed.npz", slice(29, 40))
    for name, expected in (("public", 0), ("mixed", 2)):
        assert say("warm", place / f"{name}.npz", *WARM, "--out", place / name)[0] == 0
        weights = place / name / "weights.safetensors"
        words = ("release", place / "private.npz", "--epsilon", 3, "--encoder", "small-cnn", "--weights", weights)
        code, _, err = say(*words, "--out", place / "release", "--dry-run")
        assert code == expected, err
        assert not expected or "without privacy on 1 of the private images" in err
        assert "trained on images that it lists" in load_encoder("small-cnn", (1, 8, 8), weights).origin


def test_a_smaller_copy_of_the_same_files_is_found(place: Path, say: Say) -> None:
    for row, (pixels, label) in enumerate(zip(PIXELS[:12], LABELS[:12], strict=True)):
        folder = place / "photos" / "train" / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0].repeat(2, 0).repeat(2, 1)).save(folder / f"{row}.png")
    assert say("warm", place / "photos", *WARM, "--size", 8, "--out", place / "warm")[0] == 0
    words = ("train", place / "photos", "--epsilon", 3, "--model", "small-cnn", "--steps", 1, "--size", 16)
    code, _, err = say(*words, "--pretrained", place / "warm" / "weights.safetensors", "--out", place / "run")
    assert code == 2 and "12 of the private images" in err


def test_weights_whose_record_was_changed_are_refused(place: Path, say: Say) -> None:
    assert say("warm", place / "public.npz", *WARM, "--out", place / "warm")[0] == 0
    path = place / "warm" / "weights.safetensors"
    data, note = path.read_bytes(), safetensors.read_header(path)["learned_from"]
    path.write_bytes(data.replace(note.encode(), b"0" * len(note)))
    code, err = train(say, place, "one", start=path)
    assert code == 3 and "was modified after it was written" in err


def test_what_is_on_an_account_is_not_taken_as_public_unless_its_owners_consented(place: Path, say: Say) -> None:
    assert train(say, place, "first")[0] == 0
    some(place / "mixed.npz", slice(29, 40))
    fit = ("synth", "fit", place / "mixed.npz", "--size", "tiny", "--steps", 1, "--batch", 2, "--out", place / "edm")
    warm = ("warm", place / "mixed.npz", *WARM, "--out", place / "warm")
    for words in (warm, fit):
        code, _, err = say(*words)
        assert code == 4 and "mixed.npz: some of its images are on account" in err and "--consented" in err
        assert say(*words, "--consented")[0] == 0


def test_a_record_has_a_maximum_size_and_is_empty_without_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpvision.public.provenance.MAX_DIGESTS", 5)
    assert len(provenance_of(PIXELS).split()) == 5
    for text in ("", "[]", "{", json.dumps({"learned_from": 3})):
        (tmp_path / "x.json").write_text(text)
        assert read_card_provenance(str(tmp_path / "x.npz")) in ("", "3")
    assert read_card_provenance("digits") == ""


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_an_unreadable_record_is_an_error(content: bytes, tmp_path: Path) -> None:
    images = tmp_path / "images.npz"
    Path(f"{images}.taught_by.json").write_bytes(content)
    with pytest.raises(DataError, match="is unknown"):
        read_card_provenance(str(images))
