"""Walks the chunks of a PNG file: Pillow does not compare the check sums of the pixels, so damage would pass."""

from __future__ import annotations

import zlib
from typing import BinaryIO

from dpvision.data import limits
from dpvision.data.refusal import Refusal

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_BLOCK = 1 * limits.MIB


def check_chunks(file: BinaryIO, length: int) -> None:
    """Refuses a PNG that is cut short, damaged, or has more than one frame."""
    position = len(SIGNATURE)
    for _ in range(limits.PNG_CHUNKS):
        file.seek(position)
        head = file.read(8)
        count, kind = int.from_bytes(head[:4], "big"), head[4:]
        position += 12 + count
        if len(head) < 8 or position > length:
            raise Refusal("is cut short.")
        if kind == b"acTL":
            raise Refusal("has more than one frame. Fix: save every frame as an image of its own.")
        if _check_sum(file, kind, count) != int.from_bytes(file.read(4), "big"):
            raise Refusal("is damaged: a check sum is wrong.")
        if kind == b"IEND":
            return
    raise Refusal(f"has more than {limits.PNG_CHUNKS:,} chunks.")


def _check_sum(file: BinaryIO, kind: bytes, count: int) -> int:
    crc = zlib.crc32(kind)
    while count > 0:
        data = file.read(min(count, _BLOCK))
        if not data:
            raise Refusal("is cut short.")
        crc = zlib.crc32(data, crc)
        count -= len(data)
    return crc
