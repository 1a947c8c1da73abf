"""report.html: the card as one self-contained page, without scripts and without anything from another host."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

from dpvision.core.events import Composed, from_json
from dpvision.released.report import audits, on_test, pictures, reference, tables
from dpvision.released.report.numbers import names, percent, plain, upper_percent
from dpvision.released.report.on_test import Point
from dpvision.released.report.reference import Result
from dpvision.released.report.wording import sentence
from dpvision.settings.figures import describe, upper


def render(
    card: dict[str, Any],
    charges: list[dict[str, Any]],
    *,
    points: list[Point],
    evaluation: dict[str, Any] | None = None,
    examples: list[dict[str, Any]] | None = None,
) -> str:
    """The whole page. `evaluation` and `examples` are what the model does on the test split, where that is known."""
    private = card["status"] == "private"
    shown, earlier = tables.latest(charges)
    class_names, more_classes = names(card["public_facts"]["classes"]["value"])
    of = reference.results(card["known_data_set"])
    return filled(
        "page.html",
        pictures=drawn(_pictures(card, points, of)),
        known=reference.KNOWN[card["known_data_set"]].name if of else None,
        references=[
            (recipe, f"{r.epsilon:g}", percent(r.accuracy), f"{r.runs}") for recipe, rs in of.items() for r in rs
        ],
        on_test=_on_test(evaluation, examples or [], card),
        phases=tables.phases(card),
        audited=audits.rows(card),
        private=private,
        status=card["status"],
        sentence=sentence(card),
        run=plain(card["run"]),
        unit=card["unit"],
        big=_big(card),
        figures=tables.overview(card),
        attack_head=tables.ATTACK_HEAD,
        attack=tables.attack(card),
        public=tables.public(card),
        class_names=class_names,
        more_classes=more_classes,
        not_covered=card["not_covered"],
        accountant=tables.accountant(card),
        settings=tables.settings(card),
        ledger=tables.account(card) if card["data_set"] else None,
        charges=[_charge(c, this=c["run"] == card["run"]) for c in shown],
        earlier=earlier,
        bar=_bar(card, charges),
    )


def filled(template: str, **values: Any) -> str:
    """A template of ours with these values. Everything is escaped but our own style sheet and what `drawn` marks."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("dpvision.released.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    whole = environment.from_string((here / template).read_text("utf-8"))
    return whole.render(css=Markup((here / "page.css").read_text("utf-8")), **values)


def drawn(pictures: dict[str, str | None]) -> dict[str, str]:
    """Pictures of ours, to be put on the page as they are; those that are None are left out."""
    from markupsafe import Markup

    return {name: Markup(text) for name, text in pictures.items() if text}


def _on_test(
    evaluation: dict[str, Any] | None, examples: list[dict[str, Any]], card: dict[str, Any]
) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    shown = on_test.section(evaluation, examples, card["public_facts"]["classes"]["value"])
    calibration = pictures.calibration(evaluation["bins"], error=evaluation["calibration_error"])
    return {**shown, **drawn({"calibration": calibration})}


def _big(card: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The four figures at the top: name, value, what it means."""
    accuracy, data_set = card["accuracy"], card["data_set"]
    epsilon = card["guarantee"]["epsilon"]
    hint = f"at delta {card['guarantee']['delta']:g}, for any one {card['unit']}; smaller is more private"
    one = next(x for x in card["attack_success"] if x["false_positive_rate"] == 0.01)
    many = "people" if card["unit"] == "person" else "images"
    return [
        ("epsilon", upper(epsilon), "no guarantee" if epsilon is None else hint),
        (
            "best attack",
            upper_percent(one["true_positive_rate_at_most"]),
            f"of the {many} inside found at most, if 1% of those outside are wrongly reported",
        ),
        (
            "test accuracy",
            percent(accuracy["released_test_accuracy"]) if accuracy else "unknown",
            "of the released weights" if accuracy else "there is no test split",
        ),
        (
            "budget left",
            tables.left(card),
            f"of epsilon {data_set['epsilon_budget']:g}, for all runs on this data"
            if data_set
            else "no ledger was read",
        ),
    ]


def _pictures(card: dict[str, Any], points: list[Point], of: dict[str, list[Result]]) -> dict[str, str | None]:
    """Curves of epsilon are drawn only where epsilon means something."""
    private = card["status"] == "private"
    release = card["config"]["release"]
    points = [p for p in points if not private or math.isfinite(p.epsilon)]
    made = {"accuracy": pictures.accuracy(points, released=release)}
    if private:
        event = Composed(tuple(from_json(e) for e in card["events"]))
        made["epsilon"] = pictures.epsilon_by_length(
            event, card["guarantee"]["delta"], budget=card["config"]["epsilon"], phases=card["phases"]
        )
        made["attack"] = pictures.attack_success(event)
        made["trade_off"] = pictures.trade_off(
            card["guarantee"]["epsilon"], (card["accuracy"] or {}).get("released_test_accuracy"), of=of
        )
        if card["audit"]:
            made["audit"] = pictures.audit(card["audit"], audits.SHORT, epsilon=card["guarantee"]["epsilon"])
    return made


def _charge(charge: dict[str, Any], *, this: bool) -> dict[str, Any]:
    return {
        "time": plain(charge["time"]).replace("T", " ").removesuffix("+00:00"),
        "run": plain(charge["run"]),
        "this": this,
        "event": describe(from_json(charge["event"])),
        "epsilon": upper(charge["epsilon"]),
    }


def _bar(card: dict[str, Any], charges: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The budget as a bar: what each run added to the total, this run's own part marked."""
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
