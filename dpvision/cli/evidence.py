"""The verbs evidence, sign and verify: the document for the data protection officer, and signatures of what leaves."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpvision.cli import screen
from dpvision.cli.app import Json, existing, flag, option, verb
from dpvision.errors import DataError, PrivacyError

if TYPE_CHECKING:
    from dpvision.core.account import Account


@verb
def evidence(
    folder: Annotated[Path, existing("Folder of a finished run or a release.")], /, *, json: Json = False
) -> None:
    """Write one document for the data protection officer.

    evidence.html in the folder answers, from the card, the ledger and the audit, the topics of NIST SP 800-226, the
    questions of EDPB Opinion 28/2024 about the anonymity of models, the fields of a registry of deployments, and the
    metadata of a model card. Each answer names its source. What software cannot answer is left to people. The report
    and the card are regenerated too, so that they agree with it.

    Example: `dpvision evidence runs/first`
    """
    from dpvision.released.report import evidence as document

    place = Path(os.path.abspath(folder))
    card = _card(place, write=not json)
    try:
        if json:
            screen.as_json(document.collect(card))
            return
        path = document.write(place, card)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:  # a forged card
        raise DataError(f"{place / 'card.json'}: not a valid card ({exc!r}). Fix: copy the folder again.") from exc
    counts = document.count(card)
    screen.say(
        f"wrote {path}: {counts['answered']:,} questions are answered from this {_noun(card)}, "
        f"{counts['in part']:,} in part, and {counts['left']:,} are not answered by software"
    )


@verb
def sign(
    target: Annotated[Path, existing("Folder of a finished run or a release, or a weights or ONNX file.")],
    /,
    *,
    key: Annotated[Path, option("Privacy", "File of the private key. It stays outside of run folders.")],
    signer: Annotated[
        str, option("Output", "Name of the signer, as verify shows it; it is signed too.", show_default="not named")
    ] = "not named",
    new_key: Annotated[bool, flag("Privacy", "Create the key first, and its public key NAME.pub for others.")] = False,
) -> None:
    """Sign everything that may leave a run or a release.

    Regenerates the card, the report and the other pages, and writes signature.json into the folder, or
    FILE.signature.json next to an export: an Ed25519 signature of the lengths and SHA-256 digests of all files. Sign
    last: every later change, such as a new report, needs a new signature.

    Example: `dpvision sign runs/first --key hospital.key --new-key --signer "Radiology, City Hospital"`
    """
    from dpvision.released import signatures

    if new_key:
        screen.say(f"wrote {key} (keep it secret) and {signatures.make_key(key)} (give it to those who verify)")
    secret, place = signatures.read_key(key), Path(os.path.abspath(target))
    place, statement = signatures.sign(place, secret, signer=signer, account=_account(place))
    size = sum(x.size for x in statement.files.values())
    screen.say(f"wrote {place}: {_files(statement)}, {size:,} bytes, signed by {statement.signer!r}")


@verb
def verify(
    target: Annotated[Path, existing("Signed folder, or a file of one, or a file that was signed alone.")],
    /,
    *,
    key: Annotated[
        str | None,
        option(
            "Privacy",
            "The signer's public key, from a source that you trust: a .pub file, or its 64 hexadecimal digits.",
            default="none: check the bytes, and show whose key to ask for",
        ),
    ] = None,
) -> None:
    """Check who vouches for a run, a release or a file, and for which bytes.

    Anything that was altered, added, removed or replaced since it was signed is named, and the exit code is 4. A valid
    signature shows that the holder of the key vouches for these bytes, not that what they claim is true.

    Example: `dpvision verify runs/first --key hospital.pub`, or
    `dpvision verify runs/first/weights.safetensors --key hospital.pub`
    """
    from dpvision.released import signatures

    place = Path(os.path.abspath(target))
    signer_key, statement = signatures.verify(place, None if key is None else signatures.read_public_key(key))
    checked = _files(statement) if place.is_dir() else "the file"
    if key is None:
        raise PrivacyError(
            f"{target}: {checked} as signed by key {signer_key}, under the name {statement.signer!r}. This alone shows "
            "nothing about who signed: anyone can make a key and use any name. Fix: get the signer's public key from "
            f"a source that you trust, then `dpvision verify {shlex.quote(str(target))} --key SIGNER.pub`."
        )
    screen.say(f"valid: {checked} as signed by {statement.signer!r} on {statement.time[:10]}")
    screen.table({"key": signer_key, **({} if place.is_file() else {n: x.sha256 for n, x in statement.files.items()})})
    if place.is_dir() and (place / signatures.OPERATOR).is_dir():
        screen.say("note: operator/ is not covered. It is private to the operator and must never be handed over.")


def _files(statement: Any) -> str:
    count = len(statement.files)
    return "1 file" if count == 1 else f"{count:,} files"


def _noun(card: dict[str, Any]) -> str:
    return "release" if card.get("what") == "data set" else "run"


def _account(place: Path) -> Account | None:
    """Return the account that a run or a release was charged to, if its ledger is on this machine."""
    from dpvision.cli.train import find_account
    from dpvision.released.folder import read_release
    from dpvision.storage.home import account_of_charge
    from dpvision.storage.run_folder import Run, clear

    if (place / "schema.json").exists():
        return account_of_charge(read_release(place).card["run"])
    run = Run(place)
    if not (run.operator / "run.json").exists():
        return None
    clear(run)
    return find_account(run)


def _card(place: Path, *, write: bool) -> dict[str, Any]:
    """Return the card of a run or a release, computed again, not taken from a file; `write` regenerates its files."""
    if (place / "schema.json").exists():
        from dpvision.released.folder import read_release
        from dpvision.released.report import rewrite_release
        from dpvision.released.report.cards import audited_card

        release = read_release(place)
        if write:
            rewrite_release(release)
        return audited_card(release)
    from dpvision.cli.train import find_account
    from dpvision.released.report import card
    from dpvision.released.report import write as write_files
    from dpvision.storage.run_folder import Run, clear

    run = Run(place)
    run.config()
    clear(run)
    account = find_account(run)
    if write:
        write_files(run, account)
    return card(run, account)
