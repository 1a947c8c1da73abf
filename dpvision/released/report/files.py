"""Writes the card, the page and the ledger's lines into the run folder."""

from __future__ import annotations

import json
from pathlib import Path

from dpvision.core import files
from dpvision.core.ledger import Account
from dpvision.released.report import charges, markdown, metrics, page, tested
from dpvision.released.report.card import card
from dpvision.storage.leftovers import clear
from dpvision.storage.run_folder import Run


def write(run: Run, account: Account | None) -> list[Path]:
    """Write card.json, card.md, report.html and, where there is an account, ledger.jsonl; each whole or not at all.

    What a kill left of a tuning's trials is removed.
    """
    clear(run)
    made = card(run, account)
    told = charges.lines(account) if account else []
    of = {"classes": len(made["public_facts"]["classes"]["value"]), "weights": made["weights_digest"]}
    found, examples = tested.read(run, **of), tested.examples(run, **of)
    texts = {
        "card.json": json.dumps(made, indent=1, allow_nan=False) + "\n",
        "card.md": markdown.render(made, told),
        "report.html": page.render(made, told, points=metrics.read(run), found=found, examples=examples),
    }
    if account:
        texts["ledger.jsonl"] = charges.as_text(told)
    for name, text in texts.items():
        files.write(run.folder / name, text, mode=0o644)
    return [run.folder / name for name in texts]
