"""Signatures: what was signed is valid, and every forgery is refused with a message that names what differs."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from safetensors.numpy import save_file

from dpvision.core.account import Account
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.released import signatures
from dpvision.released.signatures import FILE, make_key, read_key, read_public_key, sign, verify
from dpvision.storage.home import account_of_charge, use_home
from tests.one_thread import one_thread
from tests.system.docs.examples import call

__all__ = ["one_thread"]

RUN_FILES = {"card.json", "card.md", "config.toml", "evaluation.json", "evidence.html", "ledger.jsonl", "metrics.jsonl"}
RUN_FILES |= {"report.html", "weights.safetensors"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed run, its signed ONNX file, a signed release, and two keys."""
    place = tmp_path_factory.mktemp("signed")
    commands = [
        ["train", "digits", "--epsilon", "3", "--steps", "3", "--out", "run"],
        ["evidence", "run"],
        ["export", "run", "--to", "onnx", "--out", "digits.onnx"],
        ["sign", "run", "--key", "keys/ours.key", "--new-key", "--signer", "City Hospital"],
        ["sign", "digits.onnx", "--key", "keys/ours.key"],
        ["release", "digits", "--epsilon", "3", "--encoder", "pixels", "--rows", "200", "--out", "release"],
        ["sign", "release", "--key", "keys/ours.key"],
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("DPVISION_TEST_KEY", raising=False)
        (place / "keys").mkdir()
        for words in commands:
            patch.setenv("DPVISION_HOME", str(place / "home of release") if "release" in words else str(place / "home"))
            assert call(words, patch) == 0, words
    make_key(place / "keys" / "theirs.key")
    return place


def _account_of(made: Path, folder: Path) -> Account | None:
    """The account that a copy of the run or the release was charged to."""
    release = (folder / "schema.json").exists()
    with use_home(made / ("home of release" if release else "home")):
        return account_of_charge(json.loads((folder / "card.json").read_text())["run"])


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """What a receiver has: no operator's folder, no keys."""
    ignore = shutil.ignore_patterns("operator", "home*", "keys")
    return Path(shutil.copytree(made, tmp_path / "received", ignore=ignore))


@pytest.fixture
def ours(made: Path) -> str:
    return read_public_key(str(made / "keys" / "ours.pub"))


def test_what_was_signed_is_valid(made: Path, copy: Path, ours: str) -> None:
    for folder in (made / "run", copy / "run"):  # with and without the operator's folder
        key, statement = verify(folder, ours)
        assert key == ours and set(statement.files) == RUN_FILES and statement.signer == "City Hospital"
    released = verify(copy / "release", ours)[1]
    assert set(released.files) == {p.name for p in (copy / "release").iterdir()} - {FILE}
    for name in ("run/weights.safetensors", "run/card.json", "run/report.html", "release/card.json", "digits.onnx"):
        assert verify(copy / name, ours)[0] == ours


def test_others_can_check_it_without_dpvision(copy: Path, ours: str) -> None:
    """By the standard alone: Ed25519 of the statement, SHA-256 of every file."""
    outer = json.loads((copy / "run" / FILE).read_text())
    signature = base64.b64decode(outer["signature"])
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(ours)).verify(signature, outer["statement"].encode())
    import hashlib

    for name, entry in json.loads(outer["statement"])["files"].items():
        data = (copy / "run" / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _flip(path: Path, at: int = -1) -> None:
    def change(data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    _edit(path, change)


def _outer(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _statement(path: Path, old: str, new: str) -> None:
    outer = json.loads(path.read_text())
    assert old in outer["statement"]
    _outer(path, statement=outer["statement"].replace(old, new, 1))


def _resign(folder: Path) -> None:
    """A forger signs with their own key."""
    key = Ed25519PrivateKey.generate()
    outer = json.loads((folder / FILE).read_text())
    signature = base64.b64encode(key.sign(outer["statement"].encode())).decode()
    _outer(folder / FILE, signature=signature, public_key=key.public_key().public_bytes_raw().hex())


def _link(path: Path) -> None:
    shutil.move(path, path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _huge(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(1 << 40)  # a terabyte of nothing


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FORGERIES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a card that claims another epsilon": (
        "run",
        lambda r: _edit(r / "run/card.json", lambda d: d.replace(b'"epsilon": 2.99', b'"epsilon": 0.99')),
        "'card.json' has other content",
    ),
    "one bit of the weights": (
        "run",
        lambda r: _flip(r / "run/weights.safetensors"),
        "'weights.safetensors' has other",
    ),
    "one bit of an ONNX file": (
        "digits.onnx",
        lambda r: _flip(r / "digits.onnx", 999),
        "'digits.onnx' has other content",
    ),
    "one bit of a released row": (
        "release",
        lambda r: _flip(r / "release/rows-00000.safetensors"),
        "'rows-00000.*other",
    ),
    "a report with a line more": (
        "run",
        lambda r: _edit(r / "run/report.html", lambda d: d + b"\n"),
        "'report.html': it has",
    ),
    "truncated weights": (
        "run/weights.safetensors",
        lambda r: _edit(r / "run/weights.safetensors", lambda d: d[:-4]),
        "'weights.safetensors': it has .* were signed",
    ),
    "a missing file": ("run", lambda r: (r / "run/ledger.jsonl").unlink(), "'ledger.jsonl' is missing"),
    "an extra file": ("run", lambda r: (r / "run/model.onnx").write_bytes(b"x"), "'model.onnx' was not signed"),
    "an extra hidden file": ("release", lambda r: (r / "release/.x").write_bytes(b"x"), "'.x' was not signed"),
    "an extra folder": ("release", lambda r: (r / "release/operator").mkdir(), "'operator' was not signed"),
    "a link in place of the operator's folder": (
        "run",
        lambda r: (r / "run/operator").symlink_to(r / "release"),
        "'operator' was not signed",
    ),
    "two files that changed places": (
        "run",
        lambda r: (
            shutil.move(r / "run/card.md", r / "x"),
            shutil.move(r / "run/report.html", r / "run/card.md"),
            shutil.move(r / "x", r / "run/report.html"),
        ),
        "'card.md': it has .*'report.html': it has",
    ),
    "a file that became a link": ("run", lambda r: _link(r / "run/card.json"), "'card.json': is a link"),
    "a link in place of an ONNX file": ("digits.onnx", lambda r: _link(r / "digits.onnx"), "is a link"),
    "a file that became a pipe": ("run", lambda r: _pipe(r / "run/metrics.jsonl"), "'metrics.jsonl': is a FIFO"),
    "a huge file": ("run", lambda r: _huge(r / "run/card.md"), "'card.md': it has 1,099,511,627,776 bytes"),
    "the signature of the release on the run": (
        "run",
        lambda r: shutil.copy(r / "release" / FILE, r / "run" / FILE),
        "'weights.safetensors' was not signed.*'README.md' is missing",
    ),
    "the signature of the run on a file": (
        "digits.onnx",
        lambda r: shutil.copy(r / "run" / FILE, r / f"digits.onnx.{FILE}"),
        "is the signature of a run, not of 'digits.onnx'",
    ),
    "the signature of a file on another": (
        "other.onnx",
        lambda r: [shutil.copy(r / f"digits.onnx{x}", r / f"other.onnx{x}") for x in ("", f".{FILE}")],
        "is the signature of the file 'digits.onnx', not of 'other.onnx'",
    ),
    "a signature by another key": ("run", lambda r: _resign(r / "run"), "was signed by another key"),
    "the signer's key with a forger's signature": (
        "run",
        lambda r: _outer(r / "run" / FILE, signature=base64.b64encode(bytes(64)).decode()),
        "the signature is not one of this statement",
    ),
    "a statement with another signer": (
        "run",
        lambda r: _statement(r / "run" / FILE, "City Hospital", "City Hospitals"),
        "the signature is not one of this statement",
    ),
    "a statement without a file": (
        "release",
        lambda r: (
            _statement(r / "release" / FILE, '"README.md"', '"READYOU.md"'),
            shutil.move(r / "release/README.md", r / "release/READYOU.md"),
        ),
        "the signature is not one of this statement",
    ),
    "a truncated signature": (
        "run",
        lambda r: _edit(r / "run" / FILE, lambda d: d[:200]),
        "cannot be read as a signature",
    ),
    "a huge signature": ("run", lambda r: _huge(r / "run" / FILE), "more than 4,194,304 bytes"),
    "a signature that is a link": ("run", lambda r: _link(r / "run" / FILE), "is a link"),
    "no signature": ("run", lambda r: (r / "run" / FILE).unlink(), "has no signature, so nobody vouches"),
    "a file that was never signed": (
        "run/notes.json",
        lambda r: (r / "run/notes.json").write_text("{}"),
        "is not among the files that were signed",
    ),
}


def _state(folder: Path) -> dict[Path, object]:
    """Everything below a folder: its kind, its length and, unless it is huge, its bytes."""
    results: dict[Path, object] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        small = stat.S_ISREG(status.st_mode) and status.st_size < 1 << 30
        results[path] = (stat.S_IFMT(status.st_mode), path.read_bytes() if small else status.st_size)
    return results


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_refused_and_named(
    forgery: str, copy: Path, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, forge, named = FORGERIES[forgery]
    before = _state(copy)
    forge(copy)
    assert _state(copy) != before, "nothing was forged"
    with pytest.raises(PrivacyError, match=named):
        verify(copy / target, read_public_key(str(made / "keys" / "ours.pub")))
    assert call(["verify", str(copy / target), "--key", str(made / "keys" / "ours.pub")], monkeypatch) == 4
    assert "valid" not in capsys.readouterr().out


def test_there_are_at_least_twenty_forgeries() -> None:
    assert len(FORGERIES) >= 20


def test_the_key_of_somebody_else_or_none_is_refused(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ours: str
) -> None:
    run = str(made / "run")
    assert call(["verify", run, "--key", str(made / "keys" / "theirs.pub")], monkeypatch) == 4
    assert f"was signed by another key, {ours}" in capsys.readouterr().err
    assert call(["verify", run], monkeypatch) == 4
    output = capsys.readouterr()
    assert ours in output.err and "anyone can make a key" in output.err and "valid" not in output.out
    assert call(["verify", run, "--key", ours], monkeypatch) == 0
    output = capsys.readouterr()
    assert "valid: 9 files as signed by 'City Hospital'" in output.out and "operator/ is not covered" in output.out
    assert call(["verify", run, "--key", str(made / "keys" / "ours.key")], monkeypatch) == 2
    assert "must never leave the signer" in capsys.readouterr().err
    assert call(["verify", run, "--key", "0" * 63], monkeypatch) == 2


def test_a_hostile_signature_file_is_one_clear_error(copy: Path, ours: str) -> None:
    place = copy / "run" / FILE
    key = Ed25519PrivateKey.generate()
    mine = key.public_key().public_bytes_raw().hex()
    outer = json.loads(place.read_text())
    for text in (
        "",
        "[]",
        "null",
        "{}",
        '{"a": ' * 5000,
        json.dumps(outer | {"more": 1}),
        json.dumps(outer | {"format": 3}),
    ):
        place.write_text(text)
        with pytest.raises(PrivacyError, match="cannot be read as a signature"):
            verify(copy / "run", ours)
    inner = json.loads(outer["statement"])
    entry = inner["files"]["card.json"]
    hostile: list[object] = [
        [],
        {**inner, "files": {}},
        {**inner, "files": {"../card.json": entry}},
        {**inner, "files": {"/etc/passwd": entry}},
        {**inner, "files": {"\x1b[31m": entry}},
        {**inner, "files": {"card.json": {**entry, "bytes": -1}}},
        {**inner, "files": {"card.json": {**entry, "bytes": True}}},
        {**inner, "files": {"card.json": {**entry, "sha256": "x"}}},
        {**inner, "files": {"card.json": None}},
        {**inner, "kind": "other"},
        {**inner, "time": "yesterday\x1b"},
        {**inner, "signer": 7},
    ]
    for statement in hostile:
        text = json.dumps(statement)
        changed = {
            "statement": text,
            "public_key": mine,
            "signature": base64.b64encode(key.sign(text.encode())).decode(),
        }
        place.write_text(json.dumps(outer | changed))
        with pytest.raises(PrivacyError, match="its statement cannot be read"):
            verify(copy / "run", mine)


def test_keys_are_files_of_their_owner_outside_of_runs(made: Path, tmp_path: Path) -> None:
    secret = made / "keys" / "ours.key"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and b"PRIVATE" not in (made / "keys" / "ours.pub").read_bytes()
    for folder in ("run", "run/operator", "release"):
        with pytest.raises(PrivacyError, match="which may be handed over"):
            make_key(made / folder / "my.key")
        assert not (made / folder / "my.key").exists() and not (made / folder / "my.pub").exists()
        shutil.copy2(secret, made / folder / "my.key")
        with pytest.raises(PrivacyError, match="which may be handed over"):
            read_key(made / folder / "my.key")
        (made / folder / "my.key").unlink()
    with pytest.raises(ConfigError, match="needs a new name"):
        make_key(secret)
    readable = Path(shutil.copy2(secret, tmp_path / "readable.key"))
    readable.chmod(0o640)
    with pytest.raises(PrivacyError, match="chmod 600"):
        read_key(readable)
    (tmp_path / "linked.key").symlink_to(secret)
    with pytest.raises(ConfigError, match="is a link"):
        read_key(tmp_path / "linked.key")
    with pytest.raises(ConfigError, match="--new-key"):
        read_key(tmp_path / "none.key")
    for name, key, encryption in (
        ("curve", ec.generate_private_key(ec.SECP256R1()), NoEncryption()),
        ("phrase", Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret")),
    ):
        path = tmp_path / f"{name}.key"
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=r"not an Ed25519 key|without a passphrase"):
            read_key(path)


def test_damaged_keys_are_one_clear_error(made: Path, tmp_path: Path) -> None:
    """Every byte of a key, changed: another key, or a message."""
    for name, read in (("ours.pub", lambda p: read_public_key(str(p))), ("ours.key", read_key)):
        data = (made / "keys" / name).read_bytes()
        path = tmp_path / name
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 6]) + data[place + 1 :])
            path.chmod(0o600)
            with suppress(ConfigError):
                read(path)


def test_what_must_not_leave_is_not_signed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = read_key(made / "keys" / "ours.key")
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / "patients.csv").write_text("name\n")
    with pytest.raises(DataError, match=r"'patients.csv' is not a file that a run releases"):
        sign(run, key, signer="x")
    (run / "patients.csv").unlink()
    save_file({"features": np.zeros((2, 3), np.float32)}, run / "features.safetensors")
    with pytest.raises(DataError, match=r"features.safetensors: cannot be read as a safetensors file of dpvision"):
        sign(run, key, signer="x")
    (run / "features.safetensors").unlink()
    release = Path(shutil.copytree(made / "release", tmp_path / "release"))
    save_file({"features": np.zeros((2, 3), np.float32)}, release / "features.safetensors")
    with pytest.raises(DataError, match="do not match its rows"):
        sign(release, key, signer="x")
    (run / "card.md").unlink()
    (run / "card.md").symlink_to(made / "run" / "card.md")
    with pytest.raises(DataError, match=r"'card.md' is not a file"):
        sign(run, key, signer="x")
    (run / "card.md").unlink()
    with pytest.raises(DataError, match="the ledger to compare it with is not on this machine"):
        sign(run, key, signer="x")
    with pytest.raises(DataError, match="no ledger on this machine has the charge"):
        sign(made / "release", key, signer="x")
    for name in ("card.json", "card.md", "report.html", "evidence.html", "ledger.jsonl"):
        with pytest.raises(ConfigError, match="Fix: sign the folder"):
            sign(made / "run" / name, key, signer="x")
    shutil.rmtree(run / "operator")
    with pytest.raises(DataError, match="sign it where it was"):
        sign(run, key, signer="x")
    for target in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError):
            sign(target, key, signer="x")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="sign the folder"):
        sign(tmp_path / "notes.txt", key, signer="x")
    with pytest.raises(ConfigError, match="one line"):
        sign(made / "run", key, signer="a\nb")
    with monkeypatch.context() as patch:
        patch.setenv("DPVISION_HOME", str(tmp_path / "home"))
        patch.setenv("DPVISION_TEST_KEY", "fixed")
        assert call(["train", "digits", "--epsilon", "3", "--steps", "2", "--out", str(tmp_path / "fixed")], patch) == 0
        assert call(["export", str(tmp_path / "fixed"), "--to", "onnx", "--out", str(tmp_path / "f.onnx")], patch) == 0
    for target in (tmp_path / "fixed", tmp_path / "fixed" / "weights.safetensors", tmp_path / "f.onnx"):
        with pytest.raises(PrivacyError, match="must not be released or signed"):
            sign(target, key, signer="x")


def test_signing_again_replaces_the_signature(made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    key = read_key(made / "keys" / "theirs.key")
    again = sign(run, key, signer="again", account=_account_of(made, run))[1]
    np.testing.assert_equal(again.files, verify(made / "run", None)[1].files)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", again.time), "the second would reveal how long a tuning run took"
    assert verify(run, signatures._as_hex(key.public_key()))[1].signer == "again"


def _forge_card(folder: Path, unit: str) -> None:
    """Claim a hundredth of the epsilon for persons, with nothing that is not covered, on every page."""
    card = json.loads((folder / "card.json").read_text())
    card["guarantee"]["epsilon"] /= 100
    (folder / "card.json").write_text(json.dumps({**card, "unit": unit, "not_covered": [], "adjacency": "any"}))
    for page in ("card.md", "report.html", "evidence.html", "README.md"):
        if (folder / page).exists():
            (folder / page).write_text("epsilon 0.01 for any one person")


@pytest.mark.parametrize("name", ["run", "release"])
def test_a_forged_card_is_not_signed(name: str, made: Path, tmp_path: Path) -> None:
    """What is signed is computed again, so nothing of an edited page remains."""
    folder, key = Path(shutil.copytree(made / name, tmp_path / name)), read_key(made / "keys" / "ours.key")
    (folder / FILE).unlink()
    _forge_card(folder, "person")
    for page in ("card.json", "report.html"):
        with pytest.raises(ConfigError, match="Fix: sign the folder"):
            sign(folder / page, key, signer="x")
    sign(folder, key, signer="x", account=_account_of(made, folder))
    for page in made.joinpath(name).iterdir():
        if page.is_file() and page.name != FILE:
            assert (folder / page.name).read_bytes() == page.read_bytes(), page.name


def test_a_release_with_other_settings_than_were_charged_is_not_signed(made: Path, tmp_path: Path) -> None:
    folder, key = Path(shutil.copytree(made / "release", tmp_path / "r")), read_key(made / "keys" / "ours.key")
    account = _account_of(made, folder)
    text = (folder / "card.json").read_text()
    sigma = repr(json.loads(text)["config"]["sigma"])
    (folder / "card.json").write_text(text.replace(f'"sigma": {sigma}', '"sigma": 1000.0'))
    with pytest.raises(DataError, match="no ledger on this machine has the charge"):
        sign(folder, key, signer="x", account=account)


def test_an_export_with_another_card_is_not_signed(made: Path, tmp_path: Path) -> None:
    import onnx

    key, forged = read_key(made / "keys" / "ours.key"), tmp_path / "forged.onnx"
    graph = onnx.load(str(made / "digits.onnx"))
    entry = next(x for x in graph.metadata_props if x.key == "card")
    card = json.loads(entry.value)
    for change in ({"guarantee": {**card["guarantee"], "epsilon": 0.01}}, {"unit": "person"}, {"events": []}):
        entry.value = json.dumps({**card, **change})
        onnx.save(graph, str(forged))
        with pytest.raises(DataError, match="not that of its event"):
            sign(forged, key, signer="x")
    entry.value = json.dumps(card)
    onnx.save(graph, str(forged))
    assert sign(forged, key, signer="x")[1].kind == "file"


def test_weights_alone_need_their_card_and_a_run_its_ledger(made: Path, tmp_path: Path) -> None:
    """Neither a header without a card nor a folder without its ledger states what was charged."""
    key = read_key(made / "keys" / "ours.key")
    save_file({"weight": np.zeros(3, np.float32)}, tmp_path / "w.safetensors", metadata={"private": "yes"})
    with pytest.raises(DataError):
        sign(tmp_path / "w.safetensors", key, signer="x")
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / FILE).unlink()
    (run / "ledger.jsonl").unlink()
    with pytest.raises(DataError, match="the ledger to compare it with is not on this machine"):
        sign(run, key, signer="x", account=None)
