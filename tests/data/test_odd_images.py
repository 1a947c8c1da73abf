"""Odd image files as people have them: each is read rightly, or refused with its name, the reason and the fix."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import png, png_chunk, png_header
from PIL import Image

from dpvision.data import check, image_batches, load
from dpvision.errors import DataError

COLOUR = np.random.default_rng(1).integers(0, 256, (6, 4, 3), dtype=np.uint8)
GREY = np.random.default_rng(2).integers(0, 256, (6, 4), dtype=np.uint8)
DEEP = np.random.default_rng(3).integers(0, 65536, (6, 4), dtype=np.uint16)
ALPHA = np.random.default_rng(4).integers(0, 256, (6, 4), dtype=np.uint8)
TURNED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2),
    8: np.rot90,
}


def saved(image: Any, kind: str, **how: Any) -> bytes:
    out = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(out, kind, **how)
    return out.getvalue()


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha.reshape(*alpha.shape, *[1] * (colour.ndim - 2)) / 255
    return np.rint(colour * share + 255 * (1 - share))


def with_alpha(mode: str) -> Image.Image:
    image = Image.fromarray(COLOUR if mode == "RGBA" else GREY).convert(mode)
    image.putalpha(Image.fromarray(ALPHA))
    return image


def palette() -> Image.Image:
    image = Image.fromarray((GREY % 3).astype(np.uint8)).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    return image


RED_GREEN_BLUE = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)[GREY % 3]
WITHOUT_RED = np.array([[255, 255, 255], [0, 255, 0], [0, 0, 255]], np.uint8)[GREY % 3]
EXIF = Image.Exif()
FRAMES: dict[str, Any] = {"save_all": True, "append_images": [Image.fromarray(COLOUR[::-1].copy())]}

READ: dict[str, tuple[bytes, np.ndarray]] = {
    "grey png": (saved(GREY, "PNG"), GREY),
    "colour png": (saved(COLOUR, "PNG"), COLOUR),
    "png named jpg": (saved(COLOUR, "PNG"), COLOUR),
    "1-bit png": (saved(Image.fromarray(GREY).convert("1", dither=0), "PNG"), np.where(GREY >= 128, 255, 0)),
    "16-bit grey png": (saved(DEEP, "PNG"), np.rint(DEEP / 257)),
    "16-bit grey tiff": (saved(DEEP, "TIFF"), np.rint(DEEP / 257)),
    "16-bit big-endian tiff": (
        saved(Image.frombytes("I;16B", (4, 6), DEEP.astype(">u2").tobytes()), "TIFF"),
        np.rint(DEEP / 257),
    ),
    "grey with alpha": (saved(with_alpha("LA"), "PNG"), on_white(GREY, ALPHA)),
    "colour with alpha": (saved(with_alpha("RGBA"), "PNG"), on_white(COLOUR, ALPHA)),
    "webp with alpha": (
        saved(with_alpha("RGBA"), "WEBP", lossless=True, exact=True),
        on_white(COLOUR, ALPHA),
    ),
    "palette": (saved(palette(), "PNG"), RED_GREEN_BLUE),
    "palette with a transparent colour": (saved(palette(), "PNG", transparency=0), WITHOUT_RED),
    "palette with alpha": (saved(palette(), "PNG", transparency=bytes([0, 255, 255])), WITHOUT_RED),
    "grey with a transparent level": (
        saved(GREY, "PNG", transparency=int(GREY[0, 0])),
        np.where(GREY[0, 0] == GREY, 255, GREY),
    ),
    "webp lossless": (saved(COLOUR, "WEBP", lossless=True), COLOUR),
    "webp lossy": (saved(np.full((6, 4, 3), 200, np.uint8), "WEBP"), np.full((6, 4, 3), 200)),
    "tiff colour": (saved(COLOUR, "TIFF"), COLOUR),
    "tiff deflated": (saved(COLOUR, "TIFF", compression="tiff_adobe_deflate"), COLOUR),
    "tiff lzw": (saved(GREY, "TIFF", compression="tiff_lzw"), GREY),
    "tiff 1-bit": (
        saved(Image.fromarray(GREY).convert("1", dither=0), "TIFF", compression="group4"),
        np.where(GREY >= 128, 255, 0),
    ),
    "tiff cmyk": (saved(Image.new("CMYK", (4, 6), (0, 255, 255, 0)), "TIFF"), np.full((6, 4, 3), (255, 0, 0))),
    "jpeg cmyk": (saved(Image.new("CMYK", (4, 6), (0, 255, 255, 0)), "JPEG"), np.full((6, 4, 3), (255, 0, 0))),
    "jpeg grey": (saved(np.full((6, 4), 77, np.uint8), "JPEG"), np.full((6, 4), 77)),
    "jpeg progressive": (saved(np.full((6, 4), 78, np.uint8), "JPEG", progressive=True), np.full((6, 4), 78)),
    "jpeg with a thumbnail after its end": (
        saved(np.full((6, 4), 79, np.uint8), "JPEG") + b"junk",
        np.full((6, 4), 79),
    ),
    "interlaced png": (
        png(png_header(1, 1, interlace=1), png_chunk(b"IDAT", zlib.compress(b"\0\7"))),
        np.full((1, 1), 7),
    ),
}
for _turn, _how in TURNED.items():
    EXIF[0x0112] = _turn
    for _kind in ("PNG", "TIFF", "WEBP"):
        _more = {"lossless": True} if _kind == "WEBP" else {}
        READ[f"{_kind} with EXIF orientation {_turn}"] = (saved(COLOUR, _kind, exif=EXIF, **_more), _how(COLOUR))
    _flat = np.zeros((16, 32, 3), np.uint8)
    _flat[:8, :16] = 255
    READ[f"JPEG with EXIF orientation {_turn}"] = (saved(_flat, "JPEG", exif=EXIF, quality=100), _how(_flat))

REFUSED: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "is empty"),
    "cut png": (saved(COLOUR, "PNG")[:-20], "is truncated"),
    "cut jpeg": (saved(np.tile(COLOUR, (20, 20, 1)), "JPEG")[:-400], "is a damaged JPEG"),
    "cut tiff": (saved(COLOUR, "TIFF")[:-20], "is a damaged TIFF|not a readable TIFF"),
    "cut webp": (saved(COLOUR, "WEBP")[:-20], "is a damaged WEBP|not a readable WEBP"),
    "animated gif": (
        saved(Image.fromarray(COLOUR), "GIF", **FRAMES),
        "is a GIF file, which is not supported. Fix: save it as",
    ),
    "animated webp": (saved(Image.fromarray(COLOUR), "WEBP", **FRAMES), "has more than one frame. Fix"),
    "tiff of two pages": (saved(Image.fromarray(COLOUR), "TIFF", **FRAMES), "has more than one frame. Fix"),
    "png of two frames": (saved(Image.fromarray(COLOUR), "PNG", **FRAMES), "has more than one frame. Fix"),
    "bmp": (saved(COLOUR, "BMP"), "is a BMP file, which is not supported. Fix: save it as PNG"),
    "heic": (b"\0\0\0\x18ftypheic" + bytes(99), "is a HEIF .* Fix: save it as PNG or JPEG"),
    "jpeg 2000": (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99), "is a JPEG 2000 file"),
    "text": (b"hello", "is neither a PNG, JPEG"),
    "float tiff with NaN": (
        saved(np.full((6, 4), np.nan, np.float32), "TIFF"),
        "floating-point .* Fix: save it with 8",
    ),
    "float tiff": (saved(np.ones((6, 4), np.float32), "TIFF"), "floating-point .* Fix: save it with 8 bits"),
    "32-bit tiff": (saved(np.ones((6, 4), np.int32), "TIFF"), "32-bit .* Fix: save it with 8 bits"),
    "lab tiff": (saved(Image.new("LAB", (4, 6)), "TIFF"), "mode LAB. Fix: save it with 8 bits"),
    "huge dimensions": (png(png_header(60_000, 60_000), png_chunk(b"IDAT", b"")), "more than 16,777,216 pixels. Fix"),
    "decompression bomb": (saved(Image.new("1", (20_000, 20_000)), "PNG"), "more than 16,777,216 pixels. Fix"),
    "webp of 16383 pixels per side": (
        b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\xfe\x3f\0" * 2,
        "more than 16,777,216 pixels. Fix",
    ),
}


def test_there_are_enough_kinds() -> None:
    assert len(READ) + len(REFUSED) >= 70


def folder_with(tmp_path: Path, data: bytes, *, name: str = "odd.png") -> Path:
    """A folder of two classes with one good image and the odd one."""
    for place in ("good", "odd"):
        (tmp_path / "set" / place).mkdir(parents=True)
    Image.new("L", (4, 6)).save(tmp_path / "set" / "good" / "a.png")
    (tmp_path / "set" / "odd" / name).write_bytes(data)
    return tmp_path / "set"


@pytest.mark.parametrize("kind", READ)
def test_read_rightly(tmp_path: Path, kind: str) -> None:
    data, wanted = READ[kind]
    name = "odd.jpg" if "named jpg" in kind else "odd.png"
    folder = folder_with(tmp_path, data, name=name)
    tolerance = 4 if "JPEG" in kind else 2 if "lossy" in kind else 0.5  # 0.5: either rounding of a half
    images = load(folder, size=wanted.shape[:2], test_share=0).train
    odd = images.images[images.labels == 1][0]
    assert odd.shape[2] == (3 if wanted.ndim == 3 else 1)
    assert np.abs(odd.reshape(wanted.shape).astype(float) - wanted).max() <= tolerance
    (batch,) = image_batches(folder / "odd", size=odd.shape[:2], channels=odd.shape[2])
    assert batch.problems == [None] and np.array_equal(batch.images[0], odd), "predict reads by the same rule"
    assert check(folder).broken == () and wanted.shape[:2] in check(folder).sizes


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_name_reason_and_fix(tmp_path: Path, kind: str) -> None:
    data, reason = REFUSED[kind]
    folder = folder_with(tmp_path, data)
    with pytest.raises(DataError, match=reason) as caught:
        load(folder)
    assert str(caught.value).startswith(f"{folder / 'odd' / 'odd.png'}: ")
    assert "`dpvision check" in str(caught.value) and "--skip-broken" in str(caught.value)
    (broken,) = check(folder).broken
    assert broken.path == "odd/odd.png"
    (batch,) = image_batches(folder / "odd", size=(6, 4), channels=3)
    assert batch.problems == [broken.reason] and not len(batch.images)


def test_odd_names(tmp_path: Path) -> None:
    """A link inside, a name that is not UTF-8, no suffix, capital letters and a UID are read; a .gif is refused by name."""
    folder = folder_with(tmp_path, saved(GREY, "PNG"), name="ODD.PNG")
    Image.fromarray(GREY[:, ::-1].copy()).save(tmp_path / "set" / "good" / "b.png")
    odd = os.fsencode(folder / "odd")
    for number, name in enumerate([b"\xff\xfe.png", b"IM0001", b"1.2.840.113619.2.55", "grün 1.jpeg".encode()]):
        with open(odd + b"/" + name, "wb") as file:
            file.write(saved(np.full((6, 4), number, np.uint8), "PNG"))
    (folder / "elsewhere.png").write_bytes(saved(np.full((6, 4), 99, np.uint8), "PNG"))
    with pytest.raises(DataError, match=r"elsewhere\.png: is not in the folder of a class\. Fix: move it to CLASS/"):
        load(folder)
    (folder / "elsewhere.png").rename(folder / "elsewhere.bin")
    (folder / "odd" / "link.png").symlink_to("../elsewhere.bin")
    assert len(load(folder, test_share=0).train) == 8
    (folder / "odd" / "b.gif").write_bytes(saved(COLOUR, "GIF"))
    with pytest.raises(DataError, match=r"b\.gif: is not an image by its name, which ends in none of \.png, "):
        load(folder)
    (folder / "odd" / "b.gif").unlink()
    (folder / "odd" / "out.png").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match=r"out\.png: is a link that leaves the folder of the data"):
        load(folder)


def test_the_rule_of_earlier_models_is_still_known(tmp_path: Path) -> None:
    """Rule 1 stretches, ignores EXIF and drops transparency; both rules give the same account."""
    from dpvision.data import fingerprint

    exif = Image.Exif()
    exif[0x0112] = 6
    folder = folder_with(tmp_path, saved(with_alpha("RGBA"), "PNG", exif=exif))
    for number in range(2):
        Image.fromarray(COLOUR).save(folder / "good" / f"{number}.png")
    new, old = (load(folder, size=8, test_share=0, rule=rule) for rule in (2, 1))
    assert fingerprint(new.train) == fingerprint(old.train)
    assert not np.array_equal(new.train.images, old.train.images)
    stretched = Image.fromarray(COLOUR).resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(old.train.images[-1], np.asarray(stretched)), "the colours without alpha, not rotated"
    with pytest.raises(DataError, match="rule 3"):
        load(folder, rule=3)


def test_the_short_side_is_resized_and_the_centre_stays(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 8:22] = (9, 99, 199)  # the centred square, and what the filter sees next to it
    folder = folder_with(tmp_path, saved(wide, "PNG"))
    images = load(folder, size=5, test_share=0).train
    assert (images.images[images.labels == 1] == (9, 99, 199)).all()
    tall = load(folder, size=(20, 20), test_share=0).train.images[-1]
    assert (tall == (9, 99, 199)).all(), "also when it grows"
