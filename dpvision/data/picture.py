"""Reads one untrusted PNG or JPEG file: limits are checked before decoding, and warnings are errors.

The content determines the format, not the name. Transparency is dropped; a rotation in EXIF is not applied.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from dpvision.data import limits
from dpvision.data.dataset import image_digest
from dpvision.data.files import Refusal, file_length, printable

if TYPE_CHECKING:
    from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("RGB", "RGBA", "P", "CMYK", "YCbCr")
_BLOCK = 1 * limits.MIB


def measure(file: BinaryIO) -> tuple[int, int, int]:
    """(height, width, channels) from the header alone; nothing is decoded."""
    with _open_image(file) as image:
        return image.height, image.width, 1 if image.mode in _GREY_MODES else 3


def decode(file: BinaryIO, *, size: tuple[int, int], channels: int) -> tuple[np.ndarray, bytes]:
    """(H, W, C) uint8, resized bilinearly if the image has another size, and the digest of the original."""
    with _open_image(file) as image:
        if image.format == "PNG":
            require_valid_png(file, file_length(file))
        else:
            _require_few_scans(file, pixels=image.width * image.height)
        file.seek(0)
        image.load()
        original = _convert(image, "L" if image.mode in _GREY_MODES else "RGB")
        digest = image_digest(np.asarray(original).reshape(original.height, original.width, -1))
        converted = _convert(original, "L" if channels == 1 else "RGB")
        if (converted.height, converted.width) != size:
            from PIL import Image

            converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.asarray(converted).reshape(*size, channels), digest


@contextmanager
def _open_image(file: BinaryIO) -> Iterator[Image.Image]:
    """The image with its header checked; every error of Pillow becomes a Refusal."""
    from PIL import Image

    if file_length(file) > limits.IMAGE_FILE_BYTES:
        raise Refusal(f"is larger than {limits.IMAGE_FILE_BYTES // limits.MIB} MiB.")
    kind = _detect_format(file)
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with Image.open(file, formats=(kind,)) as image:
                _require_header(image)
                yield image
        except (Refusal, MemoryError):
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise Refusal(_too_large()) from None
        except Image.UnidentifiedImageError:
            raise Refusal(f"is not a readable {kind} image.") from None
        # Pillow raises almost any exception for a damaged file.
        except Exception as exc:
            raise Refusal(f"is a damaged {kind} image ({printable(str(exc))}).") from exc


def _detect_format(file: BinaryIO) -> str:
    file.seek(0)
    start = file.read(8)
    if start == SIGNATURE:
        return "PNG"
    if start[:3] == b"\xff\xd8\xff":
        return "JPEG"
    raise Refusal("is empty." if not start else "is neither a PNG nor a JPEG image, despite its name.")


def _require_header(image: Image.Image) -> None:
    if image.width * image.height > limits.PIXELS:
        raise Refusal(_too_large())
    if image.width < 1 or image.height < 1:
        raise Refusal("has no pixels.")
    if getattr(image, "n_frames", 1) > 1:
        raise Refusal("has more than one frame. Fix: save every frame as an image of its own.")
    if image.mode not in _GREY_MODES + _COLOUR_MODES:
        raise Refusal(f"has pixels of mode {printable(image.mode)}. Fix: save it with 8 bits per channel.")


def _too_large() -> str:
    return f"has more than {limits.PIXELS:,} pixels. Fix: shrink it."


def require_valid_png(file: BinaryIO, length: int) -> None:
    """Refuse a PNG that is truncated, damaged, or has several frames. Pillow does not compare its checksums."""
    position = len(SIGNATURE)
    for _ in range(limits.PNG_CHUNKS):
        file.seek(position)
        head = file.read(8)
        count, kind = int.from_bytes(head[:4], "big"), head[4:]
        position += 12 + count
        if len(head) < 8 or position > length:
            raise Refusal("is truncated.")
        if kind == b"acTL":
            raise Refusal("has more than one frame. Fix: save every frame as an image of its own.")
        if _read_checksum(file, kind, count) != int.from_bytes(file.read(4), "big"):
            raise Refusal("is damaged: a checksum is wrong.")
        if kind == b"IEND":
            return
    raise Refusal(f"has more than {limits.PNG_CHUNKS:,} chunks.")


def _read_checksum(file: BinaryIO, kind: bytes, count: int) -> int:
    crc = zlib.crc32(kind)
    while count > 0:
        data = file.read(min(count, _BLOCK))
        if not data:
            raise Refusal("is truncated.")
        crc = zlib.crc32(data, crc)
        count -= len(data)
    return crc


def _require_few_scans(file: BinaryIO, *, pixels: int) -> None:
    """Refuse a JPEG with many scans: each costs a pass over all pixels, however few bytes it has."""
    file.seek(0)
    scans, last = 0, b""
    while block := file.read(_BLOCK):
        scans += (last + block).count(b"\xff\xda")
        last = block[-1:]
    if scans > limits.JPEG_SCANS and scans * pixels > limits.JPEG_SCAN_PIXELS:
        raise Refusal(f"has {scans:,} scans; an ordinary progressive JPEG has about 10.")


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode:
        return image
    # Pillow requires transparency in a palette to be made explicit before it is dropped.
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)
