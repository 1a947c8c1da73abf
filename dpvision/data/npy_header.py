"""Reads and writes the header of a .npy array; the header of an untrusted file decides nothing before it is proved."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpvision.data import limits
from dpvision.data.refusal import Refusal, shown

_MAGIC = b"\x93NUMPY"
_NUMBER = re.compile(r"[<>|=]?(?:[iu][1248]|f[248]|b1)")
_TEXT = re.compile(r"[<>|=]?[US][1-9][0-9]{0,2}")
_LITERAL = re.compile(r"[A-Za-z0-9_'\"{}()\[\],.:<>|=+\- \n]*")
_WRITTEN_BYTES = 128


def parse_header(read: Callable[[int], bytes | bytearray], total: int) -> ArrayHeader:
    """The header of an array that takes `total` bytes in all; `read(n)` gives exactly n bytes or refuses.

    The size that the shape asks for must be the size that is there, so nothing is allocated for a lie.
    """
    start = bytes(read(8))
    if start[:6] != _MAGIC:
        raise Refusal("is not a .npy array.")
    version = start[6], start[7]
    if version not in {(1, 0), (2, 0), (3, 0)}:
        raise Refusal(f"is a .npy array of unknown version {version[0]}.{version[1]}.")
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(read(width), "little")
    if length > limits.NPY_HEADER_BYTES:
        raise Refusal(f"has a header of {length:,} bytes; {limits.NPY_HEADER_BYTES:,} are allowed.")
    shape, dtype, fortran = _fields(bytes(read(length)))
    header = ArrayHeader(shape=shape, dtype=dtype, fortran=fortran, offset=8 + width + length)
    if header.offset + header.bytes != total:
        raise Refusal(
            f"promises shape {shape} of {dtype}, which takes {header.bytes:,} bytes, "
            f"but {total - header.offset:,} are there. The file is cut short or was tampered with."
        )
    return header


def written_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """A header of always the same length, so that it can be written again when the length is known."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {tuple(int(n) for n in shape)}, }}"
    body = text.encode("ascii").ljust(_WRITTEN_BYTES - 11) + b"\n"
    return _MAGIC + b"\x01\x00" + len(body).to_bytes(2, "little") + body


def _fields(raw: bytes) -> tuple[tuple[int, ...], np.dtype, bool]:
    text = raw.decode("latin1")
    # A narrow alphabet keeps escapes and exotic literals away from the parser.
    if not _LITERAL.fullmatch(text):
        raise Refusal("has a malformed header.")
    try:
        fields = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, Warning):
        raise Refusal("has a malformed header.") from None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise Refusal("has a malformed header.")
    shape, fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or len(shape) > 8 or any(type(n) is not int or not 0 <= n < 2**62 for n in shape):
        raise Refusal("has a malformed shape in its header.")
    if type(fortran) is not bool:
        raise Refusal("has a malformed header.")
    return shape, _dtype(fields["descr"]), fortran


def _dtype(descr: object) -> np.dtype:
    if isinstance(descr, str) and descr.lstrip("|<>=").startswith("O"):
        raise Refusal(
            "holds pickled Python objects, which can run code when read; dpvision never reads them. "
            "Fix: save it as a plain array of numbers."
        )
    if not isinstance(descr, str) or not (_NUMBER.fullmatch(descr) or _TEXT.fullmatch(descr)):
        raise Refusal(f"has the element type {shown(str(descr)[:60])}, which is not a plain number or text.")
    return np.dtype(descr)


@dataclass(frozen=True)
class ArrayHeader:
    """What a .npy header says, after it was found to be true."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int
    """Bytes before the first element."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize
