"""The folder $DPVISION_HOME/weights: for each network a checked safetensors file and a record of what it is.

    NAME.safetensors   the file; it has this name only after its digest and its format were checked
    NAME.json          the record: digests, size, source, revision, and how the digest became known
    .NAME.*.part       what was downloaded so far

`find` and `resolve` return a file only with its record. `identify` recognises a file by its digest, wherever it is.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.storage.home import home
from dpvision.storage.weights.download import MAX_BYTES, WAIT, Facts, discard, download
from dpvision.storage.weights.hub import download_with, load_hub
from dpvision.storage.weights.registry import PublicWeights, entry_of, is_name

Progress = Callable[[int, int], None]

OFFLINE = ("DPVISION_OFFLINE", "HF_HUB_OFFLINE")
# Where a digest is from.
PINNED, FIRST_USE = "registry", "first use"
MAX_RECORD = 1 << 16
MAX_HEADER = 100_000_000  # bytes, of a safetensors file


@dataclass(frozen=True)
class Record:
    """The recorded facts about a file in the folder."""

    name: str
    sha256: str
    blake2b: str
    size: int
    source: str
    revision: str | None
    digest_from: str  # PINNED or FIRST_USE
    time: str


@dataclass(frozen=True)
class Fetched:
    """The result of `get`: the file, its record, whether it was downloaded now, and whether its digest was known."""

    path: Path
    record: Record
    downloaded: bool
    known: bool


def folder() -> Path:
    """Return the folder of weights."""
    return home() / "weights"


def path_of(entry: PublicWeights) -> Path:
    """Return the path of this entry's file, whether or not it exists."""
    return folder() / f"{_file_name(entry)}.safetensors"


def record_of(entry: PublicWeights) -> Record | None:
    """Return the record of the entry's file, if there is one."""
    return _read_record(_record_path(entry))


def resolve(weights: str | Path) -> Path:
    """Return the file of weights given by path or by name. An existing path takes precedence over a name."""
    return find(str(weights)) if is_name(str(weights)) and not Path(weights).exists() else Path(weights)


def find(name: str) -> Path:
    """Return the downloaded file of the named weights, or raise a ConfigError with the command that downloads it."""
    entry = entry_of(name)
    path, record = path_of(entry), record_of(entry)
    if record is None or not path.is_file() or path.stat().st_size != record.size:
        state = "has not been verified yet" if path.is_file() else "does not exist"
        raise ConfigError(f"the weights {entry.name!r} are needed, and {path} {state}. Fix: {_command(entry)}.")
    return path


def network_at_hand(given: str | None = None) -> str | None:
    """Return the name of the network whose weights are given, or of the first downloaded one; None if there is none.

    The order is that of the registry. Weights that were not downloaded by name, or without a pinned digest, are not
    recognised.
    """
    from dpvision.storage.weights.registry import NETWORKS

    for name, entry in NETWORKS.items():
        path, record = path_of(entry), record_of(entry)
        here = record is not None and _is_pinned(record) and path.is_file() and path.stat().st_size == record.size
        if here and (given is None or name == given or path.resolve() == Path(given).resolve()):
            return name
    return None


def identify(path: Path, digest: str) -> PublicWeights | None:
    """Return the public weights with this BLAKE2b digest, if they were downloaded by name on this machine.

    A file in the folder of weights that does not match its record is a DataError.
    """
    place = folder()
    records = [] if not place.is_dir() else [_read_record(file) for file in sorted(place.glob("[!.]*.json"))]
    named = [record for record in records if record is not None and is_name(record.name)]
    known = {record.blake2b: record for record in sorted(named, key=_is_pinned)}  # of two names, the pinned one
    if digest in known:
        return entry_of(known[digest].name)
    if path.parent.resolve() == place.resolve():
        raise DataError(
            f"{path}: is not the file that was verified when it was downloaded. Fix: remove it, and download "
            "it again with `dpvision weights get`."
        )
    return None


def describe(path: Path, digest: str) -> dict[str, str]:
    """Return what a card states about a recognised file of weights: `origin` and `licence`; else nothing.

    They are facts if the file has the SHA-256 that the registry pins, and else only what the user declared by the name.
    """
    entry = identify(path, digest)
    if entry is None:
        return {}
    if entry.sha256 is not None and _sha256(path) == entry.sha256:
        return {"origin": entry.origin, "licence": entry.licence}
    return {"origin": declared(entry.origin), "licence": declared(entry.licence)}


def declared(what: str) -> str:
    """State what nothing but the user's word shows."""
    return f"declared by the user to be {what}; not verified"


def _sha256(path: Path) -> str:
    with files.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def get(name: str, *, progress: Progress = lambda *_: None, wait: float = WAIT) -> Fetched:
    """Download the named weights, or verify the existing file.

    Its digest must be the one in the registry, or else that in the record of an earlier file; if there is neither, the
    digest of this file is recorded.
    """
    entry = entry_of(name)
    files.make_folder(folder())
    lock = folder() / f".{_file_name(entry)}.lock"
    try:
        with files.locked(lock, wait=False):
            return _get(entry, progress, wait)
    except BlockingIOError:
        raise ConfigError(f"{entry.name}: another process is downloading it. Fix: wait for it.") from None


def _get(entry: PublicWeights, progress: Progress, wait: float) -> Fetched:
    path, record = path_of(entry), record_of(entry)
    expected = entry.sha256 or (record.sha256 if record else None)
    if path.exists():
        try:
            checked = _check(path, expected, size=entry.size)
        except DataError as exc:
            raise DataError(f"{exc} Fix: remove {path}; then the same command downloads it again.") from exc
        if record is None or record.blake2b != checked.blake2b:
            record = _record(entry, checked, source="placed there by hand", revision=None)
        return Fetched(path, record, downloaded=False, known=expected is not None)
    if entry.repository is None and entry.url is None:
        raise ConfigError(f"{entry.name}: {entry.conversion}. Then put the file at {path}, and {_command(entry)}.")
    if variable := next((name for name in OFFLINE if _is_set(name)), None):
        digest = f" (SHA-256 {expected})" if expected else ""
        raise ConfigError(
            f"{entry.name}: is not at {path}, and nothing is downloaded because {variable} is set. Fix: copy "
            f"{entry.source}{digest} to {path}, and then {_command(entry)}, which verifies it."
        )
    revision = entry.revision or (record.revision if record else None)
    checked, facts = _fetch(entry, revision, expected, path, progress, wait)
    revision = revision or facts.revision
    record = _record(entry, checked, source=entry.at(revision), revision=revision)
    return Fetched(path, record, downloaded=True, known=expected is not None)


@dataclass(frozen=True)
class _Checked:
    sha256: str
    blake2b: str
    size: int


def _fetch(
    entry: PublicWeights, revision: str | None, expected: str | None, path: Path, progress: Progress, wait: float
) -> tuple[_Checked, Facts]:
    """Download, verify and only then rename. A file that fails verification is removed."""
    url = entry.at(revision)
    mark = hashlib.blake2b(url.encode(), digest_size=4).hexdigest()  # each source has its own part
    part = path.with_name(f".{path.stem}.{mark}.part")
    for again in (False, True):
        continued, hub = part.exists(), None if entry.repository is None else load_hub()
        if hub is None:
            known = expected is not None
            facts = download(url, part, size=entry.size, same_bytes=known, progress=progress, wait=wait)
        else:
            facts = download_with(hub, entry, revision, part, progress=progress)
        try:
            checked = _check(part, expected or facts.sha256, size=entry.size)
            break
        except DataError as exc:
            discard(part)
            if again or not continued or hub is not None:  # a resumed part may have been damaged before
                raise DataError(f"{url}: {exc} Nothing was stored. Fix: check the source and any proxy.") from exc
    os.replace(part, path)
    files.sync_folder(path.parent)
    discard(part)
    return checked, facts


def _check(path: Path, expected: str | None, *, size: int | None) -> _Checked:
    """Compute the digests of a file; an unexpected digest or format is a DataError."""
    try:
        with files.open_regular(path, follow=False) as file:
            length = os.fstat(file.fileno()).st_size
            if length > (size or MAX_BYTES):
                raise DataError(f"{path.name} has {length:,} bytes, more than {size or MAX_BYTES:,}.")
            if reason := _other_format(path, file.read(64)):
                raise DataError(reason)
            file.seek(0)
            sha256, blake2b = hashlib.sha256(), hashlib.blake2b(digest_size=32)
            while block := file.read(1 << 20):
                sha256.update(block)
                blake2b.update(block)
    except (OSError, ValueError) as exc:
        raise DataError(f"{path.name} cannot be read ({exc}).") from exc
    if expected is not None and sha256.hexdigest() != expected:
        raise DataError(f"the SHA-256 of {path.name} is {sha256.hexdigest()}, and it must be {expected}.")
    try:
        with safe_open(path, framework="np") as tensors:
            empty = not list(tensors.keys())
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as exc:
        raise DataError(f"{path.name} is not a valid safetensors file ({exc}).") from exc
    if empty:
        raise DataError(f"{path.name} is a safetensors file without tensors.")
    return _Checked(sha256.hexdigest(), blake2b.hexdigest(), length)


def _other_format(path: Path, beginning: bytes) -> str | None:
    """Name a format that users may have downloaded by mistake.

    Safetensors files begin with the length of their header, which is small.
    """
    is_zip = beginning.startswith(b"PK\x03\x04")
    if not is_zip and int.from_bytes(beginning[:8], "little") <= MAX_HEADER:
        return None
    text = beginning.lstrip().lower()
    if is_zip or beginning.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return f"{path.name} is a file of torch.save or pickle, which could run code and is never read."
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"{path.name} is a web page, such as a login page or a proxy's error page, not a safetensors file."
    if text.startswith(b"version https://git-lfs"):
        return f"{path.name} is a Git LFS pointer, not the file itself."
    return None


def _record(entry: PublicWeights, checked: _Checked, *, source: str, revision: str | None) -> Record:
    digest_from = PINNED if entry.sha256 else FIRST_USE
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    values = (checked.sha256, checked.blake2b, checked.size, source, revision)
    record = Record(entry.name, *values, digest_from=digest_from, time=now)
    files.write(_record_path(entry), json.dumps(asdict(record), indent=1) + "\n")
    return record


def _read_record(path: Path) -> Record | None:
    try:
        values = json.loads(files.read(path, most=MAX_RECORD))
        record = Record(**values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as exc:
        raise DataError(
            f"{path}: is not a record of weights ({exc}). Fix: remove it; `dpvision weights get` writes it again, and "
            "then trusts the existing file unless the registry has its digest."
        ) from exc
    texts = (record.name, record.sha256, record.blake2b, record.source, record.digest_from, record.time)
    if not all(isinstance(text, str) for text in texts) or type(record.size) is not int:
        raise DataError(f"{path}: is not a record of weights. Fix: remove it; `dpvision weights get` writes it again.")
    return record


def _is_pinned(record: Record) -> bool:
    return entry_of(record.name).sha256 == record.sha256


def _record_path(entry: PublicWeights) -> Path:
    return folder() / f"{_file_name(entry)}.json"


def _file_name(entry: PublicWeights) -> str:
    return entry.name.replace(":", "--")


def _command(entry: PublicWeights) -> str:
    return f"run `dpvision weights get {entry.name}`"


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")
