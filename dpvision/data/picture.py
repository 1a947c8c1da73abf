"""Reads one untrusted image file: limits are checked before decoding, and warnings are errors.

The pixels depend only on the bytes of the file, the declared size and channels, and a public `Rule`. The content
determines the format, not the name. Rule 2 is for everything that is trained now:

    rotation and mirroring in EXIF      applied
    transparency                        composited on white
    16-bit grey (PNG, TIFF)             scaled from the range of the type: 0..65535 to 0..255, rounded
    black and white, palettes, CMYK     1 bit becomes grey; palettes, CMYK and YCbCr become RGB
    another size                        the largest centred part with the wanted aspect ratio is resized bilinearly:
                                        the short side gets the wanted size, and the long side is cropped
    other channels                      colour becomes grey by ITU-R 601-2 (Pillow's "L"), grey is repeated in RGB

Rule 1 is for models trained before rule 2 existed: EXIF is ignored, transparency is dropped, and images are stretched
to another size. Both rules give the same digest of the original pixels, so accounts do not depend on the rule.
"""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from dpvision.data import limits
from dpvision.data.dataset import image_digest
from dpvision.data.files import Refusal, file_length, printable
from dpvision.data.parallel import Budget

if TYPE_CHECKING:
    from PIL import Image

RULE = 2
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY_MODES = ("1", "L", "LA")
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
_COLOUR_MODES = ("RGB", "RGBA", "P", "CMYK", "YCbCr")
_BLOCK = 1 * limits.MIB
_WHITE = 255
_UNREADABLE = {
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"%PDF": "PDF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\x89HDF": "HDF5",
    b"\x1f\x8b": "gzip",
    b"PK\3\4": "zip",
}
_pixels_at_once = Budget(limits.PIXELS_AT_ONCE)


@dataclass(frozen=True)
class Rule:
    """How the bytes of a file become pixels; it is public and recorded with a model."""

    version: int = RULE
    window: tuple[float, float] | None = None
    """Centre and width of the window of DICOM images, or None for the default of dicom.py."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """One image that was read."""

    picture: np.ndarray
    """(H, W, C) uint8."""
    digest: bytes
    """Digest of the original, before it was resized or recoloured."""
    sides: tuple[int, int, int]
    """Height, width and channels of the original, after a rotation in EXIF."""
    person: str | None = field(default=None, repr=False)
    """A digest of the patient id in a DICOM file: the id itself never leaves dicom.py."""
    dicom: bool = False


def measure(file: BinaryIO, length: int, rule: Rule) -> tuple[int, int, int]:
    """Return (height, width, channels) from the header alone; nothing is decoded."""
    if _is_dicom(file):
        from dpvision.data import dicom

        file.seek(0)
        return dicom.measure(file.read())
    with _open_image(file, length) as image:
        return _sides(image, _turn(image, rule))


def decode(
    data: bytes, rule: Rule, *, size: tuple[int, int] | None, channels: int | None, digested: bool = True
) -> Decoded:
    """Decode the bytes of a file. Without a size, the picture is empty: this only checks that the file is readable.

    The digest takes more than half as long as decoding; without `digested` it is empty.
    """
    file = io.BytesIO(data)
    if _is_dicom(file):
        from dpvision.data import dicom

        array, shown, person = dicom.decode(data, rule.window)
        sides = shown.height, shown.width, 1 if shown.mode == "L" else 3
        picture = _fit(shown, sides, rule, size=size, channels=channels)
        return Decoded(picture, image_digest(array) if digested else b"", sides, person, dicom=True)
    with _open_image(file, len(data)) as image, _pixels_at_once.spend(image.width * image.height):
        if image.format == "PNG":
            require_valid_png(file, len(data))
        elif image.format == "JPEG":
            _require_few_scans(data, pixels=image.width * image.height)
        turn = _turn(image, rule)
        sides = _sides(image, turn)
        file.seek(0)
        image.load()
        if size is None and not digested:
            return Decoded(np.empty((0, 0, sides[2]), np.uint8), b"", sides)
        array, shown = _shown(image, rule)
        digest = image_digest(array) if digested else b""
        if turn != 1:
            shown = _rotate(shown, turn)
        return Decoded(_fit(shown, sides, rule, size=size, channels=channels), digest, sides)


@contextmanager
def strict_warnings() -> Iterator[None]:
    """Turn warnings into errors, in all threads: `warnings` has one list of filters for the whole process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def _open_image(file: BinaryIO, length: int) -> Iterator[Image.Image]:
    """Open an image and check its header. Every error of Pillow becomes a Refusal."""
    from PIL import Image

    if length > limits.IMAGE_FILE_BYTES:
        raise Refusal(f"is larger than {limits.IMAGE_FILE_BYTES // limits.MIB} MiB.")
    kind = _detect_format(file)
    file.seek(0)
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


def _is_dicom(file: BinaryIO) -> bool:
    file.seek(128)
    return file.read(4) == b"DICM"


def _detect_format(file: BinaryIO) -> str:
    """Return the format by the first bytes. A WebP image with too many pixels is refused here: Pillow allocates all."""
    file.seek(0)
    start = file.read(30)
    if start.startswith(SIGNATURE):
        return "PNG"
    if start.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "TIFF"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        width, height = _webp_size(start)
        if width * height > limits.PIXELS:
            raise Refusal(_too_large())
        return "WEBP"
    known = next((kind for sign, kind in _UNREADABLE.items() if start.startswith(sign)), None)
    if start[4:8] == b"ftyp":
        known = "HEIF (HEIC, AVIF)"
    if known:
        raise Refusal(f"is a {known} file, which is not supported. Fix: save it as PNG or JPEG.")
    if not start:
        raise Refusal("is empty.")
    raise Refusal("is neither a PNG, JPEG, TIFF or WebP image nor a DICOM file, whatever its name.")


def _webp_size(start: bytes) -> tuple[int, int]:
    """Return width and height from the first 30 bytes of a WebP file, or (0, 0) if they are not there."""
    if len(start) < 30:
        return 0, 0
    if start[12:16] == b"VP8X":
        return int.from_bytes(start[24:27], "little") + 1, int.from_bytes(start[27:30], "little") + 1
    if start[12:16] == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(start[26:28], "little") & 0x3FFF, int.from_bytes(start[28:30], "little") & 0x3FFF


def _require_header(image: Image.Image) -> None:
    if image.width * image.height > limits.PIXELS:
        raise Refusal(_too_large())
    if image.width < 1 or image.height < 1:
        raise Refusal("has no pixels.")
    if _has_more_frames(image):
        raise Refusal("has more than one frame. Fix: save every frame as a separate image.")
    if image.mode not in _GREY_MODES + _COLOUR_MODES and not _is_deep(image):
        kind = "floating-point or 32-bit " if image.mode in ("F", "I") else ""
        raise Refusal(
            f"has {kind}pixels of mode {printable(image.mode)}. Fix: save it with 8 bits per channel or as 16-bit grey."
        )


def _has_more_frames(image: Image.Image) -> bool:
    if image.format != "TIFF":
        return bool(getattr(image, "n_frames", 1) > 1)
    try:
        image.seek(1)  # counting all of them could take minutes
    except EOFError:
        return False
    return True


def _is_deep(image: Image.Image) -> bool:
    """Return whether it is 16-bit grey. Pillow below 11 opened such a PNG with the mode "I"."""
    return image.mode in _DEEP_MODES or (image.mode == "I" and image.format == "PNG")


def _too_large() -> str:
    return f"has more than {limits.PIXELS:,} pixels. Fix: shrink it."


def _turn(image: Image.Image, rule: Rule) -> int:
    """Return the orientation in EXIF, from 1 to 8. Pillow applies that of a TIFF when it is loaded."""
    if rule.version < 2 or image.format == "TIFF":
        return 1
    from PIL import Image

    try:
        value = Image.Image.getexif(image).get(0x0112, 1)  # PngImageFile.getexif would decode the image
    except Exception:  # an image with damaged metadata is still readable
        return 1
    return value if type(value) is int and 1 <= value <= 8 else 1


def _rotate(image: Image.Image, turn: int) -> Image.Image:
    from PIL.Image import Transpose

    steps = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(steps[turn])


def _sides(image: Image.Image, turn: int) -> tuple[int, int, int]:
    depth = 1 if image.mode in _GREY_MODES or _is_deep(image) else 3
    height, width = (image.width, image.height) if turn >= 5 else (image.height, image.width)
    return height, width, depth


def _shown(image: Image.Image, rule: Rule) -> tuple[np.ndarray, Image.Image]:
    """Return the stored pixels without transparency, and the image as it is shown, in mode L or RGB."""
    from PIL import Image

    if _is_deep(image):
        deep = np.asarray(image).astype(np.uint16).reshape(image.height, image.width, 1)
        scaled = (deep[..., 0].astype(np.uint32) + 128) // 257
        return deep, Image.fromarray(scaled.astype(np.uint8))
    mode = "L" if image.mode in _GREY_MODES else "RGB"
    stored = _convert(image, mode)
    array = np.asarray(stored).reshape(stored.height, stored.width, -1)
    if rule.version < 2 or not (image.mode in ("LA", "RGBA") or "transparency" in image.info):
        return array, stored
    alpha = image.convert("LA" if mode == "L" else "RGBA").getchannel("A")
    return array, Image.composite(stored, Image.new(mode, stored.size, (_WHITE,) * len(stored.getbands())), alpha)


def _fit(
    image: Image.Image, sides: tuple[int, int, int], rule: Rule, *, size: tuple[int, int] | None, channels: int | None
) -> np.ndarray:
    """Return (H, W, C) of an image in mode L or RGB, with the size and channels that are wanted."""
    from PIL import Image

    height, width, depth = sides
    if size is None:
        return np.empty((0, 0, depth), np.uint8)
    channels = channels or depth
    image = _convert(image, "L" if channels == 1 else "RGB")
    if (height, width) != size:
        box = (0.0, 0.0, float(width), float(height))
        if rule.version >= 2:
            # The largest centred box with the wanted aspect ratio: the whole image if that is its own.
            box_height, box_width = min(height, width * size[0] / size[1]), min(width, height * size[1] / size[0])
            top, left = (height - box_height) / 2, (width - box_width) / 2
            box = (left, top, left + box_width, top + box_height)
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image).reshape(*size, channels)


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
            raise Refusal("has more than one frame. Fix: save every frame as a separate image.")
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


def _require_few_scans(data: bytes, *, pixels: int) -> None:
    """Refuse a JPEG with many scans: each costs a pass over all pixels, however few bytes it has."""
    scans = data.count(b"\xff\xda")
    if scans > limits.JPEG_SCANS and scans * pixels > limits.JPEG_SCAN_PIXELS:
        raise Refusal(f"has {scans:,} scans; an ordinary progressive JPEG has about 10.")


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode:
        return image
    # Pillow requires transparency in a palette to be made explicit before it is dropped.
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def read_file(file: BinaryIO) -> bytes:
    """Return all bytes of an image file; a file above the limit is refused before it is read."""
    if file_length(file) > limits.IMAGE_FILE_BYTES:
        raise Refusal(f"is larger than {limits.IMAGE_FILE_BYTES // limits.MIB} MiB.")
    return file.read()
