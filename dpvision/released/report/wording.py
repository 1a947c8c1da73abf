"""The guarantee and its limits in plain sentences, and which settings somebody chose by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from dpvision.core import accountant
from dpvision.errors import ConfigError
from dpvision.released.report.numbers import upper_percent
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
PICTURES = "Pictures of test images are shown as they are. Epsilon does not cover the test split."


def adjacency(read_off: Sequence[str], *, unit: str) -> str:
    """Which data sets are neighbours: where the number of units was read off the data, those of the same number."""
    return ZERO_OUT if f"number of {unit}s" in read_off else ADD_OR_REMOVE


def tuning(told: dict[str, Any] | None) -> str:
    """How settings were chosen, and whether epsilon covers it."""
    if told is None:
        return TUNING
    return (
        f"counted: the best of a random number of trials, {told['expected_trials']:.3g} expected, among "
        f"{told['candidates']} candidates, by accuracy on public images ({told['score']}); epsilon covers the choice"
    )


# Beyond this, the best test may find so many of those inside that the sentence says so.
_WEAK = 0.5


def sentence(card: dict[str, Any]) -> str:
    """The guarantee in one sentence, for someone who answers for the data but does not compute with it."""
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
    many = "people" if person else "images"
    data = "private" if card.get("what") == "data set" else "training"  # nothing was trained
    weak = ", which is a weak guarantee" if most > _WEAK else ""
    return (
        f"Whoever sees {this}, whatever else they know, learns only a limited amount about whether {whose} in the "
        f"{data} data: epsilon {upper(guarantee['epsilon'])} at delta {guarantee['delta']:g}, which means that a "
        f"test that wrongly reports 1% of the {many} outside finds at most {upper_percent(most)} of those inside{weak}."
    )


def not_covered(
    *,
    unit: str,
    read_off: Sequence[str],
    public: dict[str, dict[str, Any]],
    fixed_key: bool,
    ledger: bool,
    branches: int = 1,
    whole: bool = True,
    tuned: bool = False,
    pictures: bool = False,
    public_licence: str | None = None,
    by_hand: list[str] | None = None,
    recipe: str = "default",
) -> list[str]:
    """What epsilon says nothing about."""
    said, start = [], public.get("pretrained", {})
    if fixed_key:
        said.append(
            "Nothing is covered: the noise of this run can be computed again from its key. The total of the data set "
            "counts the run as if its noise were secret, so that total does not hold either once this model is out."
        )
    said += [
        "Test accuracy, confusions and calibration are computed on the test split, without noise. Epsilon covers the "
        "training data only: who is in both is not covered as far as these figures go.",
        *([PICTURES] if pictures else []),
        "How many trials there were, and the others, is secret: epsilon covers the best one alone. Settings tried "
        "outside of this tuning are not covered."
        if tuned
        else f"Tuning is {TUNING}.",
        *_chosen(by_hand, recipe),
        "That the training was not refused tells that every class has an image in the training data"
        + (", and that none of them is, pixel for pixel, among the public images" if "synthetic" in public else "")
        + (", or among those that taught the weights to start from." if "learned_from" in start else "."),
        "The folder operator/ holds values that depend on private data. It is never released.",
        "Side channels, such as how long the training ran, are not covered.",
    ]
    if unit == "image":
        said.append("The unit is one image. Someone with several images in the training data is protected less.")
    said += [off_the_data(fact) for fact in read_off]
    for kind, entry in public.items():
        if kind == "prior":
            said.append(
                f"Weights to start from are {entry.get('file')}: random images, drawn by dpvision and kept "
                "beside the ledgers, where nobody else must be able to write."
            )
            continue
        what = "Weights to start from" if kind == "pretrained" else "Public images"
        if "event" in entry:
            said.append(
                f"{what} came from {entry.get('file')!r}, which was trained privately. What they tell is counted in "
                f"epsilon, as if it were about the same {unit}s."
            )
            continue
        checked = (
            "of the images that taught them none is, pixel for pixel, in the training data; a changed copy would not "
            "have been found."
            if "learned_from" in entry
            else "nobody checked whether they were made from images of the training data."
        )
        said.append(
            f"{what} came from {entry.get('file')!r} and are taken as public (licence: "
            f"{public_licence or 'not stated'}). Epsilon does not cover what they tell: " + checked
        )
    if branches > 1:
        said.append(
            f"Settings or software changed during the training (changes: {branches - 1}). "
            + (
                "As results may have decided on it, epsilon is the budget of the account, for whatever was decided"
                if whole
                else "All of it is counted in epsilon as far as it went. The run was made by a version that did not "
                "count the steps that each part was charged for and never did: if results decided where a part "
                "ended, only the ledger's total holds"
            )
            + "; if somebody chose the settings by the test accuracy so far, that accuracy flatters."
        )
    if not ledger:
        said.append("No ledger was read, so other runs on the same data are not counted here.")
    return said


def not_covered_by_release(facts: Mapping[str, Any], *, fixed_key: bool) -> list[str]:
    """The same of a released data set."""
    said = []
    if fixed_key:
        said.append("Nothing is covered: the noise of this release can be computed again from its key.")
    said += [
        "The unit is one image. Someone with several images in the data is protected less"
        + (", and this data says whose images are whose." if facts["persons"] else "."),
        f"Tuning is {TUNING}.",
        "Images that could not be read may have been left out; that they were there is not covered."
        if facts["skipped_broken"]
        else "That the release was not refused tells that all images could be read and none has an unknown class.",
        "Side channels, such as how long it took, are not covered.",
    ]
    if facts.get("accuracy") is not None:
        said.append(
            "Accuracy is that of classifiers made from this folder alone, on the test split, told without noise: "
            "epsilon does not cover the test images, and who is in both splits is not covered as far as the accuracy "
            "goes."
        )
    if facts["public"]:
        said.append(
            f"The encoder is taken as public ({facts['features']['origin']}). Epsilon does not cover what it tells: "
            "nobody checked whether it was made from images of the private data."
        )
    if facts["config"].get("class_counts") is not None:
        said.append("How many images each class has was declared public. Epsilon does not cover it.")
    return said + [off_the_data(fact) for fact in facts["read_off"]]


def _chosen(by_hand: list[str] | None, recipe: str) -> list[str]:
    """Settings that somebody chose."""
    if by_hand is None:
        which = f"All settings were chosen by hand: {recipe!r} is no recipe of dpvision."
    elif by_hand:
        names = [name.replace("_", " ") for name in by_hand]
        which = f"Settings chosen by hand, not those of recipe {recipe}: {', '.join(names)}."
    else:
        return []
    return [f"{which} If results on the same data outside the ledger led to the choice, that is not covered."]


def off_the_data(fact: str) -> str:
    if fact.startswith("number of "):
        return f"The {fact} was read off the data and is treated as public. Epsilon does not cover it."
    if fact == "classes":
        return (
            "The list of classes was read off the data and is treated as public. Epsilon does not cover it: a class "
            "that only one person's images have would show that person."
        )
    return f"This was read off the data and is treated as public, so epsilon does not cover it: {fact}."


def chosen_by_hand(config: Config) -> list[str] | None:
    """The settings that are not those of the recipe, by name; None where dpvision has no such recipe.

    Somebody chose them, and no epsilon covers by looking at what.
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
