"""The text of the cards: the guarantee and its limits in sentences, settings chosen by hand, card.md and README.md.

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
FIXED_NOISE = "AES-256-CTR keyed by a fixed text, so anyone can regenerate it; grid-rounded"
ADD_OR_REMOVE = "add or remove one unit"
ZERO_OUT = "zero-out: one unit's contribution is replaced by zero; the number of units is public"
TUNING = "not counted: settings tried on the same data outside the ledger are not covered"
RECONSTRUCTION = (
    "An attacker who knows all other records guesses a record, or names a share of the candidates for it. If the guess "
    "would be right with some probability when the record is not in the data, it is right with at most the stated "
    "probability when the record is in the data."
)
ON_FEATURES = (
    "Each row of features is assumed to be computed from a single image by a public network. This was not checked. The "
    "account covers these rows only: what other runs reveal about the images, or about other features of them, is "
    "charged to other accounts."
)
INTERVALS = (
    "Intervals are 95%, from the size of the test split: Wilson's score interval, at the sample size that fits the "
    "standard error of the measure (for AUROC by DeLong; for kappa the normal interval). They are about the sampling "
    "of test images alone."
)
# If the best test may find more than this share of the members, the guarantee is called weak.
WEAK = 0.5
# Licences that the Hub knows by these names. Any other is "other", with its name in license_name.
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

# The linear discriminant of the released moments. 0.3 times the largest eigenvalue of the noise is added to all.
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
    "map.safetensors": "the public map: (features of an image - mean) @ matrix, then divided by its norm",
    "schema.json": "the format of the files, machine-readable",
    "card.md": "the guarantee and its limits; card.json has them in machine-readable form",
    "report.html": "the card as a web page, with the curve of the best possible attack",
}


def use_moments(card: dict[str, Any]) -> str:
    """Return Python code for the linear discriminant of released moments, by the release's objective."""
    if card["config"].get("objective") != "balanced":
        return USE_MOMENTS
    return USE_MOMENTS.replace("bias = np.log(shares) - (", "bias = -(")


def adjacency(read_off: Sequence[str], *, unit: str) -> str:
    """Return the neighbouring relation: zero-out if the number of units was read from the data, else add or remove."""
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
    """State the guarantee in plain words, for someone who is responsible for the data but is not a specialist."""
    guarantee, this = card["guarantee"], f"this {card.get('what', 'model')}"
    if card["status"] == FIXED_KEY:
        return (
            f"{this.capitalize()} gives no privacy guarantee: its noise comes from a fixed key, as in tests, so "
            "anyone who knows the key can remove the noise. Do not release it."
        )
    if card["status"] != "private" or guarantee["epsilon"] is None:
        return (
            f"{this.capitalize()} gives no privacy guarantee: with so little noise, no epsilon below "
            f"{accountant.MAX_LOSS:g} can be proven at delta {guarantee['delta']:g}. Do not release it."
        )
    one = next(x for x in card["attack_success"] if x["false_positive_rate"] == 0.01)
    most = one["true_positive_rate_at_most"]
    person = card["unit"] == "person"
    whose = "any one person's images were" if person else "any one image was"
    units = "people" if person else "images"
    data = "private" if card.get("what") == "data set" else "training"  # a release trains nothing
    weak = ", which is a weak guarantee" if most > WEAK else ""
    return (
        f"Anyone who sees {this}, whatever else they know, learns only a limited amount about whether {whose} in the "
        f"{data} data: epsilon {upper(guarantee['epsilon'])} at delta {guarantee['delta']:g}. This means that a test "
        f"that wrongly reports 1% of the {units} outside the data finds at most {upper_percent(most)} of those "
        f"inside{weak}."
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
    """Return what epsilon does not cover of a run; `bounded` if epsilon holds although settings changed during it."""
    unit, public = config.unit, facts["public"]
    lines = []
    if facts["private"] is not True:
        lines.append(
            "Nothing is covered: anyone with the key can regenerate the noise of this run. The total of the data set "
            "counts the run as if its noise were secret, so once this model is released, the total does not hold "
            "either."
        )
    lines += [
        "Test accuracy, confusions and calibration are computed on the test split, without noise. Epsilon covers the "
        "training data only: for anyone in both splits, these figures are not covered."
    ]
    if config.group is not None:
        lines.append(
            "Recall and AUROC by group are computed on the test split, without noise, and the report names groups. "
            "Figures about fewer than 20 persons (or images, if persons are not known) are hidden."
        )
    if examples:
        lines.append("The report shows test images without noise. Epsilon does not cover the test split.")
    lines += [
        "Epsilon covers the best trial only: the number of trials and the other trials are kept secret. Settings tried "
        "outside this tuning are not covered."
        if facts["tuning"] is not None
        else f"Tuning is {TUNING}.",
        *_chosen(by_hand, config.recipe),
        _state_no_refusal(public, config.task),
        "The folder operator/ holds values that depend on private data. It is never released.",
        "Side channels, such as the duration of the training, are not covered.",
    ]
    if config.head is None and config.device not in ("auto", "cpu"):  # a head on features is computed by the host
        lines.append(
            f"The model was trained on an accelerator ({config.device}, {config.precision}): that units do not affect "
            "each other's gradients is tested on this device before each charge, but not proved for its closed-source "
            "kernels."
        )
    if unit == "image":
        lines.append("The unit is one image. Someone with several images in the training data is protected less.")
    lines += [read_off_the_data(fact) for fact in facts["read_off"]]
    lines += [_public_input(kind, entry, unit, config.public_licence) for kind, entry in public.items()]
    if branches > 1:
        reason = (
            "Because results may have influenced the changes, epsilon is the budget of the account, which holds for "
            "every such choice"
            if bounded
            else "Epsilon counts the steps that were taken. This run was made by a version of dpvision that did not "
            "count steps that were charged but not taken: if results decided where a part of the run ended, only the "
            "ledger's total holds"
        )
        lines.append(
            f"Settings or software changed during the training (changes: {branches - 1}). {reason}; if the settings "
            "were chosen by the test accuracy so far, that accuracy is too optimistic."
        )
    if not ledger:
        lines.append("No ledger was read, so other runs on the same data are not counted here.")
    return lines


def _state_no_refusal(public: dict[str, dict[str, Any]], task: str) -> str:
    """State what is revealed by the fact that the training was not refused."""
    every = {"classes": "class", "labels": "label", "grades": "grade"}[task]
    line = f"The fact that the training was not refused reveals that every {every} has an image in the training data."
    others = []
    if "synthetic" in public:
        others.append("a public image")
    if "learned_from" in public.get("pretrained", {}):
        others.append("an image that the initial weights were trained on")
    return f"{line} It also reveals that no training image is identical to {' or '.join(others)}." if others else line


def _public_input(kind: str, entry: Mapping[str, Any], unit: str, licence: str | None) -> str:
    """State to what extent epsilon covers weights or images that were used by a run."""
    if kind == "prior":
        return (
            f"The initial weights are {entry.get('file')}: dpvision built them from random images and cached them next "
            "to the ledgers. Nobody else may have write access there."
        )
    what = "The initial weights" if kind == "pretrained" else "The public images"
    if "event" in entry:
        return (
            f"{what} are from {entry.get('file')!r}, which was trained privately. What they reveal is counted in "
            f"epsilon, as if it were about the same {unit}s."
        )
    checked = (
        "none of the images that they were trained on is identical to a training image, but a modified copy would not "
        "have been detected."
        if "learned_from" in entry
        else "it was not checked whether they were made from images of the training data."
    )
    origin = f" ({entry['origin']})" if "origin" in entry else ""
    return (
        f"{what} are from {entry.get('file')!r}{origin} and are treated as public (licence: "
        f"{licence or entry.get('licence', 'not stated')}). Epsilon does not cover what they reveal: {checked}"
    )


def not_covered_by_release(facts: Mapping[str, Any], *, fixed_key: bool) -> list[str]:
    """Return what epsilon does not cover of a released data set."""
    lines = []
    if fixed_key:
        lines.append("Nothing is covered: anyone with the key can regenerate the noise of this release.")
    unit = facts["config"].get("unit", "image")
    if unit == "image":
        lines.append(
            "The unit is one image. Someone with several images in the data is protected less"
            + (", and this data set records which person each image shows." if facts["persons"] else ".")
        )
    lines += [
        f"Tuning is {TUNING}.",
        "Images that could not be read may have been left out. Epsilon does not cover the fact that they existed."
        if facts["skipped_broken"]
        else "The fact that the release was not refused reveals that all images could be read and that none has an "
        "unknown class.",
        "Side channels, such as the duration of the release, are not covered.",
    ]
    if facts.get("accuracy") is not None:
        lines.append(
            "The accuracies are those of classifiers trained on this release, measured on the test split without "
            "noise. Epsilon does not cover the test split: for anyone in both splits, the accuracies are not covered."
        )
    if facts["public"]:
        lines.append(
            f"The encoder is treated as public ({facts['features']['origin']}). Epsilon does not cover what it "
            "reveals: it was not checked whether it was made from images of the private data."
        )
    if facts["config"].get("class_counts") is not None:
        lines.append(f"The number of {unit}s of each class was declared public. Epsilon does not cover it.")
    return lines + [read_off_the_data(fact) for fact in facts["read_off"]]


def read_off_the_data(fact: str) -> str:
    """State that epsilon does not cover a fact that was read from the data."""
    if fact.startswith("number of "):
        return f"The {fact} was read from the data and is treated as public. Epsilon does not cover it."
    if fact == "classes":
        return (
            "The list of classes was read from the data and is treated as public. Epsilon does not cover it: a class "
            "that occurs only in the images of one person would reveal that person."
        )
    return f"This was read from the data and is treated as public, so epsilon does not cover it: {fact}."


def _chosen(by_hand: list[str] | None, recipe: str) -> list[str]:
    if by_hand is None:
        which = f"All settings were chosen by hand: {recipe!r} is not a recipe of dpvision."
    elif by_hand:
        names = [name.replace("_", " ") for name in by_hand]
        which = f"Settings that were chosen by hand, instead of those of recipe {recipe}: {', '.join(names)}."
    else:
        return []
    return [f"{which} If the choice was based on results on the same data outside the ledger, it is not covered."]


def chosen_by_hand(config: Config) -> list[str] | None:
    """Return the names of the settings that differ from the recipe; None if dpvision has no such recipe.

    Somebody chose them, and no epsilon covers what the choice was based on.
    """
    from dpvision.settings.recipes import recipe

    try:
        usual = own = recipe(config.recipe, epsilon=config.epsilon)
    except ConfigError:
        return None
    # Settings that describe the data, or that follow from other settings, are not a choice against the recipe.
    usual = replace(usual, **{k: getattr(config, k) for k, of in declared(Config).items() if not of.on_card})
    if config.chosen_by is not None and config.recipe != "default":  # by public numbers, with the reason
        usual = replace(usual, model=config.model, part=config.part)
    if config.head is not None:  # on features, recipes leave the choice of the head to dpvision
        usual = replace(usual, head="auto")
    with suppress(ConfigError):  # the recipe may not suit these data
        usual = replace(usual, n=config.n).complete(config.n or 0)
    # A recipe's own batch and learning rate are fitted to n, unless another setting by hand makes that unnecessary.
    differ = [
        f.name for f in fields(Config) if getattr(config, f.name) not in (getattr(usual, f.name), getattr(own, f.name))
    ]
    return [name for name in differ if getattr(usual, name) is not None and name != "final_noise"]


def run_card(card: dict[str, Any], charges: list[dict[str, Any]], test: dict[str, Any] | None = None) -> str:
    """Return card.md of a run; `test` is its evaluation on the test split."""
    parts = [as_yaml(metadata_of_model(card)), *_title("Privacy card", card)]
    warning = evaluation.warning(test, card["public_facts"]["classes"]["value"]) if test else None
    if warning:
        parts.append(f"**{_escape(warning)}**")
    parts += ["## Figures", _table(("figure", "value"), tables.overview(card, test))]
    parts += _attacks(card)
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
    parts = [as_yaml(metadata_of_data(card)), *_title("Privacy card of a released data set", card)]
    parts += ["## Figures", _table(("figure", "value"), tables.release_overview(card))]
    parts += _attacks(card)
    return "\n\n".join([*parts, *_limits(card)]) + "\n"


def readme(card: dict[str, Any]) -> str:
    """Return README.md of a released data set: how to read and use it, for someone new to dpvision."""
    mechanism, features = card["mechanism"], card["features"]
    private = card["status"] == "private"
    free = "Anyone may train on them, any number of times, at no further privacy cost. " if private else ""
    parts = [
        f"# {card['rows']:,} rows of features" + ("" if private else f": {_escape(card['status'])}"),
        sentence(card),
        f"{free}To read them from this folder:",
        f"```python\n{READ_ROWS}\n```",
        f"Rows are {_escape(mechanism['rows_are'])}.",
        f"Labels: {_escape(mechanism['labels'])}. Classes, in order: {_escape(', '.join(map(str, card['classes'])))}.",
        f"Features of an image: {_escape(features['encoder'])} ({_escape(features['origin'])}), then "
        f"{_escape(features['map'])}. To compute the same features for other images: "
        "`dpvision features THIS_FOLDER IMAGES --out FILE.safetensors`.",
    ]
    if has_moments(card):
        parts.append(
            "The rows reveal no more than the moments that they were drawn from. A linear classifier can be computed "
            f"from the moments directly, here the linear discriminant:\n\n```python\n{use_moments(card)}\n```"
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
    """Return the files of a released data set, each with a description."""
    absent = {name for name in ("moments.safetensors", "map.safetensors") if name not in card["files"]}
    return [(name, what) for name, what in FILES.items() if name not in absent]


def _title(title: str, card: dict[str, Any]) -> list[str]:
    status = [] if card["status"] == "private" else [f"**{card['status']}**"]
    return [f"# {title}", *status, sentence(card)]


def _attacks(card: dict[str, Any]) -> list[str]:
    parts = ["## Bound on every membership test", _table(tables.HEADS["attack"], tables.attack(card))]
    rows = tables.reconstruction(card)
    if rows:
        parts += ["## Bound on every reconstruction", RECONSTRUCTION, _table(tables.HEADS["reconstruction"], rows)]
    return parts


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
    """Escape text so that it contains no markup, no HTML, no cell separator, and no address that becomes a link."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text).replace("@", "&#64;")


def _code(text: str) -> str:
    """Enclose text in more backticks than it has in a row, so that nothing in it is markup."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def metadata_of_model(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that the Hub reads for a model: licence, tags, library and metrics."""
    sgd = ["dp-sgd"] if card["config"].get("head") is None else []
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "library_name": "dpvision",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "differential-privacy", "privacy", *sgd, *_not_private(card), "dpvision"],
    }
    if card["accuracy"]:
        values["metrics"] = ["accuracy"]
    return values


def metadata_of_data(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that the Hub reads for a data set."""
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "task_categories": ["tabular-classification"],
        "tags": ["differential-privacy", "privacy", *_not_private(card), "features", "dpvision"],
    }
    return values


def _licence(text: str | None) -> dict[str, str]:
    name = plain(text or NOT_STATED)
    if name == NOT_STATED:
        return {"license": "unknown"}
    return {"license": name.lower()} if name.lower() in KNOWN_LICENCES else {"license": "other", "license_name": name}


def as_yaml(values: dict[str, Any]) -> str:
    """Format values as JSON between lines of dashes: this is valid YAML, whatever characters a licence name has."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _not_private(card: Mapping[str, Any]) -> list[str]:
    return [] if card["status"] == "private" else ["not-private"]
