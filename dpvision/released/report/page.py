"""report.html of a run or a released data set: one self-contained page, without scripts and network requests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.core.account import Account
from dpvision.core.events import Composed, Event, from_json
from dpvision.errors import DataError
from dpvision.released import evaluation, groups
from dpvision.released.advice import advise
from dpvision.released.evaluation import Point, summary
from dpvision.released.folder import FinishedRelease
from dpvision.released.report import cards, guarantee, pictures, tables, wording
from dpvision.released.report.cards import card as card_of
from dpvision.released.report.tables import names, percent, plain, upper_percent
from dpvision.released.report.wording import sentence
from dpvision.settings.figures import upper
from dpvision.storage.run_folder import Run, hide_times

MAX_SHADED = 20  # classes up to which the confusion matrix is shown; with more, only the most frequent confusions
MAX_ROWS = 40  # classes that are listed; if there are more, those with the lowest recall
MAX_CONFUSED = 10
# Shares of a row at which a new shade begins: one confusion is visible, and a half differs from nearly all.
SHADES = (0.0, 0.05, 0.2, 0.5, 0.8)
# Parts that only the page of a run, or only that of a release, has.
ABSENT = dict.fromkeys(
    ("note", "known", "references", "test", "use", "learners", "advice", "phases", "charges", "earlier", "bar")
)


def run_page(
    card: dict[str, Any],
    charges: list[dict[str, Any]],
    *,
    points: list[Point],
    test: dict[str, Any] | None = None,
    examples: list[dict[str, Any]] | None = None,
) -> str:
    """Return the page of a run. `test` and `examples` are its evaluation on the test split, if it has one."""
    shown, earlier = tables.latest(charges)
    results = evaluation.results(card["known_data_set"])
    class_names, more_classes = names(card["public_facts"]["classes"]["value"])
    return fill(
        "page.html",
        **_common_values(card, test),
        kind="run",
        pictures=as_markup(_pictures(card) | _run_pictures(card, points, results)),
        known=evaluation.KNOWN[card["known_data_set"]].name if results else None,
        references=[
            (recipe, f"{r.epsilon:g}", percent(r.accuracy), f"{r.runs}") for recipe, rs in results.items() for r in rs
        ],
        test=_test_section(test, examples or [], card),
        advice=advise(card),
        phases=tables.phases(card),
        figures=tables.overview(card, test),
        public=tables.public(card),
        class_names=class_names,
        more_classes=more_classes,
        charges=[{"cells": tables.charge(c), "this": c["run"] == card["run"]} for c in shown],
        earlier=earlier,
        bar=_bar(card, charges),
    )


def release_page(card: dict[str, Any]) -> str:
    """Return the page of a released data set."""
    class_names, more_classes = names(card["classes"])
    return fill(
        "page.html",
        **_common_values(card),
        kind="release",
        pictures=as_markup(_pictures(card)),
        use={
            "rows": f"{card['rows']:,}",
            "private": card["status"] == "private",
            "read": wording.READ_ROWS,
            "moments": wording.use_moments(card) if wording.has_moments(card) else None,
            "files": wording.files_of(card),
        },
        learners=[(plain(name), *shares) for name, *shares in tables.learners(card)],
        figures=tables.release_overview(card),
        public=tables.release_public(card),
        class_names=class_names,
        more_classes=more_classes,
    )


def fill(template: str, **values: Any) -> str:
    """Fill a template. Everything is escaped, except the style sheet and what `as_markup` marks."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = resources.files("dpvision.released.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string((here / template).read_text("utf-8"))
    return page.render(css=Markup((here / "page.css").read_text("utf-8")), **{**ABSENT, **values})


def as_markup(drawings: dict[str, str | None]) -> dict[str, str]:
    """Mark pictures drawn by this package as safe to insert unescaped; leave out those that are None."""
    from markupsafe import Markup

    return {name: Markup(text) for name, text in drawings.items() if text}


def _common_values(card: dict[str, Any], test: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what every page shows."""
    return {
        "note": evaluation.warning(test, card["public_facts"]["classes"]["value"]) if test else None,
        "private": card["status"] == "private",
        "status": card["status"],
        "sentence": sentence(card),
        "name": plain(card["run"]),
        "what": card.get("what", "model"),
        "unit": card["unit"],
        "big": _big(card, test),
        "attack": tables.attack(card),
        "reconstruction": tables.reconstruction(card),
        "reconstruction_means": wording.RECONSTRUCTION,
        "audited": tables.audits(card),
        "ledger": tables.account(card) if card["data_set"] else None,
        "not_covered": card["not_covered"],
        "accountant": tables.accountant(card),
        "settings": tables.settings(card),
        "heads": tables.HEADS,
    }


def _big(card: dict[str, Any], test: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return the four figures at the top: name, value, meaning."""
    epsilon, data_set = card["guarantee"]["epsilon"], card["data_set"]
    delta = f"at delta {card['guarantee']['delta']:g}, for any one {card['unit']}; lower is more private"
    attack = next(x for x in card["attack_success"] if x["false_positive_rate"] == 0.01)
    return [
        ("epsilon", upper(epsilon), "no guarantee" if epsilon is None else delta),
        (
            "best possible attack",
            upper_percent(attack["true_positive_rate_at_most"]),
            "of members found, at most, when 1% of non-members are wrongly reported",
        ),
        ("test accuracy", *_accuracy(card, test)),
        (
            "budget left",
            tables.budget_left(card),
            f"of epsilon {data_set['epsilon_budget']:g} for this data set, when this page was written"
            if data_set
            else "no ledger was read",
        ),
    ]


def _accuracy(card: dict[str, Any], test: dict[str, Any] | None) -> tuple[str, str]:
    accuracy = card["accuracy"]
    if not accuracy:
        return "unknown", "there is no test split"
    if card.get("what") == "data set":
        best = max(accuracy, key=lambda name: accuracy[name])
        return percent(accuracy[best]), plain(best)
    if test is None:
        return percent(accuracy["released_test_accuracy"]), "of the released weights"
    short = summary(test)
    assert short is not None
    balanced = "" if short["balanced_accuracy"] is None else f"balanced {percent(short['balanced_accuracy'])}; "
    if test["task"] == "labels":
        return percent(accuracy["released_test_accuracy"]), f"of the known labels; {balanced}of the released weights"
    always = f"the most frequent class alone would give {percent(evaluation.majority(test)[1])}"
    return percent(accuracy["released_test_accuracy"]), f"of the released weights; {balanced}{always}"


def _event(card: dict[str, Any]) -> Event:
    return Composed(tuple(from_json(e) for e in card["events"]))


def _pictures(card: dict[str, Any]) -> dict[str, str | None]:
    """Draw what every private card has: the bound on attacks, and the audits."""
    if card["status"] != "private":
        return {}
    audit = card["audit"]
    bounds = pictures.audit(audit, tables.AUDITS_IN_PICTURE, epsilon=card["guarantee"]["epsilon"]) if audit else None
    return {"attack": pictures.attack_success(_event(card)), "audit": bounds}


def _run_pictures(
    card: dict[str, Any], points: list[Point], results: dict[str, list[evaluation.Result]]
) -> dict[str, str | None]:
    """Draw the training of a run; curves of epsilon only if the run is private."""
    private = card["status"] == "private"
    points = [p for p in points if not private or math.isfinite(p.epsilon)]
    drawings = {"accuracy": pictures.accuracy(points, released=card["config"]["release"])}
    if private:
        drawings["epsilon"] = pictures.epsilon_by_length(
            _event(card), card["guarantee"]["delta"], target=card["config"]["epsilon"], phases=card["phases"]
        )
        drawings["trade_off"] = pictures.trade_off(
            card["guarantee"]["epsilon"], (card["accuracy"] or {}).get("released_test_accuracy"), results=results
        )
    return drawings


def _test_section(
    test: dict[str, Any] | None, examples: list[dict[str, Any]], card: dict[str, Any]
) -> dict[str, Any] | None:
    """Return what the page shows about the test split, as plain values."""
    overall = summary(test)
    if test is None or overall is None:
        return None
    class_names = [plain(name) for name in card["public_facts"]["classes"]["value"]]
    found = evaluation.by_class(test, range(len(class_names)))
    nothing: dict[str, Any] = {"images": 0, "recall": None, "precision": None}
    rows = [(name, found.get(place, nothing)) for place, name in enumerate(class_names)]
    shown = rows
    if len(rows) > MAX_ROWS:
        shown = sorted(rows, key=lambda row: (row[1]["recall"] is None, row[1]["recall"]))[:MAX_ROWS]
    table = test["confusion"]
    drawing = pictures.calibration(test["bins"], error=test["calibration_error"])
    return {
        "images": f"{test['images']:,}",
        "several": test["task"] == "labels",
        "accuracy": percent(overall["accuracy"]),
        "measures": tables.measures(overall),
        "method": wording.INTERVALS,
        "groups": _groups_section(test, class_names),
        "calibration_error": percent(test["calibration_error"]),
        **as_markup({"calibration": drawing}),
        "classes": [
            {
                "name": name,
                "images": f"{row['images']:,}",
                "known": f"{row.get('known', 0):,}",
                "width": f"{100 * (row['recall'] or 0):.1f}",
                **{key: _or_none(row.get(key), percent) for key in ("recall", "precision", "specificity")},
                **{key: _or_none(row.get(key), tables.decimal) for key in ("auroc", "average_precision")},
                "recall_interval": tables.between(row.get("recall_interval"), percent),
                "auroc_interval": tables.between(row.get("auroc_interval"), tables.decimal),
            }
            for name, row in shown
        ],
        "left_out": len(rows) - len(shown),
        "table": _shade(table, class_names) if table and len(class_names) <= MAX_SHADED else None,
        "confused": [(class_names[a], class_names[b], f"{times:,}") for a, b, times in test["confused"][:MAX_CONFUSED]],
        "examples": [
            {
                "right": x["class"] == x["named"],
                "png": x["png"],
                "is": class_names[x["class"]],
                "named": class_names[x["named"]],
                "chance": f"{100 * x['chance']:.0f}%",
            }
            for x in examples
        ],
    }


def _groups_section(test: dict[str, Any], class_names: list[str]) -> dict[str, Any] | None:
    if not test.get("groups"):
        return None
    rows = groups.describe_cells(test["groups"], class_names)
    shown = [(plain(name) or groups.NOT_STATED, *rest) for name, *rest in rows]
    return {"head": groups.HEAD, "rows": shown, "warning": groups.WARNING if test["groups"]["hidden"] else None}


def _or_none(value: float | None, show: Callable[[float], str]) -> str:
    return "none" if value is None else show(value)


def _shade(table: list[list[int]], class_names: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a confusion matrix as cells: a count, and its shade by its share of the row."""
    shaded = []
    for row_number, (name, row) in enumerate(zip(class_names, table, strict=True)):
        whole = sum(row) or 1
        cells = [
            {
                "count": f"{count:,}" if count else "",
                "shade": sum(count / whole > share for share in SHADES),
                "right": row_number == column,
            }
            for column, count in enumerate(row)
        ]
        shaded.append({"name": name, "cells": cells})
    return shaded


def _bar(card: dict[str, Any], charges: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the budget as a bar: what each run added to the total, with this run's part marked."""
    data_set = card["data_set"]
    if data_set is None or data_set["epsilon_spent"] is None:
        return None
    whole = max(data_set["epsilon_budget"], data_set["epsilon_spent"])
    parts: list[dict[str, Any]] = []
    before = 0.0
    for charge in charges:
        this, width = charge["run"] == card["run"], 100 * (charge["epsilon"] - before) / whole
        before = charge["epsilon"]
        if parts and parts[-1]["this"] == this:
            parts[-1]["width"] += width
        else:
            parts.append({"this": this, "width": width})
    label = f"Epsilon {upper(data_set['epsilon_spent'])} of {data_set['epsilon_budget']:g} is spent on this data set."
    return {
        "label": label,
        "parts": [{"this": p["this"], "width": f"{max(0.0, p['width']):.2f}"} for p in parts],
        "others": any(not p["this"] for p in parts),
    }


def write(run: Run, account: Account | None) -> list[Path]:
    """Write the files of a run, each atomically; ledger.jsonl only if there is an account. Return their paths."""
    made = card_of(run, account)
    charges = guarantee.ledger_lines(account) if account else []
    of = {"classes": len(made["public_facts"]["classes"]["value"]), "weights": made["weights_digest"]}
    test = evaluation.read_evaluation(run, **of)
    report = run_page(
        made, charges, points=evaluation.read_metrics(run), test=test, examples=evaluation.read_examples(run, **of)
    )
    texts = {"card.json": _as_json(made), "card.md": wording.run_card(made, charges, test), "report.html": report}
    if account:
        texts["ledger.jsonl"] = "".join(json.dumps(line, allow_nan=False) + "\n" for line in charges)
    written = _write(run.folder, texts)
    hide_times(run)
    return written


def write_release(folder: Path, facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """Write the card, the report and the README of a new release; return the card."""
    made = cards.release_card(facts, account)
    _write(folder, _release_texts(made))
    return made


def rewrite_release(release: FinishedRelease, account: Account | None = None) -> list[Path]:
    """Regenerate the card, the report and the README of a finished release, with its audits. Return their paths."""
    made = cards.audited_card(release, account)
    try:
        texts = _release_texts(made)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise DataError(
            f"{release.folder / 'card.json'}: not a valid card of a release ({exc!r}). Fix: copy the folder again."
        ) from exc
    return _write(release.folder, texts)


def _release_texts(made: dict[str, Any]) -> dict[str, str]:
    return {
        "card.json": _as_json(made),
        "card.md": wording.release_card(made),
        "report.html": release_page(made),
        "README.md": wording.readme(made),
    }


def _as_json(made: dict[str, Any]) -> str:
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        files.write(folder / name, text, mode=0o644)
    return [folder / name for name in texts]
