"""The two formats of an untrusted .npz file: .npy arrays, and the zip archive that contains them.

A header is checked before it is used, and anything in the archive that numpy would not write is refused. zipfile is not
used: it builds its whole directory before a limit can be applied, allows members that overlap, and trusts the sizes in
the directory.
"""

from __future__ import annotations

import ast
import math
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

import numpy as np

from dpvision.data import limits
from dpvision.data.files import Refusal, printable

_MAGIC = b"\x93NUMPY"
_NUMBER = re.compile(r"[<>|=]?(?:[iu][1248]|f[248]|b1)")
_TEXT = re.compile(r"[<>|=]?[US][1-9][0-9]{0,2}")
_LITERAL = re.compile(r"[A-Za-z0-9_'\"{}()\[\],.:<>|=+\- \n]*")
_HEADER_BYTES = 128

_END = struct.Struct("<4s4H2LH")
_END_LOCATOR = struct.Struct("<4sLQL")
_END_WIDE = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL = 0xFFFFFFFF
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}\.npy")
_STORED, _DEFLATED = 0, 8
_PIECE = 64 * limits.KIB


def parse_header(read: Callable[[int], bytes | bytearray], total: int) -> ArrayHeader:
    """Return the header of an array of `total` bytes, header included; `read(n)` returns exactly n bytes or refuses.

    The size that the shape requires must be the size of what is present, so a false header allocates nothing.
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
        raise Refusal(f"has a header of {length:,} bytes; at most {limits.NPY_HEADER_BYTES:,} are allowed.")
    shape, dtype, fortran = _parse_fields(bytes(read(length)))
    header = ArrayHeader(shape=shape, dtype=dtype, fortran=fortran, offset=8 + width + length)
    if header.offset + header.bytes != total:
        raise Refusal(
            f"declares shape {shape} of {dtype}, which takes {header.bytes:,} bytes, "
            f"but {total - header.offset:,} are present. The file is truncated or was manipulated."
        )
    return header


def format_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Return a header of constant length, which can be overwritten when the number of records is known."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {tuple(int(n) for n in shape)}, }}"
    body = text.encode("ascii").ljust(_HEADER_BYTES - 11) + b"\n"
    return _MAGIC + b"\x01\x00" + len(body).to_bytes(2, "little") + body


def _parse_fields(raw: bytes) -> tuple[tuple[int, ...], np.dtype, bool]:
    text = raw.decode("latin1")
    # A small alphabet keeps escapes and unusual literals away from the parser.
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
    return shape, _parse_dtype(fields["descr"]), fortran


def _parse_dtype(descr: object) -> np.dtype:
    if isinstance(descr, str) and descr.lstrip("|<>=").startswith("O"):
        raise Refusal(
            "contains pickled Python objects, which can run code when read; dpvision never reads them. "
            "Fix: save it as a plain array of numbers."
        )
    if not isinstance(descr, str) or not (_NUMBER.fullmatch(descr) or _TEXT.fullmatch(descr)):
        raise Refusal(f"has the element type {printable(str(descr)[:60])}, which is not a plain number or text.")
    return np.dtype(descr)


def list_members(file: BinaryIO, length: int) -> dict[str, Member]:
    """Return the members by name without ".npy". Their bytes must be inside the file and must not overlap."""
    count, size, start = _find_directory(file, length)
    if count > limits.ZIP_MEMBERS or size > limits.ZIP_DIRECTORY_BYTES:
        raise Refusal(f"has {count:,} members; an .npz file of images has at most {limits.ZIP_MEMBERS}.")
    directory = _read_at(file, start, size)
    members: dict[str, Member] = {}
    taken: list[tuple[int, int]] = [(start, length)]
    position = 0
    for _ in range(count):
        member, local, position = _parse_entry(file, directory, position)
        key = member.name.removesuffix(".npy")
        if key in members:
            raise Refusal(f"has two members named {member.name}.")
        members[key] = member
        taken.append((local, member.start + member.packed))
    if position != size:
        raise Refusal("has a directory with bytes that do not belong to a member.")
    taken.sort()
    for (_, end), (begin, _) in pairwise(taken):
        if end > begin:
            raise Refusal("has members that overlap each other.")
    return members


def _find_directory(file: BinaryIO, length: int) -> tuple[int, int, int]:
    """Return the number of entries of the directory, its length in bytes and its start."""
    if length < _END.size:
        raise Refusal("is not an .npz file: it is too short.")
    end = length - _END.size
    sign, disk, first, here, count, size, start, note = _END.unpack(_read_at(file, end, _END.size))
    if sign != b"PK\5\6":
        raise Refusal("is not an .npz file, or is truncated: it does not end with the directory of a zip archive.")
    wide = end - _END_LOCATOR.size - _END_WIDE.size
    if wide >= 0:
        sign, _, place, _ = _END_LOCATOR.unpack(_read_at(file, end - _END_LOCATOR.size, _END_LOCATOR.size))
        if sign == b"PK\6\7" and place == wide:
            fields = _END_WIDE.unpack(_read_at(file, wide, _END_WIDE.size))
            sign, _, _, _, disk, first, here, count, size, start = fields
            end = wide
            if sign != b"PK\6\6":
                raise Refusal("has a malformed zip directory.")
    if note or disk or first or here != count or start + size != end:
        raise Refusal("has a malformed zip directory.")
    return count, size, start


def _parse_entry(file: BinaryIO, directory: bytes, position: int) -> tuple[Member, int, int]:
    """Return an entry of the directory, the start of its local header, and the start of the next entry."""
    if position + _ENTRY.size > len(directory):
        raise Refusal("has a truncated zip directory.")
    fields = _ENTRY.unpack_from(directory, position)
    sign, _, _, flags, method, _, _, crc, packed, size, name_len, extra_len, note_len, _, _, _, local = fields
    position += _ENTRY.size
    stop = position + name_len + extra_len + note_len
    if sign != b"PK\1\2" or stop > len(directory):
        raise Refusal("has a malformed zip directory.")
    raw_name = directory[position : position + name_len]
    name = raw_name.decode("ascii", "backslashreplace")
    if not _NAME.fullmatch(name) or ".." in name:
        raise Refusal(f"has a member named {printable(name)!r}; the members of an .npz file are plain names with .npy.")
    if flags & 0x2061 or method not in (_STORED, _DEFLATED):
        raise Refusal(f"has the member {name} in an encrypted or unknown form. Fix: write it with numpy.savez.")
    extra = directory[position + name_len : position + name_len + extra_len]
    size, packed, local = _wide_fields(extra, size, packed, local)
    head = _LOCAL.unpack(_read_at(file, local, _LOCAL.size))
    if head[0] != b"PK\3\4" or head[3] != method or head[9] != name_len:
        raise Refusal(f"has the member {name} whose header contradicts the directory.")
    if _read_at(file, local + _LOCAL.size, name_len) != raw_name:
        raise Refusal(f"has the member {name} whose name differs from that in the directory.")
    if method == _STORED and size != packed:
        raise Refusal(f"has the member {name} with two different sizes.")
    start = local + _LOCAL.size + name_len + head[10]
    member = Member(name=name, deflated=method == _DEFLATED, crc=crc, packed=packed, size=size, start=start)
    return member, local, stop


def _wide_fields(extra: bytes, size: int, packed: int, local: int) -> tuple[int, int, int]:
    """Return the 64-bit values of fields that are 0xFFFFFFFF (zip64)."""
    position = 0
    while position + 4 <= len(extra):
        kind, count = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + count]
        position += 4 + count
        if kind != 1:
            continue
        values = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
        size = next(values, _FULL) if size == _FULL else size
        packed = next(values, _FULL) if packed == _FULL else packed
        local = next(values, _FULL) if local == _FULL else local
        break
    return size, packed, local


def _read_at(file: BinaryIO, position: int, count: int) -> bytes:
    if position > 2**62:
        raise Refusal("has a malformed zip directory.")
    file.seek(position)
    return read_exactly(file, count)


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes; refuse a file that has fewer."""
    data = file.read(count)
    if len(data) != count:
        raise Refusal("is truncated.")
    return data


@dataclass(frozen=True)
class ArrayHeader:
    """The fields of a .npy header, after they were checked."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int
    """Bytes before the first element."""

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Member:
    """One array in the archive, and the position of its bytes."""

    name: str
    deflated: bool
    crc: int
    packed: int
    size: int
    start: int


class MemberStream:
    """The bytes of one member in order; no more than was requested is ever decompressed."""

    def __init__(self, file: BinaryIO, member: Member) -> None:
        self._file, self._member = file, member
        self._remaining, self._crc = member.packed, 0
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if member.deflated else None
        file.seek(member.start)

    def read(self, count: int) -> bytearray:
        """Return exactly `count` bytes."""
        out = bytearray()
        while len(out) < count:
            piece = self._read_piece(count - len(out))
            if not piece:
                raise Refusal(f"has the truncated member {self._member.name}.")
            out += piece
        self._crc = zlib.crc32(out, self._crc)
        return out

    def finish(self) -> None:
        """Refuse a member that does not end here, or whose checksum is wrong."""
        inflate = self._inflate
        excess = self._read_piece(1) or self._remaining
        if excess or (inflate is not None and (inflate.unused_data or not inflate.eof)):
            raise Refusal(f"has the member {self._member.name} with a length that differs from the directory.")
        if self._crc != self._member.crc:
            raise Refusal(f"has the member {self._member.name} with a wrong checksum: the file is damaged.")

    def _read_piece(self, most: int) -> bytes:
        if self._inflate is None:
            return self._read_raw(min(most, 4 * limits.MIB))
        while not self._inflate.eof:
            data = self._inflate.unconsumed_tail or self._read_raw(_PIECE)
            try:
                piece = self._inflate.decompress(data, most)
            except zlib.error:
                raise Refusal(f"has the member {self._member.name} with damaged compression.") from None
            if piece or not data:
                return piece
        return b""

    def _read_raw(self, most: int) -> bytes:
        data = self._file.read(min(most, self._remaining))
        self._remaining -= len(data)
        return data
