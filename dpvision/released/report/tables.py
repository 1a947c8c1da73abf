"""The rows of the tables that card.md and report.html share, as plain text that is not escaped yet."""

from __future__ import annotations

from typing import Any

from dpvision.released.report import accounts, audits
from dpvision.released.report.numbers import percent, plain, setting, upper_percent
from dpvision.settings.figures import lower, upper

Row = tuple[str, ...]

# A page shows the newest charges of a long ledger; ledger.jsonl has all.
MOST_CHARGES = 300
ATTACK_HEAD = ("wrongly reported outside", "found inside, at most")


def _composition(proved: dict[str, Any]) -> list[Row]:
    """What the epsilon rests on. Cards of version 0.1 do not state it."""
    rows: list[Row] = [("epsilon rests on", proved["composition"])] if proved.get("composition") else []
    return rows + ([("meter, not a bound", upper(proved["meter"]))] if proved.get("meter") is not None else [])


def overview(card: dict[str, Any]) -> list[Row]:
    """What one looks for first."""
    accuracy, data_set, sampler = card["accuracy"], card["data_set"], card["sampler"]
    evaluation = card["evaluation"]
    rows: list[Row] = [
        ("epsilon", upper(card["guarantee"]["epsilon"])),
        ("delta", f"{card['guarantee']['delta']:g}"),
        *_composition(card["guarantee"]),
        ("unit", f"one {card['unit']}"),
        ("neighbouring data sets", card["adjacency"]),
        (
            "test accuracy of the released weights",
            percent(accuracy["released_test_accuracy"]) if accuracy else "unknown",
        ),
        ("test accuracy of the average and of the last weights", _both(accuracy)),
    ]
    if evaluation:
        rows += [
            ("test accuracy, mean over the classes", percent(evaluation["balanced_accuracy"])),
            ("expected calibration error on the test split", percent(evaluation["calibration_error"])),
        ]
    if data_set:
        rows.append(
            ("epsilon spent on the data set, all runs", f"{_spent(data_set)} of {data_set['epsilon_budget']:g}")
        )
    rows += [
        *accounts.rows(card),
        ("sampling", f"{sampler['name']}, each {card['unit']} in a step with probability {sampler['rate']:.4g}"),
        ("steps", f"{sampler['steps']:,}"),
        *([("of these, for the mean of the features", "1")] if card["config"].get("part") == "centred-head" else []),
        *_probe(card["probe"]),
        ("views of an image", f"{card['mechanism']['views']:,}, averaged before clipping"),
        ("clipping norm", setting(card["mechanism"]["clip"])),
        ("noise multiplier sigma", setting(card["mechanism"]["sigma"])),
        ("noise", card["mechanism"]["noise"]),
        *audits.rows(card),
        ("tuning", card["tuning"]),
        ("settings chosen by hand", _by_hand(card["chosen_by_hand"])),
        ("licence of the weights", plain(card["licence"] or "not stated")),
        ("run", plain(card["run"])),
    ]
    return rows


def phases(card: dict[str, Any]) -> list[Row]:
    """What each phase added; nothing where there is only one."""
    told: list[Row] = []
    before = 0.0
    for phase in card["phases"]:
        so_far = phase["epsilon_so_far"]
        if so_far is None:
            return []
        steps = "before" if phase["steps"] is None else f"{phase['steps']:,}"
        told.append((phase["name"], steps, f"{max(0.0, so_far - before):.3f}", upper(so_far, 3)))
        before = so_far
    return told if len(told) > 1 else []


def _probe(probe: dict[str, Any] | None) -> list[Row]:
    """Fig. 7 of Tang et al. 2023: epsilon_1 / epsilon."""
    if not probe:
        return []
    share = probe["share_of_epsilon"]
    told = f"epsilon {upper(probe['epsilon'])} by themselves" + (f", {percent(share)} of the whole" if share else "")
    return [("of these, for the head first", f"{probe['steps']:,}; {told}")]


def _by_hand(names: list[str] | None) -> str:
    return "all" if names is None else ", ".join(name.replace("_", " ") for name in names) or "none"


def _both(accuracy: dict[str, Any] | None) -> str:
    return " and ".join(percent(accuracy["test"][k]) for k in ("ema", "last")) if accuracy else "unknown"


def attack(card: dict[str, Any]) -> list[Row]:
    return [
        (f"{100 * x['false_positive_rate']:g}%", upper_percent(x["true_positive_rate_at_most"]))
        for x in card["attack_success"]
    ]


def public(card: dict[str, Any]) -> list[Row]:
    """Facts that the guarantee takes as known to everyone."""
    facts = card["public_facts"]
    units = "images" if card["unit"] == "image" else "persons"
    shape = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}".join(str(int(v)) for v in facts["image_shape"]["value"])
    rows: list[Row] = [
        (f"number of {units}", f"{facts['n']['value']:,}", facts["n"]["known"]),
        ("classes", f"{len(facts['classes']['value']):,}", facts["classes"]["known"]),
        ("image: channels, height, width", shape, facts["image_shape"]["known"]),
    ]
    for kind, entry in card["public_inputs"].items():
        what = f"public images ({entry.get('images', 0):,})" if kind == "synthetic" else "weights to start from"
        whence = "made of random images" if kind == "prior" else "given"
        digest = plain(str(entry.get("digest")))[:16]
        rows.append((what, plain(str(entry.get("file"))), f"{whence}; digest {digest}"))
    return rows


def accountant(card: dict[str, Any]) -> list[Row]:
    """The figure that counts, its cross-check, and the approximation under its own name."""
    guarantee = card["guarantee"]
    would_be = guarantee.get("if_the_noise_were_secret")
    shown = would_be or guarantee
    note = " if the noise were secret, which it is not" if would_be else ""
    approximate = shown["approximate"]
    about = approximate["gdp_central_limit_epsilon"], approximate["gdp_central_limit_mu"]
    name = f"{shown['accountant']}, version {shown['dp_accounting_version']}"
    return [
        (f"epsilon{note}", upper(shown["epsilon"], 4), f"an upper bound, and the figure that counts: {name}"),
        (
            f"epsilon by Rényi accounting{note}",
            upper(shown["rdp_epsilon"], 4),
            "a cross-check: an upper bound too, looser",
        ),
        (
            f"mu{note}",
            upper(shown["mu"], 4),
            "the Gaussian whose curve lies above the privacy curve down to this delta",
        ),
        (f"epsilon by the central limit{note}", _about(about[0]), approximate["label"]),
        (f"mu by the central limit{note}", _about(about[1]), approximate["label"]),
    ]


def settings(card: dict[str, Any]) -> list[Row]:
    rows = [(key, setting(value)) for key, value in card["config"].items()]
    return [*rows, ("hash of the settings", card["config_hash"]), ("card made by", _software(card["software"]))]


def account(card: dict[str, Any]) -> str:
    """The state of the account in a sentence."""
    data_set = card["data_set"]
    charges = "1 charge" if data_set["charges"] == 1 else f"{data_set['charges']:,} charges"
    return (
        f"Account {data_set['account']}: {charges}, epsilon {_spent(data_set)} of {data_set['epsilon_budget']:g} spent "
        f"at delta {data_set['delta']:g}{_changes(data_set)}. "
        "Epsilons of several runs do not simply add up; the ledger composes them."
    )


def left(card: dict[str, Any]) -> str:
    """What is left of the data set's budget, never too much."""
    data_set = card["data_set"]
    if data_set is None:
        return "unknown"
    total = data_set["epsilon_spent"]
    return "none" if total is None else lower(max(0.0, data_set["epsilon_budget"] - total))


def latest(charges: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The charges that a page shows, and how many earlier ones it leaves out."""
    return charges[-MOST_CHARGES:], max(0, len(charges) - MOST_CHARGES)


def _spent(data_set: dict[str, Any]) -> str:
    return "without a bound" if data_set["epsilon_spent"] is None else upper(data_set["epsilon_spent"])


def _changes(data_set: dict[str, Any]) -> str:
    """How often the owner's first word on the budget was changed."""
    times = len(data_set["budget_changes"])
    return f" (the budget was changed {times:,} time{'s' if times > 1 else ''})" if times else ""


def _about(value: float | None) -> str:
    return "none" if value is None else f"about\N{NO-BREAK SPACE}{value:.4f}"


def _software(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())
