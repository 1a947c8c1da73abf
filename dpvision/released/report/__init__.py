"""Cards and reports: card.json, card.md and report.html of a finished run or a released data set.

    card(run, account)         the guarantee of a run and what it rests on, as plain JSON values
    on_weights(facts, config)  the part of it that goes into the header of the weights
    sentence(card)             the guarantee in one sentence
    write(run, account)        card.json, card.md, report.html and ledger.jsonl of a run
    write_release(...)         card.json, card.md, report.html and README.md of a new release
    rewrite_release(release)   card.json, card.md and report.html of a release that is finished

Only what may be released goes into them: public settings, what the model does on the test split, the account of the
data set. The fingerprint of the data, its path and the operator's log stay in `operator/`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.core.account import Account
from dpvision.errors import DataError
from dpvision.released import evaluation
from dpvision.released.folder import FinishedRelease
from dpvision.released.report import accounts, cards, markdown, page
from dpvision.released.report.cards import card, on_weights
from dpvision.released.report.wording import sentence
from dpvision.storage.run_folder import Run

__all__ = ["card", "on_weights", "rewrite_release", "sentence", "write", "write_release"]


def write(run: Run, account: Account | None) -> list[Path]:
    """Write the files of a run, each atomically; ledger.jsonl only where there is an account. Return their paths."""
    made = card(run, account)
    charges = accounts.ledger_lines(account) if account else []
    of = {"classes": len(made["public_facts"]["classes"]["value"]), "weights": made["weights_digest"]}
    report = page.run_page(
        made,
        charges,
        points=evaluation.read_metrics(run),
        evaluation=evaluation.read_evaluation(run, **of),
        examples=evaluation.read_examples(run, **of),
    )
    texts = {"card.json": _as_json(made), "card.md": markdown.run_card(made, charges), "report.html": report}
    if account:
        texts["ledger.jsonl"] = "".join(json.dumps(line, allow_nan=False) + "\n" for line in charges)
    return _write(run.folder, texts)


def write_release(folder: Path, facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """Write the card, the report and the README of a new release; return the card."""
    made = cards.release_card(facts, account)
    _write(folder, {**_release_texts(made), "README.md": markdown.readme(made)})
    return made


def rewrite_release(release: FinishedRelease) -> list[Path]:
    """Write the card and the report of a finished release again, with its audits. Return their paths."""
    made = cards.audited_card(release)
    try:
        texts = _release_texts(made)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise DataError(
            f"{release.folder / 'card.json'}: not what a release writes ({exc!r}). Fix: copy the folder again."
        ) from exc
    return _write(release.folder, texts)


def _release_texts(made: dict[str, Any]) -> dict[str, str]:
    return {
        "card.json": _as_json(made),
        "card.md": markdown.release_card(made),
        "report.html": page.release_page(made),
    }


def _as_json(made: dict[str, Any]) -> str:
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        files.write(folder / name, text, mode=0o644)
    return [folder / name for name in texts]
