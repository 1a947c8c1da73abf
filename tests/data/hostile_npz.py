"""Hostile .npz files: damaged, lying, exploding and executing archives."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from builders import good_arrays
from hostile_case import Case, pickle_payload, python_payload

Entry = dict[str, object]


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def npy_raw(header: bytes, data: bytes = b"", *, version: bytes = b"\1\0", length: int | None = None) -> bytes:
    width = 2 if version == b"\1\0" else 4
    return (
        b"\x93NUMPY" + version + (len(header) if length is None else length).to_bytes(width, "little") + header + data
    )


def entry(name: bytes, data: bytes, **lies: object) -> Entry:
    """A zip member; `lies` replace what its headers would truthfully say."""
    return {"name": name, "data": data, **lies}


def archive(*entries: Entry, tail: bytes = b"", head: bytes = b"", **lies: int) -> bytes:
    """A zip archive that may lie in every field."""
    out, directory, starts = bytearray(head), bytearray(), {}
    for item in entries:
        data = item["data"]
        assert isinstance(data, bytes)
        packed = data
        if item.get("deflate"):
            squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = squeeze.compress(data) + squeeze.flush()
        packed = item.get("packed", packed)  # type: ignore[assignment]
        method = item.get("method", 8 if item.get("deflate") else 0)
        name = item["name"]
        assert isinstance(name, bytes)
        local_name = item.get("local_name", name)
        assert isinstance(local_name, bytes)
        crc, flags = item.get("crc", zlib.crc32(data)), item.get("flags", 0)
        size, small = item.get("size", len(data)), item.get("packed_size", len(packed))
        start = item.get("start", len(out))
        starts[name] = start
        extra = item.get("extra", b"")
        assert isinstance(extra, bytes)
        if "same_as" not in item:
            sign = item.get("local_sign", b"PK\3\4")
            fields = (sign, 20, flags, item.get("local_method", method), 0, 33, crc, 0, 0, len(local_name), 0)
            out += struct.pack("<4s5H3L2H", *fields) + local_name + packed
        else:
            start = item.get("start", starts[item["same_as"]])
        directory += struct.pack(
            "<4s6H3L5H2L", item.get("sign", b"PK\1\2"), 20, 20, flags, method, 0, 33, crc, small, size,
            len(name), len(extra), 0, 0, 0, 0, start,
        ) + name + extra  # fmt: skip
    count = lies.get("count", len(entries))
    end = (lies.get("disk", 0), 0, count, count, lies.get("size", len(directory)), lies.get("start", len(out)))
    return bytes(out) + directory + struct.pack("<4s4H2LH", b"PK\5\6", *end, lies.get("note", 0)) + tail


def parts(**changed: bytes) -> dict[str, bytes]:
    members = {key: npy(array) for key, array in good_arrays().items()}
    return {**members, **changed}


def whole(deflate: bool = False, **changed: bytes) -> bytes:
    return archive(*(entry(f"{key}.npy".encode(), data, deflate=deflate) for key, data in parts(**changed).items()))


def with_entry(name: bytes, data: bytes, **lies: object) -> bytes:
    members = [entry(f"{key}.npy".encode(), value) for key, value in parts().items() if f"{key}.npy".encode() != name]
    return archive(*members, entry(name, data, **lies))


def write(data: bytes | Callable[[Path], bytes]) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / "data.npz"
        path.write_bytes(data if isinstance(data, bytes) else data(folder))
        return path

    return build


def saved(compressed: bool) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **good_arrays())
    return out.getvalue()


def damaged() -> Iterator[Case]:
    for compressed in (False, True):
        good, kind = saved(compressed), "deflated" if compressed else "stored"
        yield Case(f"npz-good-{kind}", write(good), want="same")
        for cut in np.linspace(0, len(good) - 1, 45).astype(int).tolist():
            yield Case(f"npz-cut-{kind}-{cut}", write(good[:cut]))
        draw = np.random.default_rng(5)
        # Half of the damage goes to the directory at the end, where the fields that matter are.
        places = [*draw.integers(0, len(good), 60), *draw.integers(len(good) - 420, len(good), 60)]
        for number, place in enumerate(places):
            hurt = bytearray(good)
            hurt[place] ^= 1 << int(draw.integers(8))
            yield Case(f"npz-flip-{kind}-{number}", write(bytes(hurt)), want="same")
        for number in range(20):
            hurt = bytearray(good)
            start = int(draw.integers(0, len(good) - 64))
            hurt[start : start + 64] = draw.bytes(64)
            yield Case(f"npz-noise-{kind}-{number}", write(bytes(hurt)), want="same")


def lying_headers() -> Iterator[Case]:
    pixels = bytes(432)
    shape = b"'shape': (12, 6, 6)"
    fine = b"{'descr': '|u1', 'fortran_order': False, " + shape + b"}"
    yield Case("npy-good", write(whole(train_images=npy_raw(fine, pixels))), want="valid")
    shapes = [
        b"(10000000000000,)", b"(2000000, 1000, 1000)", b"(12, 6, 7)", b"(12, 6)", b"(-12, 6, 6)", b"(12.0, 6, 6)",
        b"(True, 72, 6)", b"[12, 6, 6]", b"12", b"None", b"'12'", b"()", b"(0, 6, 6)", b"(12, 0, 6)",
        b"(" + b"9" * 900 + b",)", b"(" + b"9" * 3500 + b",)", b"(1,) * 10**9", b"(12, 6, 6, 1, 1, 1, 1, 1, 1, 1)",
        b"(2**63, 6, 6)", b"(4294967296, 4294967296, 4294967296)", b"((12,), 6, 6)", b"(12, 6j, 6)",
        b"(432,)", b"(2, 2, 2, 2, 27)", b"(1, 432)", b"(12, 36)", b"(6, 12, 6)",
    ]  # fmt: skip
    for number, text in enumerate(shapes):
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': " + text + b"}"
        yield Case(f"npy-shape-{number}", write(whole(train_images=npy_raw(header, pixels))))
    types = [
        b"'|O'", b"'O'", b"'|O8'", b"'<M8[s]'", b"'|V1'", b"'<c8'", b"'<f16'", b"'<U0'", b"'|S0'", b"'<U99999999'",
        b"[('a', '|u1')]", b"('|u1', (1,))", b"{'names': ['a'], 'formats': ['|O']}", b"1", b"None", b"'u1,u1'",
        b"'|u1x'", b"'float'", b"'object'", b"'=i3'", b"'|i1'", b"'|b1'", b"'|S1'", b"''",
    ]  # fmt: skip
    for number, text in enumerate(types):
        header = b"{'descr': " + text + b", 'fortran_order': False, " + shape + b"}"
        yield Case(f"npy-type-{number}", write(whole(train_images=npy_raw(header, pixels))))
    headers = [
        b"", b"{}", b"[]", b"0", b"{'descr': '|u1'}", fine[:-1], fine + b"}", fine + b";", b"(" * 3000, b"[" * 150,
        b"-" * 4000, b"{" * 90, b"not " * 900 + b"1", fine[:-1] + b", 'extra': 1}", fine.replace(b"False", b"0"),
        fine.replace(b"False", b"None"), fine.replace(b"descr", b"desc\\x72"), fine.replace(b"'", b"\0"),
        b"\xff\xfe" + fine, fine.replace(b"descr", "d\u0435scr".encode()), b"1" + b"+1" * 1900, b"{1: 2}", b"{[]: 1}",
        b"f'{1}'", b"lambda: 1", b"{**{}}", b"[i for i in range(10**9)]",
    ]  # fmt: skip
    for number, header in enumerate(headers):
        yield Case(f"npy-header-{number}", write(whole(train_images=npy_raw(header, pixels))))
    yield Case("npy-code", write(lambda folder: whole(train_images=npy_raw(python_payload(folder), pixels))))
    for version in (b"\0\0", b"\4\0", b"\1\1", b"\xff\xff", b"\2\1"):
        yield Case(f"npy-version-{version.hex()}", write(whole(train_images=npy_raw(fine, pixels, version=version))))
    for version, length in ((b"\1\0", 65535), (b"\2\0", 2**32 - 1), (b"\3\0", 2**31), (b"\2\0", 4097), (b"\1\0", 3)):
        data = npy_raw(fine, pixels, version=version, length=length)
        yield Case(f"npy-length-{version[0]}-{length}", write(whole(train_images=data)))
    padded = npy_raw(fine.ljust(4000), pixels)
    yield Case("npy-padded-but-good", write(whole(train_images=padded)), want="valid")
    for length in (4097, 60_000):
        yield Case(f"npy-padded-{length}", write(whole(train_images=npy_raw(fine.ljust(length), pixels))))
    for number, data in enumerate((b"", b"\x93", b"\x93NUMPY", b"NUMPY\x93\1\0", b"\x93NUMPY\1\0", npy_raw(fine))):
        yield Case(f"npy-start-{number}", write(whole(train_images=data)))
    yield Case("npy-too-much", write(whole(train_images=npy_raw(fine, pixels + b"x"))))
    yield Case("npy-too-much-deflated", write(whole(deflate=True, train_images=npy_raw(fine, pixels + b"x"))))


def pickles() -> Iterator[Case]:
    objects = b"{'descr': '|O', 'fortran_order': False, 'shape': (12,)}"
    for key in ("train_images", "train_labels", "train_persons", "test_images", "val_labels"):
        for deflate in (False, True):

            def data(folder: Path, key: str = key, deflate: bool = deflate) -> bytes:
                return whole(deflate=deflate, **{key: npy_raw(objects, pickle_payload(folder))})

            yield Case(f"pickle-{key}-{deflate}", write(data))
    yield Case("pickle-instead-of-npz", write(pickle_payload))
    yield Case("pickle-member-without-header", write(lambda f: whole(train_images=pickle_payload(f))))
    yield Case("pickle-foreign-member", write(lambda f: with_entry(b"data.pkl", pickle_payload(f))))
    sized = b"{'descr': '|u1', 'fortran_order': False, 'shape': (12, 6, 6)}"
    yield Case("pickle-behind-header", write(lambda f: whole(train_images=npy_raw(sized, pickle_payload(f)))))
    yield Case(
        "pickle-ignored-member",
        write(lambda f: with_entry(b"extra.npy", npy_raw(objects, pickle_payload(f)))),
        want="same",
    )


@cache
def zeros(count: int) -> bytes:
    """`count` deflated zeros, made without holding them."""
    squeeze, out = zlib.compressobj(9, zlib.DEFLATED, -15), bytearray()
    block = bytes(2**20)
    for start in range(0, count, 2**20):
        out += squeeze.compress(block[: min(2**20, count - start)])
    return bytes(out + squeeze.flush())


def bomb(shape: tuple[int, ...], descr: str, *, name: bytes, **lies: object) -> Entry:
    header = npy_raw(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode())
    count = int(np.prod(shape, dtype=object)) * int(descr[2:])
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(header) + squeeze.flush(zlib.Z_FULL_FLUSH) + zeros(min(count, 2**28))
    truth: Entry = {"method": 8, "packed": packed, "size": len(header) + count, "crc": 0}
    return entry(name, b"", **{**truth, **lies})


def bombs() -> Iterator[Case]:
    images, labels = b"train_images.npy", b"train_labels.npy"
    good = entry(labels, npy(np.arange(256) % 2))
    for sides in (512, 1024, 2048, 4000):
        data = archive(bomb((256, sides, sides), "|u1", name=images), good)
        yield Case(f"bomb-images-{sides}", write(data))
        data = archive(bomb((256, sides, sides), "|u1", name=images, size=1000), good)
        yield Case(f"bomb-images-says-1000-{sides}", write(data))
        data = archive(bomb((256, sides, sides), "|u1", name=images, size=2**26), good)
        yield Case(f"bomb-images-says-64MiB-{sides}", write(data))
    small = entry(images, npy(np.zeros((4, 2, 2), np.uint8)))
    for key in (labels, b"train_persons.npy", b"val_labels.npy"):
        yield Case(f"bomb-{key.decode()}", write(archive(small, bomb((2**25,), "<i8", name=key))))
        yield Case(f"bomb-small-{key.decode()}", write(archive(small, bomb((2**22,), "<i8", name=key))))
    members = [bomb((60_000, 32, 32), "|u1", name=f"{split}_images.npy".encode()) for split in ("train", "val", "test")]
    yield Case("bomb-many-small", write(archive(*members)))
    tiny = (2**25, 1, 1)
    pair = archive(bomb(tiny, "|u1", name=images), bomb((2**25,), "|u1", name=labels))
    yield Case("bomb-tiny-images", write(pair))
    unread = [bomb((2**26,), "|u1", name=f"x{number}.npy".encode()) for number in range(4)]
    yield Case(
        "bomb-unread-members", write(archive(*(entry(f"{k}.npy".encode(), v) for k, v in parts().items()), *unread))
    )
    wide = entry(b"test_persons.npy", npy(np.array(["x" * 999] * 6)))
    ids = entry(b"train_persons.npy", npy(np.array(["a"] * 300_000)))
    many = [bomb((300_000, 2, 2), "|u1", name=images, crc=0), bomb((300_000,), "|u1", name=labels)]
    rest = [entry(f"test_{k}.npy".encode(), npy(v)) for k, v in
            (("images", np.zeros((6, 2, 2), np.uint8)), ("labels", np.arange(6)))]  # fmt: skip
    yield Case("bomb-wide-persons", write(archive(*many, ids, *rest, wide)))


def zip_tricks() -> Iterator[Case]:
    images = parts()["train_images"]
    name = b"train_images.npy"
    names = [
        b"../evil.npy", b"/tmp/evil.npy", b"a/../../evil.npy", b"..\\evil.npy", b"C:\\evil.npy", b"dir/", b"dir/x.npy",
        b"evil.npz", b"evil", b"", b".npy", b"x\0.npy", b"\x1b[31m.npy", "\u202e.npy".encode(), b"x" * 500 + b".npy",
        b"..npy", b"a..npy", b"con:.npy", b"~.npy", b"-.npy", b" .npy",
    ]  # fmt: skip
    for number, evil in enumerate(names):
        yield Case(f"zip-name-{number}", write(with_entry(evil, images)))
    yield Case("zip-twice", write(archive(entry(name, images), entry(name, images))))
    yield Case("zip-nested", write(with_entry(b"inner.npz", whole())))
    for flag in (1, 0x20, 0x40, 0x2000):
        yield Case(f"zip-flag-{flag}", write(with_entry(name, images, flags=flag)))
    for method in (1, 6, 9, 12, 14, 93, 99):
        yield Case(f"zip-method-{method}", write(with_entry(name, images, method=method)))
    for key, lie in {
        "crc": 1, "size": 10**6, "packed_size": 10**6, "start": 10**8, "local_name": b"test_images.npy",
        "local_method": 8, "local_sign": b"PK\1\2", "sign": b"PK\3\4", "method": 8,
    }.items():  # fmt: skip
        yield Case(f"zip-lie-{key}", write(with_entry(name, images, **{key: lie})))
    for size in (0, 1, len(images) - 1, len(images) + 1, 2**32 - 2):
        yield Case(f"zip-size-{size}", write(with_entry(name, images, deflate=True, size=size)))
    for wide in ((2**40, 2**40), (2**63, 10), (2**64 - 1, 2**64 - 1), (560, 2**62)):
        extra = struct.pack("<2H2Q", 1, 16, *wide)
        lies = {"extra": extra, "size": 2**32 - 1, "packed_size": 2**32 - 1}
        yield Case(f"zip-wide-{wide[0]}-{wide[1]}", write(with_entry(name, images, **lies)))
    lies = {"extra": b"\1\0\xff\xff", "size": 2**32 - 1, "packed_size": 2**32 - 1}
    yield Case("zip-wide-short", write(with_entry(name, images, **lies)))
    yield Case("zip-overlap", write(archive(entry(name, images), entry(b"b.npy", images, same_as=name))))
    shared = entry(name, images), entry(b"train_labels.npy", images, same_as=name, local_name=name)
    yield Case("zip-overlap-lying", write(archive(*shared)))
    # Perfect but for one thing: the images lie inside of another member, and so would count twice.
    inner = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, zlib.crc32(images), 0, 0, len(name), 0) + name + images
    rest = [entry(f"{key}.npy".encode(), data) for key, data in parts().items() if key != "train_images"]
    lies = {"same_as": b"x.npy", "start": len(b"x.npy") + 30}
    yield Case("zip-overlap-quoted", write(archive(entry(b"x.npy", inner), entry(name, images, **lies), *rest)))
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(images) + squeeze.flush()
    for number, tail in enumerate((b"x", b"PK\5\6" + bytes(18), zeros(2**20))):
        lies = {"method": 8, "packed": packed + tail}
        yield Case(f"zip-after-stream-{number}", write(with_entry(name, images, **lies)))
    for cut in (1, 5, len(packed) // 2, len(packed)):
        lies = {"method": 8, "packed": packed[:-cut]}
        yield Case(f"zip-stream-cut-{cut}", write(with_entry(name, images, **lies)))
    good = [entry(f"{key}.npy".encode(), data) for key, data in parts().items()]
    for key, value in {"count": 60_000, "size": 10**6, "start": 10**7, "disk": 3, "note": 7}.items():
        yield Case(f"zip-end-{key}", write(archive(*good, **{key: value})))
    yield Case("zip-count-0", write(archive(*good, count=0)))
    yield Case("zip-no-members", write(archive()))
    yield Case("zip-tail", write(archive(*good, tail=b"hello")))
    yield Case("zip-head", write(archive(*good, head=b"hello", start=5)))
    many = [entry(f"m{number}.npy".encode(), b"") for number in range(20_000)]
    yield Case("zip-many-members", write(archive(*many)))
    yield Case("zip-some-members", write(archive(*good, *many[:65])))
    for start in (b"\x1f\x8b\x08", b"ustar", b"7z\xbc\xaf\x27\x1c", b"PK\3\4", b"PK\5\6", b"hello", b"\x93NUMPY"):
        yield Case(f"zip-other-{start.hex()}", write(start.ljust(300, b"\0")))
    yield Case("zip-empty", write(b""))


def cases() -> Iterator[Case]:
    for group in (damaged, lying_headers, pickles, bombs, zip_tricks):
        yield from group()
