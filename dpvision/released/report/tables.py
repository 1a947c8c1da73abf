"""Rows of the tables that card.md, README.md and report.html share, and the format of numbers and names.

Upper bounds are rounded up. Text is not escaped here, but user-supplied names cannot break a line.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from dpvision.core.events import from_json
from dpvision.released.evaluation import describe_trivial, majority
from dpvision.settings.figures import ARITHMETIC, describe, lower, upper

Row = tuple[str, ...]

# Limits on what a page shows of a list, a name or a ledger; card.json and ledger.jsonl are complete.
MAX_NAMES = 40
MAX_LETTERS = 60
MAX_TEXT = 1000  # characters in a sentence
MAX_CHARGES = 300

IDEAL = "up to the sampler's distance from the ideal Gaussian (see the promise)"
HEADS = {
    "attack": ("non-members wrongly reported", "members found, at most"),
    "reconstruction": ("guessed right without the record in the data", "guessed right with it, at most"),
    "phases": ("phase", "steps", "epsilon added", "epsilon of a run that ends here"),
    "public": ("fact", "value", "source"),
    "accountant": ("figure", "value", "meaning"),
    "charges": ("time (UTC)", "run", "charged for", "epsilon so far"),
}

BALANCED = "balanced accuracy on the test split (mean recall)"
# The names of a card's audits in tables and in pictures.
AUDITS = {"mechanism": "audit with canaries in this mechanism", "one_run": "audit with canaries in this run"}
AUDITS_IN_PICTURE = {"mechanism": "canaries in this mechanism", "one_run": "canaries in this run"}

MECHANISM = {
    "name": "mechanism",
    "sigma": "noise multiplier sigma",
    "noise_x": "standard deviation of the noise in a feature",
    "noise_y": "standard deviation of the noise in a label",
    "degree": "expected number of records in a row",
}


def upper_percent(share: float) -> str:
    """Format a share as a percentage with three significant digits, rounded up: 0.14251 is 14.3%."""
    percent = 100 * share
    if percent <= 0 or percent >= 100:
        return "0%" if percent <= 0 else "100%"
    digits = 2 - math.floor(math.log10(percent))
    return f"{min(math.ceil(percent * 10.0**digits - ARITHMETIC) / 10.0**digits, 100.0):.6g}%"


def percent(share: float) -> str:
    """Format a share as a percentage with one decimal place, rounded to nearest."""
    return f"{100 * share:.1f}%"


def plain(text: object, *, most: int = MAX_LETTERS) -> str:
    """Put a user-supplied name on one line, with control characters and bidirectional marks replaced."""
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in str(text))
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def names(values: Sequence[object]) -> tuple[list[str], int]:
    """Return the first names of a list, and the number of those left out."""
    return [plain(v) for v in values[:MAX_NAMES]], max(0, len(values) - MAX_NAMES)


def setting(value: Any) -> str:
    """Format the value of one setting."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown, more = names(value)
        return ", ".join(shown) + (f" and {more:,} more" if more else "")
    return plain(value)


def overview(card: dict[str, Any], test: dict[str, Any] | None = None) -> list[Row]:
    """Return the main figures of a run; `test` is its evaluation on the test split."""
    accuracy, data_set, sampler = card["accuracy"], card["data_set"], card["sampler"]
    rows: list[Row] = [
        *_guarantee(card),
        (
            "test accuracy of the released weights",
            percent(accuracy["released_test_accuracy"]) if accuracy else "unknown",
        ),
        *([] if card["config"].get("head") else [("test accuracy, averaged and last weights", _both(accuracy))]),
    ]
    if test:
        if test["task"] == "labels":
            rows.append(("most frequent answers", describe_trivial(test, card["public_facts"]["classes"]["value"])))
        else:
            most, share = majority(test)
            name = plain(card["public_facts"]["classes"]["value"][most])
            rows.append(
                ("test accuracy of always answering with the most frequent class", f"{percent(share)} ({name})")
            )
    if card["evaluation"]:
        rows += measures(card["evaluation"])
        rows.append(("expected calibration error on the test split", percent(card["evaluation"]["calibration_error"])))
    if data_set:
        rows.append(
            ("epsilon spent on the data set by all runs", f"{_spent(data_set)} of {data_set['epsilon_budget']:g}")
        )
    rows += [
        *_overlaps(card),
        ("sampling", f"{sampler['name']}: each {card['unit']} is in a step with probability {sampler['rate']:.4g}"),
        ("steps", f"{sampler['steps']:,}"),
        *(
            [("of these, for the mean of the features", "1, the first")]
            if card["config"].get("part") == "centred-head"
            else []
        ),
        *_probe(card["probe"]),
        ("views per image", f"{card['mechanism']['views']:,}, averaged before clipping"),
        ("clipping norm", setting(card["mechanism"]["clip"])),
        ("noise multiplier sigma", setting(card["mechanism"]["sigma"])),
        ("noise", card["mechanism"]["noise"]),
        *audits(card),
        ("tuning", card["tuning"]),
        ("settings chosen by hand", _by_hand(card["chosen_by_hand"])),
        ("licence of the weights", plain(card["licence"] or "not stated")),
        ("run", plain(card["run"])),
    ]
    return rows


def measures(short: dict[str, Any]) -> list[Row]:
    """Return the measures on the test split next to accuracy, with their 95% intervals (released/measures.py)."""
    rows: list[Row] = [(BALANCED, _estimate(short, "balanced_accuracy", percent))]
    if short.get("accuracy_interval"):
        rows.insert(0, ("95% interval of the test accuracy", between(short["accuracy_interval"], percent)))
    names = {"macro_auroc": "AUROC on the test split, mean over classes or labels", "kappa": "quadratic weighted kappa"}
    rows += [(name, _estimate(short, key, decimal)) for key, name in names.items() if short.get(key) is not None]
    if short.get("macro_average_precision") is not None:
        rows.append(("average precision, mean over classes or labels", decimal(short["macro_average_precision"])))
    return rows


def _estimate(short: dict[str, Any], name: str, show: Callable[[float], str]) -> str:
    if short[name] is None:
        return "not defined"
    ends = short.get(f"{name}_interval")
    return show(short[name]) + (f" ({between(ends, show)})" if ends else "")


def between(ends: Sequence[float] | None, show: Callable[[float], str]) -> str:
    """Format an interval."""
    return "none" if ends is None else f"{show(ends[0])} to {show(ends[1])}"


def decimal(value: float) -> str:
    """Format a measure that is not a share, such as AUROC."""
    return f"{value:.3f}"


def release_overview(card: dict[str, Any]) -> list[Row]:
    """Return the main figures of a released data set."""
    return [
        *_guarantee(card),
        ("accounting of a record", card["account_of_a_record"]),
        ("charged for", describe(from_json(card["events"][0]))),
        *((MECHANISM.get(key, key.replace("_", " ")), _long(value)) for key, value in card["mechanism"].items()),
        *((f"features: {key}", _long(value)) for key, value in card["features"].items()),
        ("rows", f"{card['rows']:,}"),
        *audits(card),
        *_overlaps(card),
        *release_accuracy(card),
        ("tuning", card["tuning"]),
        ("licence", plain(card["licence"])),
    ]


def _long(value: Any) -> str:
    return plain(value, most=MAX_TEXT) if isinstance(value, str) else setting(value)


def release_accuracy(card: dict[str, Any]) -> list[Row]:
    """Return the test accuracy of each classifier that was trained on the released data set."""
    return [
        (f"test accuracy: {plain(name)}", share + (f"; mean over the classes {balanced}" if balanced else ""))
        for name, share, balanced in learners(card)
    ]


def learners(card: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the classifiers trained on a released data set: name, test accuracy, and its mean over the classes.

    Cards of earlier versions do not state the last, which is then empty.
    """
    balanced = card.get("balanced_accuracy") or {}
    return [
        (name, percent(share), percent(balanced[name]) if name in balanced else "")
        for name, share in (card["accuracy"] or {}).items()
    ]


def _guarantee(card: dict[str, Any]) -> list[Row]:
    """Return epsilon, delta, and how they were composed. Cards of version 0.1 do not state the composition."""
    proved = card["guarantee"]
    rows: list[Row] = [("epsilon", upper(proved["epsilon"])), ("delta", f"{proved['delta']:g}")]
    if proved.get("composition"):
        rows.append(("epsilon is based on", proved["composition"]))
    if proved.get("meter") is not None:
        rows.append(("meter, not a bound", upper(proved["meter"])))
    return [*rows, ("unit", f"one {card['unit']}"), ("neighbouring data sets", card["adjacency"])]


def _probe(probe: dict[str, Any] | None) -> list[Row]:
    """Return the epsilon of the steps for the head, and its share: epsilon_1 / epsilon in Tang et al. 2023, Fig. 7."""
    if not probe:
        return []
    share = probe["share_of_epsilon"]
    alone = f"epsilon {upper(probe['epsilon'])} on their own" + (f", {percent(share)} of the total" if share else "")
    return [("of these, first for the head alone", f"{probe['steps']:,}; {alone}")]


def _by_hand(settings: list[str] | None) -> str:
    return "all" if settings is None else ", ".join(name.replace("_", " ") for name in settings) or "none"


def _both(accuracy: dict[str, Any] | None) -> str:
    return " and ".join(percent(accuracy["test"][k]) for k in ("ema", "last")) if accuracy else "unknown"


def _overlaps(card: dict[str, Any]) -> list[Row]:
    """Return what the card states about other accounts with the same images. Cards of earlier versions do not."""
    reason = card.get("new_account")
    rows: list[Row] = [] if reason is None else [("counted separately from other accounts because", plain(reason))]
    for overlap in card.get("overlapping_accounts", []):
        charged = "charged in full for this run" if overlap["charged"] else "not charged"
        rows.append(
            (
                f"account {plain(overlap['account'])}",
                f"has {overlap['share']} of these images, which are {overlap['share_of_account']} of one of its "
                f"data sets; {charged}",
            )
        )
    return rows


def audits(card: dict[str, Any]) -> list[Row]:
    """Return the number of canaries in a run, and the lower bound from each audit."""
    rows: list[Row] = []
    canaries = card["config"].get("canaries", 0)
    if canaries:
        rows.append(
            (
                "canaries in the training run",
                f"{canaries:,} synthetic records, each inserted in secret with probability 1/2; not included in the "
                f"number of {card['unit']}s; they cost some accuracy",
            )
        )
    for name, audit in (card.get("audit") or {}).items():
        verdict = "REFUTED: more than the claim allows" if audit["refuted"] else "not refuted"
        bound = f"epsilon at least {lower(audit['epsilon_at_least'])} with {percent(audit['confidence'])} confidence"
        rows.append((AUDITS[name], f"{bound}, {audit['canaries']:,} canaries; {verdict}"))
    return rows


def attack(card: dict[str, Any]) -> list[Row]:
    """Return the bound on membership tests at a few false positive rates."""
    return [
        (f"{100 * x['false_positive_rate']:g}%", upper_percent(x["true_positive_rate_at_most"]))
        for x in card["attack_success"]
    ]


def reconstruction(card: dict[str, Any]) -> list[Row]:
    """Return the bound on reconstruction for a few priors; nothing on cards of earlier versions."""
    return [
        (f"{100 * x['prior']:g}%", upper_percent(x["success_at_most"]))
        for x in card.get("meaning", {}).get("reconstruction", [])
    ]


def phases(card: dict[str, Any]) -> list[Row]:
    """Return what each phase added to epsilon; nothing if there is only one."""
    rows: list[Row] = []
    before = 0.0
    for phase in card["phases"]:
        so_far = phase["epsilon_so_far"]
        if so_far is None:
            return []
        steps = "before" if phase["steps"] is None else f"{phase['steps']:,}"
        rows.append((phase["name"], steps, f"{max(0.0, so_far - before):.2f}", upper(so_far)))
        before = so_far
    return rows if len(rows) > 1 else []


def public(card: dict[str, Any]) -> list[Row]:
    """Return the facts about a run that the guarantee treats as public."""
    facts = card["public_facts"]
    units = "images" if card["unit"] == "image" else "persons"
    rows: list[Row] = [
        (f"number of {units}", f"{facts['n']['value']:,}", facts["n"]["known"]),
        (card.get("task", "classes"), f"{len(facts['classes']['value']):,}", facts["classes"]["known"]),
        ("image: channels, height, width", _shape(facts["image_shape"]["value"]), facts["image_shape"]["known"]),
    ]
    for kind, entry in card["public_inputs"].items():
        what = f"public images ({entry.get('images', 0):,})" if kind == "synthetic" else "initial weights"
        origin = "made from random images" if kind == "prior" else "given"
        digest = plain(str(entry.get("digest")))[:16]
        rows.append((what, plain(str(entry.get("file"))), f"{origin}; digest {digest}"))
    return rows


def release_public(card: dict[str, Any]) -> list[Row]:
    """Return the facts about a released data set that the guarantee treats as public."""

    def known(*facts: str) -> str:
        return "read from the data" if set(facts) & set(card["read_off"]) else "declared"

    return [
        (number := f"number of {card['unit']}s", setting(card.get("n")), known(number)),
        ("classes", f"{len(card['classes']):,}", known("classes")),
        ("image: height, width, channels", _shape(card["image_shape"]), known("image size", "channels")),
    ]


def _shape(sides: list[Any]) -> str:
    return "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}".join(str(int(side)) for side in sides)


def accountant(card: dict[str, Any]) -> list[Row]:
    """Return the authoritative figure, its cross-check, and the approximation, labelled as such."""
    guarantee = card["guarantee"]
    would_be = guarantee.get("if_the_noise_were_secret")
    shown = would_be or guarantee
    note = " if the noise were secret, which it is not" if would_be else ""
    approximate = shown["approximate"]
    name = f"{shown['accountant']}, version {shown['dp_accounting_version']}"
    return [
        (
            f"epsilon{note}",
            upper(shown["epsilon"]),
            f"the proven upper bound, rounded up (all digits: card.json); {name}",
        ),
        (f"epsilon by Rényi accounting{note}", upper(shown["rdp_epsilon"]), "for comparison: a looser upper bound"),
        (
            f"mu{note}",
            upper(shown["mu"]),
            "the Gaussian mechanism whose privacy curve is above that of this card, down to this delta",
        ),
        *_meaning(card),
        (f"epsilon by the central limit{note}", _about(approximate["gdp_central_limit_epsilon"]), approximate["label"]),
        (f"mu by the central limit{note}", _about(approximate["gdp_central_limit_mu"]), approximate["label"]),
    ]


def _meaning(card: dict[str, Any]) -> list[Row]:
    """Return the guarantee for replaced units, and its other measures if the mechanism is a Gaussian mechanism."""
    meaning = card.get("meaning")
    if meaning is None or card["status"] != "private":
        return []
    unit, exact = card["unit"], meaning["gaussian"]
    rows: list[Row] = [
        (
            f"epsilon if one {unit} is replaced by another",
            upper(meaning["replace_one_epsilon"]),
            f"an upper bound at the same delta; epsilon above is for one {unit} more or less",
        )
    ]
    if exact is not None:
        what = f"every {unit} is in every noisy sum; {IDEAL}"
        rows += [
            ("mu of Gaussian DP", upper(exact["mu"], 4), what),
            ("rho of zCDP", upper(exact["zcdp_rho"], 4), what),
        ]
    return rows


def _about(value: float | None) -> str:
    return "none" if value is None else f"about\N{NO-BREAK SPACE}{value:.2f}"


def settings(card: dict[str, Any]) -> list[Row]:
    """Return all settings, and the software that wrote the card."""
    rows: list[Row] = [(plain(key), setting(value)) for key, value in card["config"].items()]
    if "config_hash" in card:
        rows.append(("hash of the settings", card["config_hash"]))
    software = ", ".join(f"{name} {number}" for name, number in card["software"].items())
    return [*rows, ("card written by", software)]


def account(card: dict[str, Any]) -> str:
    """Describe the state of the data set's account in a sentence."""
    data_set = card["data_set"]
    charges = "1 charge" if data_set["charges"] == 1 else f"{data_set['charges']:,} charges"
    times = len(data_set["budget_changes"])
    changes = f" (the budget was changed {times:,} time{'s' if times > 1 else ''})" if times else ""
    return (
        f"Account {plain(data_set['account'])}: {charges}, epsilon {_spent(data_set)} of "
        f"{data_set['epsilon_budget']:g} spent at delta {data_set['delta']:g}{changes}. "
        "Epsilons of several runs do not simply add up; the ledger composes them."
    )


def budget_left(card: dict[str, Any]) -> str:
    """Return what remains of the data set's budget, rounded down."""
    data_set = card["data_set"]
    if data_set is None:
        return "unknown"
    total = data_set["epsilon_spent"]
    return "none" if total is None else lower(max(0.0, data_set["epsilon_budget"] - total))


def latest(charges: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the charges that a page shows, and the number of earlier ones left out."""
    return charges[-MAX_CHARGES:], max(0, len(charges) - MAX_CHARGES)


def charge(entry: dict[str, Any]) -> Row:
    """Return one line of ledger.jsonl as cells under HEADS["charges"]."""
    time = plain(entry["time"]).replace("T", " ").removesuffix("+00:00")
    return time, plain(entry["run"]), describe(from_json(entry["event"])), upper(entry["epsilon"])


def _spent(data_set: dict[str, Any]) -> str:
    return "without a bound" if data_set["epsilon_spent"] is None else upper(data_set["epsilon_spent"])
