"""The guarantee and its limits in plain sentences, and which settings were chosen by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from dpvision.core import accountant
from dpvision.errors import ConfigError
from dpvision.released.report.tables import upper_percent
from dpvision.settings.figures import upper
from dpvision.settings.setting import declared
from dpvision.settings.training import Config
from dpvision.storage import run_folder

FIXED_KEY = f"NOT PRIVATE: {run_folder.FIXED_KEY}"
TOO_LITTLE_NOISE = f"NOT PRIVATE: no epsilon below {accountant.MOST_LOSS:g} can be proven"
NOISE = "AES-256-CTR keyed by 32 bytes of operating system entropy; grid-rounded"
FIXED_NOISE = "AES-256-CTR keyed by a fixed text, which anyone can compute again; grid-rounded"
ADD_OR_REMOVE = "add or remove one unit"
ZERO_OUT = "zero-out: one unit's contribution is replaced by nothing; the number of units is public"
TUNING = "not counted: settings tried on the same data outside the ledger are not covered"
# Where the best test may find more than this share of those inside, the sentence calls the guarantee weak.
WEAK = 0.5


def adjacency(read_off: Sequence[str], *, unit: str) -> str:
    """Return which data sets are neighbours: of the same size, where the number of units was read off the data."""
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
            f"{accountant.MOST_LOSS:g} can be proven at delta {guarantee['delta']:g}; do not release it."
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
    *,
    unit: str,
    read_off: Sequence[str],
    public: dict[str, dict[str, Any]],
    fixed_key: bool,
    ledger: bool,
    branches: int,
    bounded: bool,
    tuned: bool,
    examples: bool,
    public_licence: str | None,
    by_hand: list[str] | None,
    recipe: str,
) -> list[str]:
    """Return what epsilon does not cover of a run. `bounded`: its epsilon holds even if settings changed on the way."""
    lines = []
    if fixed_key:
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
        if tuned
        else f"Tuning is {TUNING}.",
        *_chosen(by_hand, recipe),
        _not_refused(public),
        "The folder operator/ holds values that depend on private data. It is never released.",
        "Side channels, such as how long the training ran, are not covered.",
    ]
    if unit == "image":
        lines.append("The unit is one image. Someone with several images in the training data is protected less.")
    lines += [read_off_the_data(fact) for fact in read_off]
    lines += [_public_input(kind, entry, unit, public_licence) for kind, entry in public.items()]
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
    return (
        f"{what} are from {entry.get('file')!r} and are taken as public (licence: {licence or 'not stated'}). Epsilon "
        f"does not cover what they reveal: {checked}"
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
    """State that epsilon does not cover a fact that was read off the data."""
    if fact.startswith("number of "):
        return f"The {fact} was read off the data and is treated as public. Epsilon does not cover it."
    if fact == "classes":
        return (
            "The list of classes was read off the data and is treated as public. Epsilon does not cover it: a class "
            "that only one person's images have would reveal that person."
        )
    return f"This was read off the data and is treated as public, so epsilon does not cover it: {fact}."


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
    """Return the names of the settings that are not those of the recipe; None where dpvision has no such recipe.

    Somebody chose them, and no epsilon covers what the choice was based on.
    """
    from dpvision.settings.recipes import recipe

    try:
        usual = recipe(config.recipe, epsilon=config.epsilon)
    except ConfigError:
        return None
    # What a run is about, or follows from the other settings, is not chosen against the recipe.
    usual = replace(usual, **{k: getattr(config, k) for k, of in declared(Config).items() if not of.on_card})
    with suppress(ConfigError):  # where the recipe cannot be as it is, such as a batch above n
        usual = replace(usual, n=config.n).complete(config.n or 0)
    differ = [f.name for f in fields(Config) if getattr(config, f.name) != getattr(usual, f.name)]
    return [name for name in differ if getattr(usual, name) is not None and name != "final_noise"]
