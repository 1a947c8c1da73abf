"""report.html: the card as one self-contained page, without scripts and without anything from another host."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

from dpvision.privacy.events import Composed, describe, from_json
from dpvision.privacy.rounding import upper
from dpvision.report import pictures, tables
from dpvision.report.figures import names, percent, plain
from dpvision.report.metrics import Point
from dpvision.report.wording import sentence


def render(card: dict[str, Any], charges: list[dict[str, Any]], *, points: list[Point]) -> str:
    """The whole page. Everything is escaped but our own style sheet and our own pictures."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = files("dpvision.report")
    private = card["status"] == "private"
    shown, earlier = tables.latest(charges)
    class_names, more_classes = names(card["public_facts"]["classes"]["value"])
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string((here / "page.html").read_text("utf-8"))
    return template.render(
        css=Markup((here / "page.css").read_text("utf-8")),
        pictures={name: Markup(text) for name, text in _pictures(card, points).items() if text},
        private=private,
        status=card["status"],
        sentence=sentence(card),
        run=plain(card["run"]),
        unit=card["unit"],
        big=_big(card),
        figures=tables.figures(card),
        attack_head=tables.ATTACK_HEAD,
        attack=tables.attack(card),
        public=tables.public(card),
        class_names=class_names,
        more_classes=more_classes,
        not_covered=card["not_covered"],
        accountant=tables.accountant(card),
        settings=tables.settings(card),
        ledger=tables.spent(card) if card["data_set"] else None,
        charges=[_charge(c, this=c["run"] == card["run"]) for c in shown],
        earlier=earlier,
        bar=_bar(card, charges),
    )


def _big(card: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The four figures at the top: name, value, what it means."""
    accuracy, data_set = card["accuracy"], card["data_set"]
    epsilon = card["guarantee"]["epsilon"]
    delta, n = card["guarantee"]["delta"], card["public_facts"]["n"]["value"]
    slack = "below" if delta * n < 1 else "should be below"
    hint = "no guarantee" if epsilon is None else f"for any one {card['unit']}; smaller is more private"
    return [
        ("epsilon", upper(epsilon), hint),
        ("delta", f"{delta:g}", f"slack of the bound; {slack} one in {n:,}, the number of {card['unit']}s"),
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


def _pictures(card: dict[str, Any], points: list[Point]) -> dict[str, str | None]:
    """Curves of epsilon are drawn only where epsilon means something."""
    private = card["status"] == "private"
    release = card["config"]["release"]
    points = [p for p in points if not private or math.isfinite(p.epsilon)]
    drawn = {"accuracy": pictures.accuracy(points, released=release, over_epsilon=private)}
    if private:
        event = Composed(tuple(from_json(e) for e in card["events"]))
        drawn["epsilon"] = pictures.epsilon_over_steps(points, budget=card["config"]["epsilon"])
        drawn["attack"] = pictures.attack_success(event)
    return drawn


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
