"""Hostile image files: one of them among good images, in a folder or alone."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from builders import good_arrays, png, png_chunk, png_header, save_folder
from hostile_case import Case, pickle_payload, python_payload
from PIL import Image

BAD = "train/1/bad.png"


def among(data: bytes | Callable[[Path], bytes], *, name: str = BAD) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        root = save_folder(folder / "set", {k: v for k, v in good_arrays().items() if k.startswith("train")})
        (root / name).write_bytes(data if isinstance(data, bytes) else data(folder))
        return root

    return build


def alone(data: bytes) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        (folder / "bad.png").write_bytes(data)
        return folder / "bad.png"

    return build


def case(name: str, data: bytes | Callable[[Path], bytes], **more: object) -> Case:
    return Case(name, among(data), blames=f"set/{BAD}", options={"size": 6}, **more)  # type: ignore[arg-type]


def encoded(kind: str, *, side: int = 24, mode: str = "RGB", **how: object) -> bytes:
    draw = np.random.default_rng(2)
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    out = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(out, kind, **how)
    return out.getvalue()


def damaged() -> Iterator[Case]:
    good = encoded("PNG")
    draw = np.random.default_rng(7)
    for cut in [0, 1, 7, 8, 12, 16, 24, 32, 33, 34, *draw.integers(35, len(good), 25).tolist(), len(good) - 1]:
        yield case(f"png-cut-{cut}", good[:cut])
    for number, place in enumerate([*range(0, 33, 2), *draw.integers(33, len(good), 45).tolist()]):
        hurt = bytearray(good)
        hurt[place] ^= 1 << int(draw.integers(8))
        yield case(f"png-flip-{number}-{place}", bytes(hurt))
    for progressive in (False, True):
        good, kind = encoded("JPEG", progressive=progressive), "progressive" if progressive else "baseline"
        for cut in [0, 1, 2, 3, 10, 20, *draw.integers(20, len(good), 18).tolist(), len(good) - 2, len(good) - 1]:
            yield case(f"jpeg-cut-{kind}-{cut}", good[:cut])
        for number, place in enumerate([*range(0, 30, 2), *draw.integers(30, len(good), 45).tolist()]):
            hurt = bytearray(good)
            hurt[place] ^= 1 << int(draw.integers(8))
            yield case(f"jpeg-flip-{kind}-{number}-{place}", bytes(hurt), want="valid")


def png_tricks() -> Iterator[Case]:
    rows = b"".join(b"\0" + bytes(range(6)) for _ in range(6))
    data = png_chunk(b"IDAT", zlib.compress(rows))
    head = png_header(6, 6)
    yield case("png-good", png(head, data), want="valid")
    bomb = png_chunk(b"IDAT", zlib.compress(bytes(2**25), 9))
    for width, height in (
        (2**16, 2**16),
        (2**31 - 1, 2**31 - 1),
        (2**31, 2**31),
        (5000, 5000),
        (9500, 9500),
        (20000, 20000),
        (1, 2**30),
        (2**30, 1),
        (0, 6),
        (6, 0),
        (0, 0),
        (2**32 - 1, 1),
        (4097, 4096),
        (1, 2**24 + 1),
    ):
        yield case(f"png-size-{width}x{height}", png(png_header(width, height), bomb))
        yield Case(f"png-alone-{width}x{height}", alone(png(png_header(width, height), bomb)), verb="image_batches")
    for depth, colour, interlace in (
        (3, 0, 0),
        (0, 0, 0),
        (255, 0, 0),
        (8, 1, 0),
        (8, 5, 0),
        (8, 7, 0),
        (16, 3, 0),
        (1, 2, 0),
        (4, 6, 0),
        (16, 0, 0),
    ):
        yield case(f"png-kind-{depth}-{colour}-{interlace}", png(png_header(6, 6, depth=depth, colour=colour), data))
    yield case("png-no-palette", png(png_header(6, 6, colour=3), data), want="valid")
    yield case("png-interlace-9", png(png_header(6, 6, interlace=9), data), want="valid")
    short = png_chunk(b"IDAT", zlib.compress(rows[:20]))
    for name, chunks in {
        "no-data": (head,),
        "empty-data": (head, png_chunk(b"IDAT")),
        "short-data": (head, short),
        "raw-data": (head, png_chunk(b"IDAT", rows)),
        "bad-filter": (head, png_chunk(b"IDAT", zlib.compress(b"\x09" * 42))),
        "no-header": (data,),
        "data-first": (data, head),
        "short-header": (png_chunk(b"IHDR", b"\0\0\0\6"), data),
        "long-header": (png_chunk(b"IHDR", bytes(3000)), data),
        "wrong-crc": (head, png_chunk(b"IDAT", zlib.compress(rows), crc=1)),
        "length-2GiB": (head, png_chunk(b"IDAT", zlib.compress(rows), length=2**31 - 1)),
        "length-4GiB": (head, png_chunk(b"IDAT", zlib.compress(rows), length=2**32 - 1)),
        "animated": (head, png_chunk(b"acTL", struct.pack(">2L", 2, 0)), data),
        "animated-a-million": (head, png_chunk(b"acTL", struct.pack(">2L", 10**6, 0)), data),
        "animated-broken": (head, png_chunk(b"acTL", b"\0"), data),
        "animated-late": (head, data, png_chunk(b"acTL", bytes(8))),
        "unknown-critical": (head, png_chunk(b"\xff\xff\xff\xff"), data),
        "many-chunks": (head, *[png_chunk(b"vpAg")] * 70_000, data),
        "wrong-checksum": (head, png_chunk(b"IDAT", zlib.compress(rows)[:-1] + b"!")),
    }.items():
        yield case(f"png-{name}", png(*chunks))
    squeezed = zlib.compress(bytes(2**26), 9)
    for name, chunk in {
        "ztxt-bomb": png_chunk(b"zTXt", b"a\0\0" + squeezed),
        "itxt-bomb": png_chunk(b"iTXt", b"a\0\1\0\0\0" + squeezed),
        "iccp-bomb": png_chunk(b"iCCP", b"a\0\0" + squeezed),
        "many-ztxt": png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**20 - 9), 9)) * 200,
    }.items():
        yield case(f"png-{name}", png(head, chunk, data), want="valid")
    yield case("png-data-bomb", png(head, bomb), want="valid")
    yield case("png-cut-tail", png(head, data)[:-12])
    for size in (0, 1, 2, 769, 3000):
        palette = png_chunk(b"PLTE", bytes(size))
        yield case(f"png-palette-{size}", png(png_header(6, 6, colour=3), palette, data), want="valid")


def jpeg_tricks() -> Iterator[Case]:
    good = encoded("JPEG", side=16)
    frame = good.index(b"\xff\xc0")
    for height, width in ((65535, 65535), (0, 16), (16, 0), (0, 0), (5000, 5000), (65500, 300)):
        hurt = good[: frame + 5] + struct.pack(">2H", height, width) + good[frame + 9 :]
        yield case(f"jpeg-size-{height}x{width}", hurt)
    for parts in (0, 2, 5, 255):
        yield case(f"jpeg-components-{parts}", good[: frame + 9] + bytes([parts]) + good[frame + 10 :], want="valid")
    yield case("jpeg-12-bit", good[: frame + 4] + b"\x0c" + good[frame + 5 :])
    yield case("jpeg-arithmetic", good.replace(b"\xff\xc0", b"\xff\xc9", 1), want="valid")
    yield case("jpeg-lossless", good.replace(b"\xff\xc0", b"\xff\xc3", 1))
    slow = encoded("JPEG", side=2048, mode="L", progressive=True, quality=1)
    scan = slow.rindex(b"\xff\xda")
    yield case("jpeg-many-scans", slow[:-2] + slow[scan:-2] * 60 + b"\xff\xd9")
    profile = b"\xff\xe2\xff\xffICC_PROFILE\0" + b"\1\xff" + bytes(65519)
    yield case("jpeg-many-profiles", good[:2] + profile * 300 + good[2:], want="valid")
    exif = b"\xff\xe1" + struct.pack(">H", 2 + 6 + 14) + b"Exif\0\0" + b"II*\0\xff\xff\xff\x7f" + bytes(6)
    yield case("jpeg-wild-exif", good[:2] + exif + good[2:], want="valid")
    frames = io.BytesIO()
    Image.new("RGB", (6, 6)).save(frames, "MPO", save_all=True, append_images=[Image.new("RGB", (6, 6), (9, 9, 9))])
    yield case("jpeg-two-frames", frames.getvalue())


def mislabelled() -> Iterator[Case]:
    for kind in ("GIF", "BMP", "PPM", "ICO", "TGA", "PCX", "SGI", "DDS", "JPEG2000", "EPS", "PDF"):
        try:
            data = encoded(kind, side=6)
        except (KeyError, OSError):
            continue
        yield case(f"named-png-{kind}", data)
    for name, data in {
        "text": b"hello",
        "empty": b"",
        "space": b" ",
        "html": b"<html><script>",
        "svg": b"<svg onload='x()'/>",
        "elf": b"\x7fELF" + bytes(99),
        "zip": b"PK\3\4" + bytes(99),
        "signature": b"\x89PNG\r\n\x1a\n",
        "mng": b"\x8aMNG\r\n\x1a\n",
        "jpeg-start": b"\xff\xd8\xff",
        "jpeg-ends": b"\xff\xd8\xff\xd9",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n(x) run",
        "pbm": b"P1\n99999 99999\n",
        "zeros": bytes(10**6),
        "fli": b"\0\0\0\0\x12\xaf" + bytes(200),
    }.items():
        yield case(f"named-png-{name}", data)
    yield case("named-png-pickle", pickle_payload)
    yield case("named-png-python", python_payload)
    for suffix in ("gif", "txt", "npy", "npz", "py", "pkl", "png.exe", "PNG ", "svg"):
        name = f"train/1/bad.{suffix}"
        yield Case(f"suffix-{suffix}", among(encoded("PNG", side=6), name=name), blames=f"set/{name}")


def cases() -> Iterator[Case]:
    for group in (damaged, png_tricks, jpeg_tricks, mislabelled):
        yield from group()
