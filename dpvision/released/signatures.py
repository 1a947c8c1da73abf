"""Signatures of what leaves: who vouches, and for which bytes.

signature.json of a folder, or FILE.signature.json next to a single file:

    statement    JSON text: the signer in their own words, the date, and length and SHA-256 of every file
    public_key   the signer's Ed25519 key, 64 hexadecimal digits
    signature    Ed25519 signature of the statement, in base64

A signature of a folder covers every file that may leave: nothing in the folder of a run but `operator/`, and nothing at
all in a released data set, is outside of it. `verify` needs the signer's key from elsewhere, since anyone can sign with
their own key. Files are read as bytes and never interpreted; links, pipes and devices are refused, and a file of
another length is refused before it is read.

What a signer vouches for is computed first, not taken from the folder: `sign` writes the card, the report and the other
pages again, from the event that was charged, the weights or rows, and the ledger. A page is never signed alone.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from dpvision.core import accountant, files
from dpvision.core.account import Account
from dpvision.core.events import Composed, from_json, parts
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.released import report
from dpvision.released.folder import read_release
from dpvision.released.report import cards, evidence, guarantee
from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run, hide_times

FORMAT, FILE = "dpvision-signature-1", "signature.json"
MAX_SIGNATURE, MAX_FILES, MAX_KEY, CHUNK = 4 << 20, 10_000, 1 << 14, 1 << 20
OPERATOR = "operator"  # the folder of a run that never leaves
# What may leave the folder of a run or a release, by name.
_BOTH = {"card.json", "card.md", "report.html", "evidence.html", "audit.json", "audit.svg"}
MAY_LEAVE = {
    "run": _BOTH | {"config.toml", "metrics.jsonl", "evaluation.json", "examples.json", "ledger.jsonl"},
    "release": _BOTH | {"schema.json", "README.md"},
}
ENDINGS = {"run": (".safetensors", ".onnx"), "release": (".safetensors",)}
KINDS = ("run", "release", "file")
HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Digest:
    """Length and SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Statement:
    """What a signer vouches for."""

    kind: str  # run, release or file
    signer: str
    time: str  # the date only: the second would reveal how long a tuning run took
    files: dict[str, Digest]

    def as_text(self) -> str:
        """Return the bytes to sign, as JSON text."""
        listed = {name: {"bytes": x.size, "sha256": x.sha256} for name, x in sorted(self.files.items())}
        head = {"format": FORMAT, "kind": self.kind, "signer": self.signer, "time": self.time}
        return json.dumps({**head, "files": listed}, indent=1)


def make_key(path: Path) -> Path:
    """Write a new private key, readable by its owner only, and its public key next to it; return the latter's path."""
    public = path.with_suffix(".pub")
    if path.suffix == ".pub" or any(os.path.lexists(p) for p in (path, public)):
        raise ConfigError(f"{path}: --new-key needs a new name, also for {public.name}. Fix: use another --key.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}. Fix: create it first.")
    _require_apart(path)
    key = Ed25519PrivateKey.generate()
    files.write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    files.write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), mode=0o644)
    return public


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return a private key; refuse a file that others may read, or that could be handed over with a run."""
    try:
        with files.open_regular(path, follow=False) as file:
            status, data = os.fstat(file.fileno()), file.read(MAX_KEY + 1)
    except FileNotFoundError as exc:
        raise ConfigError(f"{path}: there is no such key. Fix: add --new-key to make one.") from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: cannot be read as a key ({_reason(exc)}). Fix: give the key file itself.") from exc
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise PrivacyError(
            f"{path}: other users can read this key. Fix: run `chmod 600 {path}`, if nobody has read it."
        )
    if status.st_uid not in (os.getuid(), 0):
        raise PrivacyError(f"{path}: this key belongs to another user. Fix: use a key of your own.")
    _require_apart(path)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:  # a TypeError for an encrypted key
        raise ConfigError(
            f"{path}: not a private key in PEM format without a passphrase. Fix: make one with --new-key."
        ) from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: not an Ed25519 key. Fix: make one with --new-key.")
    return key


def read_public_key(given: str) -> str:
    """Return a public key as 64 hexadecimal digits, from these digits or from a PEM file."""
    if HEX.fullmatch(given.lower()):
        return given.lower()
    try:
        data = files.read(Path(given), most=MAX_KEY)
        key = load_pem_public_key(data)
    except (OSError, ValueError, UnsupportedAlgorithm) as exc:
        hint = " This is a private key: it must never leave the signer." if "PRIVATE KEY" in _peek(given) else ""
        raise ConfigError(
            f"{given[:200]}: neither a public key in PEM format nor 64 hexadecimal digits.{hint} Fix: use the "
            "signer's .pub file."
        ) from exc
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{given}: not an Ed25519 key. Fix: use the signer's .pub file.")
    return _as_hex(key)


def sign(
    target: Path, key: Ed25519PrivateKey, *, signer: str, account: Account | None = None
) -> tuple[Path, Statement]:
    """Sign a finished run, a release or an export; return the path of the signature, and its statement.

    `account` is that of the data set, from the ledger that the run or release was charged to.
    """
    if len(signer) > 200 or not signer.isprintable():
        raise ConfigError("--signer must be one line of at most 200 characters.")
    kind = _kind(target)
    if kind == "file":
        place, folder, names = _beside(target), target.parent, [target.name]
        _require_signable_file(target, alone=True)
    else:
        place, folder = target / FILE, target
        _rewrite_pages(target, kind, _entries(target, kind), account)
        names = _entries(target, kind)
    listed = {}
    for name in names:
        try:
            listed[name] = _digest(folder / name)
        except (OSError, ValueError) as exc:
            raise DataError(f"{folder / name}: cannot be signed ({_reason(exc)}). Fix: replace it by a file.") from exc
    statement = Statement(kind, signer, datetime.now(UTC).date().isoformat(), listed)
    text = statement.as_text()
    signed = {
        "format": FORMAT,
        "statement": text,
        "public_key": _as_hex(key.public_key()),
        "signature": base64.b64encode(key.sign(text.encode())).decode(),
    }
    files.write(place, json.dumps(signed, indent=1) + "\n", mode=0o644)
    hide_times(Run(folder))
    return place, statement


def verify(target: Path, trusted: str | None) -> tuple[str, Statement]:
    """Return the signer's key and statement, or raise a PrivacyError that states what differs from what was signed.

    With `trusted`, a key as 64 hexadecimal digits, a signature by any other key is refused.
    """
    place, single = _find_signature(target)
    key, statement = _read(place, trusted)
    if single != (statement.kind == "file") or (single and set(statement.files) != {target.name}):
        what = f"the file {next(iter(statement.files))!r}" if statement.kind == "file" else f"a {statement.kind}"
        raise PrivacyError(f"{place}: is the signature of {what}, not of {target.name!r}. Nobody vouches for it.")
    if target.is_dir():
        differences = _differences(target, statement.files, _present(target, statement.kind))
    elif target.name not in statement.files:
        raise PrivacyError(f"{target}: is not among the files that were signed in {place}. Nobody vouches for it.")
    else:
        differences = _differences(target.parent, {target.name: statement.files[target.name]}, [target.name])
    if differences:
        raise PrivacyError(f"{target}: differs from what was signed: {'; '.join(differences)}. Do not rely on it.")
    return key, statement


def _read(place: Path, trusted: str | None) -> tuple[str, Statement]:
    """Return the key and the statement of a signature file that is valid for this key."""
    try:
        with files.open_regular(place, follow=False) as file:
            data = file.read(MAX_SIGNATURE + 1)
        if len(data) > MAX_SIGNATURE:
            raise ValueError(f"it has more than {MAX_SIGNATURE:,} bytes")
        outer = json.loads(data)
        text, key, signature = (_text(outer, name) for name in ("statement", "public_key", "signature"))
        if set(outer) != {"format", "statement", "public_key", "signature"} or outer["format"] != FORMAT:
            raise ValueError("its format is unknown")
        if not HEX.fullmatch(key):
            raise ValueError("its public key is not valid")
        raw = base64.b64decode(signature, validate=True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise PrivacyError(
            f"{place}: cannot be read as a signature ({_reason(exc)}). Fix: copy it again from the signer."
        ) from exc
    if trusted is not None and key != trusted:
        raise PrivacyError(f"{place}: was signed by another key, {key}, not by {trusted}. The signer does not vouch.")
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(raw, text.encode())
    except (InvalidSignature, ValueError, UnicodeError) as exc:
        raise PrivacyError(
            f"{place}: the signature is not one of this statement by key {key}: one of the two was altered or replaced."
        ) from exc
    return key, _statement(place, text)


def _statement(place: Path, text: str) -> Statement:
    try:
        inner = json.loads(text)
        kind, signer, time = (_text(inner, name) for name in ("kind", "signer", "time"))
        listed = {name: Digest(x["bytes"], x["sha256"]) for name, x in inner["files"].items()}
        datetime.fromisoformat(time)
        if inner["format"] != FORMAT or kind not in KINDS or not 0 < len(listed) <= MAX_FILES:
            raise ValueError("its format is unknown")
        for name, x in listed.items():
            plain = os.path.basename(name) == name and name.isprintable() and name not in ("", ".", "..")
            if not plain or type(x.size) is not int or x.size < 0 or not HEX.fullmatch(x.sha256):
                raise ValueError(f"its entry {name[:100]!r} is not valid")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise PrivacyError(f"{place}: its statement cannot be read ({_reason(exc)}).") from exc
    return Statement(kind, signer, time, listed)


def _differences(folder: Path, signed: dict[str, Digest], present: Iterable[str]) -> list[str]:
    """Compare files with their digests; return what differs, in words."""
    there = set(present)
    differences = [f"{name!r} was not signed" for name in sorted(there - set(signed))]
    for name, wanted in sorted(signed.items()):
        try:
            if name not in there:
                raise FileNotFoundError("is missing")
            actual = _digest(folder / name, expected=wanted.size)
        except FileNotFoundError:
            differences.append(f"{name!r} is missing")
        except (OSError, ValueError) as exc:
            differences.append(f"{name!r}: {_reason(exc)}")
        else:
            if actual != wanted:
                differences.append(f"{name!r} has other content")
    return differences[:10] + ([f"and {len(differences) - 10:,} more files"] if len(differences) > 10 else [])


def _digest(path: Path, *, expected: int | None = None) -> Digest:
    """Return length and SHA-256 of a regular file; refuse another length than expected before reading it."""
    digest, size = hashlib.sha256(), 0
    if path.is_symlink():
        raise ValueError("is a link, not a file")
    with files.open_regular(path, follow=False) as file:
        length = os.fstat(file.fileno()).st_size
        if expected is not None and length != expected:
            raise ValueError(f"it has {length:,} bytes, and {expected:,} were signed")
        while block := file.read(CHUNK):
            digest.update(block)
            size += len(block)
            if expected is not None and size > expected:
                raise ValueError(f"it has more than the {expected:,} bytes that were signed")
    return Digest(size, digest.hexdigest())


def _kind(target: Path) -> str:
    if target.is_symlink() or not target.exists():
        what = "is a link" if target.is_symlink() else "there is no such file or folder"
        raise DataError(f"{target}: {what}. Fix: give the folder of a run or a release, or a file.")
    if not target.is_dir():
        return "file"
    if (target / "schema.json").exists():
        return "release"
    if (target / "config.toml").exists():
        return "run"
    raise DataError(f"{target}: is neither the folder of a finished run nor a release. Fix: give one of these.")


def _present(folder: Path, kind: str) -> list[str]:
    """Return the names of everything in a folder, without its signature and the operator's folder of a run."""
    with os.scandir(folder) as entries:
        names = [
            e.name for e in entries if not (kind == "run" and e.name == OPERATOR and e.is_dir(follow_symlinks=False))
        ]
    if len(names) > MAX_FILES:
        raise DataError(f"{folder}: has more than {MAX_FILES:,} files. Fix: give the folder of a run or a release.")
    return sorted(name for name in names if name != FILE)


def _entries(folder: Path, kind: str) -> list[str]:
    """Return the files to sign; refuse a folder with anything that is not known to be fit to leave."""
    names = _present(folder, kind)
    other = [n for n in names if n not in MAY_LEAVE[kind] and not (n.endswith(ENDINGS[kind]) and n.isprintable())]
    other += [n for n in names if n not in other and ((folder / n).is_symlink() or not (folder / n).is_file())]
    if other:
        raise DataError(
            f"{folder}: {', '.join(map(repr, other[:5]))} is not a file that a {kind} releases, so it would not be "
            "signed with it. Fix: move it out of the folder."
        )
    return names


def _rewrite_pages(folder: Path, kind: str, names: list[str], account: Account | None) -> None:
    """Write all pages again, from what they are about; refuse what is not private or cannot be recomputed."""
    needed = {"weights.safetensors"} if kind == "run" else {"card.json", "schema.json"}
    if missing := sorted(needed - set(names)):
        raise DataError(f"{folder}: has no {', '.join(missing)}. Fix: finish the run, or copy the folder again.")
    for name in names if kind == "run" else ():
        if name.endswith(ENDINGS[kind]):  # each export states whether it may leave, or is not an export
            _require_signable_file(folder / name, alone=False)
    card = _card_of_run(Run(folder), account) if kind == "run" else _card_of_release(folder, account)
    _require_private(folder, card["status"] == "private")
    if kind == "run":
        report.write(Run(folder), account)
    else:
        report.rewrite_release(read_release(folder), account)
    if evidence.FILE in names:
        evidence.write(folder, card)


def _card_of_run(run: Run, account: Account | None) -> dict[str, Any]:
    """Return the card of a run, computed from its weights, settings, facts and ledger."""
    if not (run.operator / "run.json").exists():
        raise DataError(
            f"{run.folder}: has no {OPERATOR}/run.json, so its card cannot be recomputed. Fix: sign it where it was "
            "made."
        )
    if account is None:
        raise DataError(
            f"{run.folder / 'ledger.jsonl'}: the ledger to compare it with is not on this machine. Fix: set "
            "DPVISION_HOME to the folder that the run was charged in."
        )
    return report.card(run, account)


def _card_of_release(folder: Path, account: Account | None) -> dict[str, Any]:
    """Return the card of a release, recomputed; refuse one whose event the ledger has not."""
    release = read_release(folder)
    charged = [c for c in (account.charges if account else ()) if c.run == release.card["run"]]
    if release.private and not any(c.private and c.event == release.event for c in charged):
        raise DataError(
            f"{folder / 'card.json'}: no ledger on this machine has the charge that it states. Fix: sign the release "
            "where it was made, with DPVISION_HOME set to the folder that it was charged in."
        )
    return cards.audited_card(release, account)


def _require_signable_file(path: Path, *, alone: bool) -> None:
    if path.suffix == ".safetensors":
        _require_own_card(path, safetensors.read(path).header, alone=alone)
    elif path.suffix == ".onnx":
        try:
            import onnx
        except ImportError as exc:
            raise ConfigError(f"{path}: reading its claims needs the package onnx. Fix: pip install onnx.") from exc
        try:
            stated = {x.key: x.value for x in onnx.load(str(path), load_external_data=False).metadata_props}
        except Exception as exc:  # protobuf's errors have no common base class
            raise DataError(f"{path}: cannot be read as ONNX. Fix: run `dpvision export` again.") from exc
        _require_own_card(path, stated, alone=alone)
    else:
        raise ConfigError(f"{path}: only weights and ONNX files are signed alone. Fix: sign the folder.")


def _require_own_card(path: Path, header: dict[str, str], *, alone: bool) -> None:
    """Refuse weights that are not private, or whose card claims another guarantee than follows from their event."""
    _require_private(path, header.get("private") == "yes")
    if "card" not in header and not alone:  # the best trial of a tuning run: its card is that of the run
        return
    try:
        card, event = json.loads(header["card"]), from_json(json.loads(header["event"]))
        delta = guarantee.delta_of(event, float(header["delta"]))
        claimed, events = card["guarantee"], Composed(tuple(map(from_json, card["events"])))
        same = (
            card["status"] == "private"
            and card["unit"] == header["unit"]
            and parts(events) == parts(event)
            and claimed["delta"] == delta
            and claimed["epsilon"] >= accountant.epsilon(event, delta) * (1 - 1e-9)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DataError(f"{path}: has no valid card ({_reason(exc)}). Fix: run `dpvision export` again.") from exc
    if not same:
        raise DataError(
            f"{path}: the guarantee on its card is not that of its event. Fix: run `dpvision export` again."
        )


def _require_private(target: Path, private: bool) -> None:
    if not private:
        raise PrivacyError(f"{target}: is marked as not private, or not marked, so it must not be released or signed.")


def _require_apart(key: Path) -> None:
    """Refuse a key below the folder of a run or a release, which is handed over."""
    for folder in key.resolve().parents:
        if any((folder / name).exists() for name in ("card.json", "config.toml", "schema.json")):
            raise PrivacyError(
                f"{key}: is in {folder}, the folder of a run or a release, which may be handed over. Fix: keep the key "
                "in its own folder."
            )


def _find_signature(target: Path) -> tuple[Path, bool]:
    """Return the path of the signature, and whether it is one for a single file."""
    if not os.path.lexists(target):
        raise DataError(f"{target}: there is no such file or folder. Fix: give what was signed.")
    if target.is_dir():
        place, single = target / FILE, False
    else:
        place = _beside(target)
        single = os.path.lexists(place)
        place = place if single else target.parent / FILE
    if not os.path.lexists(place):
        raise PrivacyError(f"{target}: has no signature, so nobody vouches for it. Fix: ask for {place.name}.")
    return place, single


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{FILE}")


def _as_hex(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _text(table: Any, name: str) -> str:
    value = table[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _peek(path: str) -> str:
    try:
        return files.read(Path(path), most=MAX_KEY).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _reason(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.errno == errno.ELOOP:
        return "is a link, not a file"
    return (exc.strerror or str(exc)) if isinstance(exc, OSError) else str(exc)
