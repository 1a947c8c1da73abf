"""Reads one untrusted DICOM file with pydicom (`pip install 'dpvision[dicom]'`).

A window maps values to grey levels: centre - width/2 and below become 0, centre + width/2 and above become 255, and
values between them are scaled linearly and rounded. Values are those after the rescale slope and intercept. The window
is public: the one that is given; by default centre 40 and width 400 for CT (soft tissue, in Hounsfield units), and the
range of the stored bits for any other modality. Windows in the file are ignored. MONOCHROME1 is inverted.

The patient id identifies the person. Only a digest of it leaves this module, and messages quote no text from a file,
not even pydicom's own error messages.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvision.data import limits
from dpvision.data.files import PassingRefusal, Refusal

if TYPE_CHECKING:
    from PIL import Image

CT_WINDOW = (40.0, 400.0)
_MISSING = "is a DICOM file, and pydicom is not installed. Fix: run pip install 'dpvision[dicom]'"
_GREY = ("MONOCHROME1", "MONOCHROME2")
_COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_DEFLATED = "1.2.840.10008.1.2.1.99"
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_SHAPE = ("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames", "PhotometricInterpretation", "BitsStored")
_PIXELS = (
    *_SHAPE,
    *("BitsAllocated", "HighBit", "PixelRepresentation", "PlanarConfiguration", "Modality", "PatientID"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("ExtendedOffsetTable", "ExtendedOffsetTableLengths", "PixelData", "FloatPixelData", "DoubleFloatPixelData"),
)


def measure(data: bytes) -> tuple[int, int, int]:
    """Return (height, width, channels) from the header alone."""
    with _quoting_nothing():
        header = _read(data, _SHAPE, pixels=False)
        return int(header.Rows), int(header.Columns), _channels(header)


def decode(data: bytes, window: tuple[float, float] | None) -> tuple[np.ndarray, Image.Image, str | None]:
    """Return the stored pixels (H, W, C), the image as it is shown, and a digest of the patient id if there is one."""
    with _quoting_nothing():
        return _decode(_read(data, _PIXELS, pixels=True), window)


def _decode(header: Any, window: tuple[float, float] | None) -> tuple[np.ndarray, Image.Image, str | None]:
    from PIL import Image

    pixels = _decode_pixels(header)
    height, width, channels = int(header.Rows), int(header.Columns), _channels(header)
    if pixels.size != height * width * channels:
        raise Refusal("has a different number of pixels than its header declares.")
    stored = np.ascontiguousarray(pixels).reshape(height, width, channels)
    if channels == 3:
        if stored.dtype != np.uint8:
            raise Refusal("has colours with more than 8 bits per channel. Fix: save it with 8 bits.")
        shown = stored
    else:
        shown = _grey_levels(stored, header, window)
    return stored, Image.fromarray(shown if channels == 3 else shown[..., 0]), _person(header)


def _grey_levels(stored: np.ndarray, header: Any, window: tuple[float, float] | None) -> np.ndarray:
    slope, intercept = _number(header, "RescaleSlope", 1.0), _number(header, "RescaleIntercept", 0.0)
    if window is None and _text(header, "Modality") == "CT":
        window = CT_WINDOW
    if window is None:
        bits, signed = int(header.BitsStored), stored.dtype.kind == "i"
        values = stored.astype(np.float64)
        low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)
    else:
        values = stored * slope + intercept
        low, high = window[0] - window[1] / 2, window[0] + window[1] / 2
    levels = np.rint(np.clip((values - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    return 255 - levels if _text(header, "PhotometricInterpretation") == "MONOCHROME1" else levels


def _read(data: bytes, tags: tuple[str, ...], *, pixels: bool) -> Any:
    """Return the header, and the undecoded pixels if they are wanted, of a file with one frame and a plausible size."""
    try:
        import pydicom
        from pydicom import config
    except ImportError:
        raise PassingRefusal(_MISSING) from None
    if len(data) > limits.IMAGE_FILE_BYTES:
        raise Refusal(f"is larger than {limits.IMAGE_FILE_BYTES // limits.MIB} MiB.")
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)  # it prints values of a file
    config.settings.reading_validation_mode = config.IGNORE
    syntax = _transfer_syntax(data)
    if syntax == _DEFLATED:
        raise Refusal("is deflated as a whole. Fix: write it without compression, such as with `dcmconv`.")
    header = pydicom.dcmread(io.BytesIO(data), stop_before_pixels=not pixels, specific_tags=list(tags))
    _require_header(header)
    return header


@contextmanager
def _quoting_nothing() -> Iterator[None]:
    """Turn every error of pydicom into a Refusal without its text. Values are parsed late, so it can come anywhere."""
    try:
        yield
    except (Refusal, MemoryError):
        raise
    except Exception as exc:
        raise Refusal(f"is a damaged DICOM file ({type(exc).__name__}).") from None


def _decode_pixels(header: Any) -> np.ndarray:
    from pydicom.pixels import get_decoder, pixel_array

    try:
        syntax = header.file_meta.TransferSyntaxUID
        available = not syntax.is_compressed or get_decoder(syntax).is_available
    except Exception:
        available = False
    if not available:
        raise Refusal(
            "is compressed in a way that cannot be decoded here. Fix: decompress it, such as with `gdcmconv`."
        )
    if "FloatPixelData" in header or "DoubleFloatPixelData" in header:
        raise Refusal("has floating-point pixels. Fix: save it with 16 bits.")
    if "PixelData" not in header:
        raise Refusal("has no pixels.")
    try:
        return np.asarray(pixel_array(header))
    except MemoryError:
        raise
    except Exception as exc:
        raise Refusal(f"has pixels that cannot be decoded ({type(exc).__name__}).") from None


def _require_header(header: Any) -> None:
    frames = _text(header, "NumberOfFrames") or "1"
    if frames != "1":
        raise Refusal("has more than one frame. Fix: save every frame as a separate file.")
    height, width = int(header.Rows), int(header.Columns)
    if height < 1 or width < 1:
        raise Refusal("has no pixels.")
    if height * width > limits.PIXELS:
        raise Refusal(f"has more than {limits.PIXELS:,} pixels. Fix: shrink it.")
    kind = _text(header, "PhotometricInterpretation")
    if (int(header.SamplesPerPixel), kind in _GREY, kind in _COLOUR) not in ((1, True, False), (3, False, True)):
        raise Refusal(
            "is neither grey (MONOCHROME1, MONOCHROME2) nor RGB or YBR colour. Fix: convert it, such as with `dcm2pnm`."
        )
    if not 1 <= int(header.BitsStored) <= 32:
        raise Refusal("has an impossible number of stored bits.")
    if "ModalityLUTSequence" in header:
        raise Refusal("has a Modality LUT, which is not applied. Fix: save it as PNG.")


def _channels(header: Any) -> int:
    return int(header.SamplesPerPixel)


def _number(header: Any, name: str, usual: float) -> float:
    try:
        value = usual if header.get(name) in (None, "") else float(header.get(name))
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value) or (name == "RescaleSlope" and value == 0):
        raise Refusal(f"has a {name} that is not a usable number.")
    return value


def _text(header: Any, name: str) -> str:
    value = header.get(name)
    return "" if value is None else str(value).strip()


def _person(header: Any) -> str | None:
    name = _text(header, "PatientID")
    return (
        blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16, person=b"patient").hexdigest() if name else None
    )


def _transfer_syntax(data: bytes) -> str:
    """Return the transfer syntax from the meta information, which is always uncompressed and little endian."""
    position = 132
    while position + 8 <= len(data) and data[position : position + 2] == b"\x02\x00":
        element, kind = data[position + 2 : position + 4], data[position + 4 : position + 6]
        if kind in _LONG:
            length, start = int.from_bytes(data[position + 8 : position + 12], "little"), position + 12
        else:
            length, start = int.from_bytes(data[position + 6 : position + 8], "little"), position + 8
        if element == b"\x10\x00":
            return data[start : start + length].rstrip(b"\0 ").decode("ascii", "replace")
        position = start + length
    return ""
