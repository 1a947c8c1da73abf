"""Hostile changes: to bytes, to what the bytes mean (with digests and hash chains made good again), and to folders."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

from dpvision.core.ledger import _hash
from dpvision.storage.safetensors import _digest

DEEP = 3000
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**400), 0.5, -0.0, 1e-320, 1e308,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "-1", "nan", "1e999", "9" * 5000, "\x00", "\ud800",
    "\udcff", "🙂", "‮", "../../outside/secret", "/dev/zero", "{class}", "%s%n", "__import__('os').system('id')", "a" * 70_000,
    [], {}, [[]], [None], {"": None}, [0] * 5000, {"kind": "composed", "events": []}, "DEEP", "DEEP OBJECT",
)  # fmt: skip
TOML = (
    "1", "-1", "0", "9" * 400, "9" * 5000, "1e400", "nan", "inf", "-inf", "true", '""', '"x"', "[]", "[1, 2]", "[[]]",
    "{a = 1}", "1979-05-27", "25:61:00", '"\\u0000"', '"../../outside/secret"', "'''", '"""', "0x_", "[" * 2000, "",
    '["a", "b"]', "2", "0.5", "1e-320", '"timm:x"', '"\\ud800"', "= =", "# x", "\x00",
)  # fmt: skip
# What is written for people and for other programs: its bytes are nobody's input, but something may be in its place.
NEVER_READ = re.compile(
    r"\.(md|html|svg)$|^(edm|guide|prior|warmed)/card\.json$|/grid-\d+\.png$|/moments\.safetensors$|/(canaries|membership|samples)\.json$"
    r"|^run/ledger\.jsonl$|^run/operator/log\.jsonl$|[./]lock$"
)


def changed(rng: Random, data: bytes, other: bytes, payload: bytes, name: str) -> bytes:
    """The bytes of a file called `name`, made hostile; `other` is another file's, `payload` would run if it could."""
    kind = rng.randrange(10)
    if name.endswith(".safetensors") and kind < 7:
        return _safetensors(rng, data)
    if name.endswith(".json") and kind < 6:
        return _json(rng, data)
    if name.endswith(".jsonl") and kind < 7:
        return _lines(rng, data)
    if name.endswith(".toml") and kind < 8:
        return _toml(rng, data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        data = _bytes(rng, data, other, payload)
    return data


def _bytes(rng: Random, data: bytes, other: bytes, payload: bytes) -> bytes:
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    match rng.randrange(12):
        case 0 | 1:
            flipped = bytearray(data)
            for _ in range(rng.choice([1, 1, 8, 64])):
                if flipped:
                    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 2:
            return data[:at]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:at] + other[: rng.randrange(len(other) + 1)] + data[end:]
        case 5:
            return data[:at] + rng.choice([b"\0", b"\xff", b"[", b"{", b'"', b"\n", b",", b"9"]) * rng.choice(
                [1, 9, 5000]
            )
        case 6:
            huge = rng.choice([2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1, 0, 1])
            place = rng.choice([0, at])
            return data[:place] + struct.pack(rng.choice("<>") + "Q", huge) + data[place + 8 :]
        case 7:
            return data + data
        case 8:
            return payload
        case 9:
            return payload + data
        case 10:
            return other
        case _:
            return data[:at] + payload + data[at:]


def _hostile(rng: Random, value: Any) -> Any:
    """The value, with something in it replaced, removed or added."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        copy = dict(value) if isinstance(value, dict) else list(value)
        key = rng.choice(sorted(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
        match rng.randrange(8):
            case 0:
                del copy[key]
            case 1 if isinstance(copy, dict):
                copy[rng.choice(["", "\ud800", "extra", "__class__", "../x"])] = rng.choice(VALUES)
            case _:
                copy[key] = _hostile(rng, copy[key])
        return copy
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.8:  # JSON inside of JSON
        return _text(_hostile(rng, json.loads(value)))
    return rng.choice(VALUES)


def _text(value: Any) -> str:
    """As JSON; what is marked as deep is nested, which `json.dumps` itself would not do."""
    text = json.dumps(value)
    return text.replace('"DEEP"', "[" * DEEP + "]" * DEEP).replace('"DEEP OBJECT"', '{"events":[' * DEEP + "]}" * DEEP)


def _json(rng: Random, data: bytes) -> bytes:
    return _text(_hostile(rng, json.loads(data))).encode()


def _lines(rng: Random, data: bytes) -> bytes:
    """JSON lines; where they are chained by hashes, the chain is made good again."""
    lines = [json.loads(line) for line in data.splitlines()] or [{}]
    place, previous = rng.randrange(len(lines)), ""
    hostile = _hostile(rng, {k: v for k, v in lines[place].items() if k != "hash"})
    lines[place] = hostile
    if rng.random() < 0.1:
        lines.insert(place, lines[rng.randrange(len(lines))])
    for number, line in enumerate(lines):
        if isinstance(line, dict) and "previous" in line:
            line = {k: v for k, v in line.items() if k != "hash"} | {"previous": previous}
            if number != place or rng.random() < 0.5:
                line["n"] = number
            try:
                line["hash"] = previous = _hash(previous, line)
            except (ValueError, TypeError):
                line["hash"] = previous
            lines[number] = line
    return b"".join(_text(line).encode() + b"\n" for line in lines)


def sealed_again(path: Path) -> None:
    """Write the seal of a ledger that was changed, as who can write both files would."""
    lines = path.read_bytes().splitlines()
    try:
        last = json.loads(lines[-1])["hash"]
        path.with_suffix(".seal").write_text(f"{len(lines)} {last}\n")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, UnicodeError):
        return


def _toml(rng: Random, data: bytes) -> bytes:
    lines = data.decode().splitlines() or [""]
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(lines))
        name = lines[at].split(" = ")[0]
        new = f"{rng.choice([name, name, name, 'a.b', '[x]', 'epsilon', 'size', 'classes', 'weights'])} = {rng.choice(TOML)}"
        lines[at : at + rng.choice([0, 1])] = [new]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _safetensors(rng: Random, data: bytes) -> bytes:
    """The header changed; in most cases its digest is made good again, so that its content is believed."""
    size = int.from_bytes(data[:8], "little")
    table, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    inner = json.loads(table.get("__metadata__", {}).get("dpvision", "{}"))
    signature = inner.pop("signature", None)
    inner.pop("digest", None)
    metadata = dict(table.pop("__metadata__", {}))
    match rng.randrange(4):
        case 0:
            table = _hostile(rng, table)
        case 1:
            metadata = _hostile(rng, metadata)
        case 2 if body:
            numbers = bytearray(body)
            for _ in range(rng.choice([1, 3])):
                at = rng.randrange(0, max(1, len(body) - 4), 4)
                numbers[at : at + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), 1e38, -1e38]))
            body = bytes(numbers[: len(body)])
        case _:
            inner = _hostile(rng, inner) if inner else inner
    if inner and isinstance(metadata, dict):
        try:
            seal = {"digest": _digest(inner, table, memoryview(body))} | ({"signature": signature} if signature else {})
            metadata["dpvision"] = _text({**inner, **seal} if isinstance(inner, dict) else inner)
        except (ValueError, TypeError):
            metadata["dpvision"] = _text(inner)
    header = _text({**table, "__metadata__": metadata} if isinstance(table, dict) else table).encode()
    return struct.pack("<Q", len(header)) + header + body


WAYS = 8


def put_in_its_place(way: int, path: Path, outside: Path) -> None:
    """Something else than a file under the file's name; `outside` is a folder that nobody may change."""
    path.unlink()
    match way:
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to("/dev/zero")
        case 3:
            path.symlink_to(outside / "secret")
        case 4:
            path.symlink_to(path)
        case 5:
            path.symlink_to(outside / "nowhere")
        case 6:
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case _:
            return


def hostile_copy(rng: Random, source: Path, target: Path, *, other: bytes, payload: bytes, outside: Path) -> Path:
    """A copy of a file or of a folder, with one file of it made hostile; which one."""
    files = sound_copy(source, target)
    read = [path for path in files if is_read(path, target)]
    path = rng.choice(read if rng.random() < 0.95 else files)
    if rng.random() < 0.08:
        put_in_its_place(rng.randrange(WAYS), path, outside)
    else:
        path.write_bytes(changed(rng, path.read_bytes(), other, payload, path.name))
        if path.suffix == ".jsonl" and re.fullmatch("[0-9a-f]{32}", path.stem) and rng.random() < 0.9:
            sealed_again(path)
    return path


def is_read(path: Path, target: Path) -> bool:
    """Whether the bytes of a file are an input to anything."""
    return not NEVER_READ.search(f"{target.name}/{path.relative_to(target)}" if path != target else path.name)


def sound_copy(source: Path, target: Path) -> list[Path]:
    """A copy of a file or of a folder; its files."""
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return sorted(p for p in target.rglob("*") if p.is_file()) if target.is_dir() else [target]


def digest_of_folder(folder: Path) -> str:
    """Names, kinds and contents of all that is below."""
    digest = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mode}".encode())
        if path.is_file() and not path.is_symlink():
            digest.update(path.read_bytes())
    return digest.hexdigest()
