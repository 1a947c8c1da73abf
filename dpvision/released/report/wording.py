"""The card in words: the guarantee and its limits in sentences, settings chosen by hand, and card.md and README.md.

card.md begins with the metadata that the Hugging Face Hub reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from dpvision.core import accountant
from dpvision.errors import ConfigError
from dpvision.released import evaluation
from dpvision.released.report import tables
from dpvision.released.report.tables import names, plain, upper_percent
from dpvision.settings.figures import upper
from dpvision.settings.setting import declared
from dpvision.settings.training import Config
from dpvision.storage import run_folder

FIXED_KEY = f"NOT PRIVATE: {run_folder.FIXED_KEY}"
TOO_LITTLE_NOISE = f"NOT PRIVATE: no epsilon below {accountant.MAX_LOSS:g} can be proven"
NOISE = "AES-256-CTR keyed by 32 bytes of operating system entropy; grid-rounded"
FIXED_NOISE = "AES-256-CTR keyed by a fixed text, which anyone can compute again; grid-rounded"
ADD_OR_REMOVE = "add or remove one unit"
ZERO_OUT = "zero-out: one unit's contribution is replaced by nothing; the number of units is public"
TUNING = "not counted: settings tried on the same data outside the ledger are not covered"
ON_FEATURES = (
    "Each row of features is taken to be computed from one image alone by a public network; that was not checked. The "
    "account is that of these rows: what other runs reveal, on the images or on other features of them, is counted "
    "on other accounts."
)
# Where the best test may find more than this share of those inside, the sentence calls the guarantee weak.
WEAK = 0.5
# Licences that the Hub knows by these names; any other is "other", with its own name in license_name.
# fmt: off
KNOWN_LICENCES = (
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail", "odbl",
)
# fmt: on
NOT_STATED = "not stated"

READ_ROWS = """from glob import glob
import numpy as np
from safetensors.numpy import load_file
parts = [load_file(name) for name in sorted(glob("rows-*.safetensors"))]
features, labels = (np.concatenate([part[key] for part in parts]) for key in ("features", "labels"))"""

# The linear discriminant of the released moments; eigenvalues get 0.3 times the largest that noise alone would have.
USE_MOMENTS = """moments = load_file("moments.safetensors")
sums, second, n = (moments[key] for key in ("sums", "second", "n"))
counts = np.maximum(moments["counts"], 0.1 * n / len(moments["counts"]))
means, shares = sums / counts, counts / counts.sum()
values, vectors = np.linalg.eigh(second / n - means * shares @ means.T)
values = np.maximum(values, 0) + 0.3 * np.sqrt(2 * len(values)) * moments["noise_of_second"] / n
weight = vectors / values @ vectors.T @ means
bias = np.log(shares) - (means * weight).sum(axis=0) / 2
guess = (features @ weight + bias).argmax(axis=1)  # for the rows here, or for any other features"""

FILES = {
    "rows-*.safetensors": "the rows: features and labels",
    "moments.safetensors": "class sums, class counts and the second moment, and the noise in each",
    "map.safetensors": "the public map: (features of an image - mean) @ matrix, then divided by its length",
    "schema.json": "the format of the files, for programs",
    "card.md": "the guarantee and its limits; card.json has them for programs",
    "report.html": "the same as a page, with the curve of the best possible attack",
}


def adjacency(read_off: Sequence[str], *, unit: str) -> str:
    """Return which data sets are neighbours: of the same size, where the number of units was read from the data."""
    return ZERO_OUT if f"number of {unit}s" in read_off else ADD_OR_REMOVE


def tuning(facts: dict[str, Any] | None) -> str:
    """Describe how settings were chosen, and whether epsilon covers it."""
    if facts is None:
        return TUNING
    return (
        f"counted: the best of a random number of trials, {facts['expected_trials']:.3g} expected, among "
        f"{facts['candidates']} candidates, by accuracy on public images ({facts['score']}); epsilon covers the choice"
    )


def sentence(card: dict[str, Any]) -> str:
    """State the guarantee in one sentence, for someone who answers for the data but does not compute with it."""
    guarantee, this = card["guarantee"], f"this {card.get('what', 'model')}"
    if card["status"] == FIXED_KEY:
        return (
            f"{this.capitalize()} gives no privacy guarantee: its noise comes from a fixed key, as in tests, so "
            "whoever knows the key can take the noise away; do not release it."
        )
    if card["status"] != "private" or guarantee["epsilon"] is None:
        return (
            f"{this.capitalize()} gives no privacy guarantee: there is so little noise that no epsilon below "
            f"{accountant.MAX_LOSS:g} can be proven at delta {guarantee['delta']:g}; do not release it."
        )
    one = next(x for x in card["attack_success"] if x["false_positive_rate"] == 0.01)
    most = one["true_positive_rate_at_most"]
    person = card["unit"] == "person"
    whose = "any one person's images were" if person else "any one image was"
    units = "people" if person else "images"
    data = "private" if card.get("what") == "data set" else "training"  # a release trains nothing
    weak = ", which is a weak guarantee" if most > WEAK else ""
    return (
        f"Whoever sees {this}, whatever else they know, learns only a limited amount about whether {whose} in the "
        f"{data} data: epsilon {upper(guarantee['epsilon'])} at delta {guarantee['delta']:g}, which means that a test "
        f"that wrongly reports 1% of the {units} outside finds at most {upper_percent(most)} of those inside{weak}."
    )


def not_covered(
    facts: Mapping[str, Any],
    config: Config,
    *,
    ledger: bool,
    branches: int,
    bounded: bool,
    examples: bool,
    by_hand: list[str] | None,
) -> list[str]:
    """Return what epsilon does not cover of a run. `bounded`: its epsilon holds even if settings changed on the way."""
    unit, public = config.unit, facts["public"]
    lines = []
    if facts["private"] is not True:
        lines.append(
            "Nothing is covered: anyone with the key can compute the noise of this run again. The total of the data "
            "set counts the run as if its noise were secret, so the total does not hold either once this model is "
            "released."
        )
    lines += [
        "Test accuracy, confusions and calibration are computed on the test split, without noise. Epsilon covers the "
        "training data only: for anyone in both splits, these figures are not covered."
    ]
    if examples:
        lines.append("Pictures of test images are shown as they are. Epsilon does not cover the test split.")
    lines += [
        "The number of trials and the other trials stay secret: epsilon covers the best one only. Settings tried "
        "outside this tuning are not covered."
        if facts["tuning"] is not None
        else f"Tuning is {TUNING}.",
        *_chosen(by_hand, config.recipe),
        _not_refused(public),
        "The folder operator/ holds values that depend on private data. It is never released.",
        "Side channels, such as how long the training ran, are not covered.",
    ]
    if config.head is None and config.device not in ("auto", "cpu"):  # a head on features is computed by the host
        lines.append(
            f"It was trained on an accelerator ({config.device}, {config.precision}): independence between units is "
            "tested on this device before each charge, not proved for its closed kernels."
        )
    if unit == "image":
        lines.append("The unit is one image. Someone with several images in the training data is protected less.")
    lines += [read_off_the_data(fact) for fact in facts["read_off"]]
    lines += [_public_input(kind, entry, unit, config.public_licence) for kind, entry in public.items()]
    if branches > 1:
        reason = (
            "As the change may depend on results, epsilon is the budget of the account, which holds for every such "
            "choice"
            if bounded
            else "All of it is counted in epsilon as far as it went. The run was made by a version that did not "
            "count the steps that each part was charged for and never did: if results decided where a part "
            "ended, only the ledger's total holds"
        )
        lines.append(
            f"Settings or software changed during the training (changes: {branches - 1}). {reason}; if the settings "
            "were chosen by the test accuracy so far, that accuracy is too optimistic."
        )
    if not ledger:
        lines.append("No ledger was read, so other runs on the same data are not counted here.")
    return lines


def _not_refused(public: dict[str, dict[str, Any]]) -> str:
    """State what the fact that the training ran reveals."""
    line = "That the training was not refused reveals that every class has an image in the training data"
    if "synthetic" in public:
        line += ", and that none of them is, pixel for pixel, among the public images"
    if "learned_from" in public.get("pretrained", {}):
        line += ", or among those that the initial weights were trained on"
    return line + "."


def _public_input(kind: str, entry: Mapping[str, Any], unit: str, licence: str | None) -> str:
    """State how far weights or images that went into a run are covered."""
    if kind == "prior":
        return (
            f"The initial weights are {entry.get('file')}: random images, drawn by dpvision and cached next to the "
            "ledgers, where nobody else must be able to write."
        )
    what = "The initial weights" if kind == "pretrained" else "The public images"
    if "event" in entry:
        return (
            f"{what} are from {entry.get('file')!r}, which was trained privately. What they reveal is counted in "
            f"epsilon, as if it were about the same {unit}s."
        )
    checked = (
        "none of the images that they were trained on is, pixel for pixel, in the training data; a changed copy would "
        "not have been found."
        if "learned_from" in entry
        else "it was not checked whether they were made from images of the training data."
    )
    origin = f" ({entry['origin']})" if "origin" in entry else ""
    return (
        f"{what} are from {entry.get('file')!r}{origin} and are taken as public (licence: "
        f"{licence or entry.get('licence', 'not stated')}). Epsilon does not cover what they reveal: {checked}"
    )


def not_covered_by_release(facts: Mapping[str, Any], *, fixed_key: bool) -> list[str]:
    """Return what epsilon does not cover of a released data set."""
    lines = []
    if fixed_key:
        lines.append("Nothing is covered: anyone with the key can compute the noise of this release again.")
    lines += [
        "The unit is one image. Someone with several images in the data is protected less"
        + (", and this data states which person each image is of." if facts["persons"] else "."),
        f"Tuning is {TUNING}.",
        "Images that could not be read may have been left out; that they existed is not covered."
        if facts["skipped_broken"]
        else "That the release was not refused reveals that all images could be read and none has an unknown class.",
        "Side channels, such as how long it took, are not covered.",
    ]
    if facts.get("accuracy") is not None:
        lines.append(
            "Accuracy is that of classifiers trained on this folder, measured on the test split without noise: "
            "epsilon does not cover the test images, and for anyone in both splits, the accuracy is not covered."
        )
    if facts["public"]:
        lines.append(
            f"The encoder is taken as public ({facts['features']['origin']}). Epsilon does not cover what it reveals: "
            "it was not checked whether it was made from images of the private data."
        )
    if facts["config"].get("class_counts") is not None:
        lines.append("The number of images of each class was declared public. Epsilon does not cover it.")
    return lines + [read_off_the_data(fact) for fact in facts["read_off"]]


def read_off_the_data(fact: str) -> str:
    """State that epsilon does not cover a fact that was read from the data."""
    if fact.startswith("number of "):
        return f"The {fact} was read from the data and is treated as public. Epsilon does not cover it."
    if fact == "classes":
        return (
            "The list of classes was read from the data and is treated as public. Epsilon does not cover it: a class "
            "that only one person's images have would reveal that person."
        )
    return f"This was read from the data and is treated as public, so epsilon does not cover it: {fact}."


def _chosen(by_hand: list[str] | None, recipe: str) -> list[str]:
    if by_hand is None:
        which = f"All settings were chosen by hand: {recipe!r} is not a recipe of dpvision."
    elif by_hand:
        names = [name.replace("_", " ") for name in by_hand]
        which = f"Settings chosen by hand, not those of recipe {recipe}: {', '.join(names)}."
    else:
        return []
    return [f"{which} If results on the same data outside the ledger led to the choice, that is not covered."]


def chosen_by_hand(config: Config) -> list[str] | None:
    """Return the names of the settings that are not those of the recipe; None if dpvision has no such recipe.

    Somebody chose them, and no epsilon covers what the choice was based on.
    """
    from dpvision.settings.recipes import recipe

    try:
        usual = recipe(config.recipe, epsilon=config.epsilon)
    except ConfigError:
        return None
    # What a run is about, or follows from the other settings, is not chosen against the recipe.
    usual = replace(usual, **{k: getattr(config, k) for k, of in declared(Config).items() if not of.on_card})
    if config.head is not None:  # of features, for which the recipe has a head
        usual = replace(usual, head="auto")
    with suppress(ConfigError):  # where the recipe cannot be as it is, such as a batch above n
        usual = replace(usual, n=config.n).complete(config.n or 0)
    differ = [f.name for f in fields(Config) if getattr(config, f.name) != getattr(usual, f.name)]
    return [name for name in differ if getattr(usual, name) is not None and name != "final_noise"]


def run_card(card: dict[str, Any], charges: list[dict[str, Any]], test: dict[str, Any] | None = None) -> str:
    """Return card.md of a run; `test` is its evaluation on the test split."""
    parts = [_front_matter_of_model(card), *_title("Privacy card", card)]
    if test and evaluation.has_learned_little(test):
        parts.append(evaluation.LEARNED_LITTLE)
    parts += ["## Figures", _table(("figure", "value"), tables.overview(card, test))]
    parts += ["## Bound on every membership test", _table(tables.HEADS["attack"], tables.attack(card))]
    parts += ["## Public facts", _table(tables.HEADS["public"], tables.public(card))]
    shown, more = names(card["public_facts"]["classes"]["value"])
    parts.append(
        "Classes: " + ", ".join(map(_code, shown)) + (f" and {more:,} more, all in card.json." if more else ".")
    )
    phases = tables.phases(card)
    if phases:
        parts += ["## Epsilon by phase", _table(tables.HEADS["phases"], phases)]
    parts += _limits(card)
    parts += ["## Settings", _table(("setting", "value"), tables.settings(card))]
    parts += ["## Ledger of the data set", *_ledger(card, charges)]
    return "\n\n".join(parts) + "\n"


def release_card(card: dict[str, Any]) -> str:
    """Return card.md of a released data set."""
    parts = [_front_matter_of_data(card), *_title("Privacy card of a released data set", card)]
    parts += ["## Figures", _table(("figure", "value"), tables.release_overview(card))]
    parts += ["## Bound on every membership test", _table(tables.HEADS["attack"], tables.attack(card))]
    return "\n\n".join([*parts, *_limits(card)]) + "\n"


def readme(card: dict[str, Any]) -> str:
    """Return README.md of a released data set: how to read and use it, for someone new to dpvision."""
    mechanism, features = card["mechanism"], card["features"]
    private = card["status"] == "private"
    free = "Anyone may train on them, any number of times, at no further privacy cost. " if private else ""
    parts = [
        f"# {card['rows']:,} rows of features" + ("" if private else f": {_escape(card['status'])}"),
        sentence(card),
        f"{free}To read them, in this folder:",
        f"```python\n{READ_ROWS}\n```",
        f"Rows are {_escape(mechanism['rows_are'])}.",
        f"Labels: {_escape(mechanism['labels'])}. Classes, in order: {_escape(', '.join(map(str, card['classes'])))}.",
        f"Features of an image: {_escape(features['encoder'])} ({_escape(features['origin'])}), then "
        f"{_escape(features['map'])}. With dpvision, the same features of other images: "
        "`dpvision features THIS_FOLDER IMAGES --out FILE.safetensors`.",
    ]
    if has_moments(card):
        parts.append(
            "The rows reveal no more than the moments that they were drawn from. A linear classifier can be computed "
            f"from the moments directly, here the linear discriminant:\n\n```python\n{USE_MOMENTS}\n```"
        )
    noise = {key: mechanism[key] for key in ("noise_x", "noise_y", "degree") if key in mechanism}
    if noise:
        lines = (f"{tables.MECHANISM[key].capitalize()}: {tables.setting(value)}" for key, value in noise.items())
        parts.append(". ".join(lines) + ".")
    parts.append("\n".join(f"- `{name}`: {what}" for name, what in files_of(card)))
    return "\n\n".join([*parts, f"Licence: {_escape(card['licence'])}."]) + "\n"


def has_moments(card: dict[str, Any]) -> bool:
    """Return whether a released data set has moments.safetensors."""
    return "moments.safetensors" in card["files"]


def files_of(card: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the files of a released data set, each with what it holds."""
    absent = {name for name in ("moments.safetensors", "map.safetensors") if name not in card["files"]}
    return [(name, what) for name, what in FILES.items() if name not in absent]


def _title(title: str, card: dict[str, Any]) -> list[str]:
    status = [] if card["status"] == "private" else [f"**{card['status']}**"]
    return [f"# {title}", *status, sentence(card)]


def _limits(card: dict[str, Any]) -> list[str]:
    return [
        "## Not covered",
        "\n".join(f"- {_escape(line)}" for line in card["not_covered"]),
        "## Accountant",
        _table(tables.HEADS["accountant"], tables.accountant(card)),
    ]


def _ledger(card: dict[str, Any], charges: list[dict[str, Any]]) -> list[str]:
    if card["data_set"] is None:
        return ["No ledger was read."]
    shown, earlier = tables.latest(charges)
    left_out = [f"{earlier:,} earlier charges are in ledger.jsonl."] if earlier else []
    return [tables.account(card), *left_out, _table(tables.HEADS["charges"], [tables.charge(c) for c in shown])]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_escape, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(text: str) -> str:
    """Escape text so that it has no mark-up, no HTML, no end of a table's cell, and no link from a bare address."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text).replace("@", "&#64;")


def _code(text: str) -> str:
    """Put text between more backticks than it has in a row, so that nothing in it is mark-up."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _front_matter_of_model(card: dict[str, Any]) -> str:
    """Return what the Hub reads of the weights of a run: licence, tags, library and metrics, as YAML."""
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "library_name": "dpvision",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "differential-privacy", *_not_private(card), "dpvision"],
    }
    if card["accuracy"]:
        values["metrics"] = ["accuracy"]
    return _as_yaml(values)


def _front_matter_of_data(card: dict[str, Any]) -> str:
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "task_categories": ["tabular-classification"],
        "tags": ["differential-privacy", *_not_private(card), "features", "dpvision"],
    }
    return _as_yaml(values)


def _licence(text: str | None) -> dict[str, str]:
    name = plain(text or NOT_STATED)
    if name == NOT_STATED:
        return {"license": "unknown"}
    return {"license": name.lower()} if name.lower() in KNOWN_LICENCES else {"license": "other", "license_name": name}


def _as_yaml(values: dict[str, Any]) -> str:
    """Format values as JSON texts between lines of dashes: YAML reads them unchanged, whatever a licence is called."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _not_private(card: dict[str, Any]) -> list[str]:
    return [] if card["status"] == "private" else ["not-private"]
