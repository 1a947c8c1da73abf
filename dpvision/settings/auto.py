"""The rule of `--recipe auto`: a recipe and its settings from public numbers alone, with the reason in one sentence.

    choose(numbers)           the recipe for a training run
    resolve(config, numbers)  the settings of that recipe, with everything that was set by hand
    choose_encoder(numbers)   the encoder of a release
    choose_head(...)          the method that fits a linear classifier to features
    width_of(model, shape)    the number of features of a model that the rule may choose
    fit(config, n)            the recipe's own batch and learning rate, for n units

Nothing here sees an image or a label. The rows of RULES are in the order in which they are tried; docs/which-recipe.md
shows them, and `python -m benchmarks.auto` compares what they choose with the other recipes. A setting of the method
that is given by hand (`by_hand`) makes `auto` the recipe `default`, to which the setting then applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from dpvision.core.events import Budget
from dpvision.settings import calibrate
from dpvision.settings.setting import Setting, declared
from dpvision.settings.training import Config

AUTO = "auto"
# Images with fewer pixels per side are classified by their pixels: scattering and patches leave too few positions.
SMALL_SIDE = 16
# Features of larger images are computed on images whose shorter side is reduced to this number of pixels.
FEATURE_SIDE = 64
# From this number of units on, the many small steps of scatter-linear are better than the few of scatter-centred.
MANY_UNITS = 20_000
# The mean of the features, which have norm 1, is subtracted if the norm of its noise is at most this.
MOST_NOISE_OF_MEAN = 0.55
# Fewer features, whose mean has less noise.
NARROWER = {"patches-1024": "patches-256"}
# Below this product of n and epsilon, two noisy sums beat many steps on features (digits, 1,437 images: at epsilon 0.1,
# lda reached 39% and descent 14%; at 0.5, they reached 83% and 85%).
ONE_SUM = 500
_NOT_THE_METHOD = {
    "objective",
    "pretrained",
    "symmetry",  # a fact about the images, which no public number states
    "seed",
    "device",
    "precision",
    "physical",
    "minutes",
    "recipe",
    "chosen_by",
}
_ALSO_THE_METHOD = {"sigma", "canaries"}


@dataclass(frozen=True)
class Numbers:
    """What a choice may depend on: declared or public numbers, and what is on this machine."""

    n: int
    shape: tuple[int, int, int]  # channels, height and width of an image
    epsilon: float
    delta: float = 1e-5
    encoder: str | None = None  # a public network whose weights are at hand
    minutes: float | None = None

    @property
    def side(self) -> int:
        """The shorter side of an image."""
        return min(self.shape[1:])

    @property
    def words(self) -> str:
        """Describe the numbers, for the reason of a choice."""
        colour = "grey" if self.shape[0] == 1 else "colour"
        network = f"the public network {self.encoder}" if self.encoder else "no public network"
        units = "unit" if self.n == 1 else "units"
        return f"{colour} images of {self.shape[1]}x{self.shape[2]}, {self.n:,} {units}, {network} at hand"


@dataclass(frozen=True)
class Choice:
    """A recipe, the settings in which it is fitted to the data, and the reason."""

    recipe: str
    reason: str
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One row of the rule: `when` describes in words what `holds` tests."""

    when: str
    recipe: str
    holds: Callable[[Numbers], bool]


RULES = (
    Rule("weights of a public network at hand", "finetune-centred", lambda of: of.encoder is not None),
    Rule(f"shorter side below {SMALL_SIDE} pixels", "linear-centred", lambda of: of.side < SMALL_SIDE),
    Rule("colour images", "patches", lambda of: of.shape[0] == 3),
    Rule(f"grey images, {MANY_UNITS:,} units or more", "scatter-linear", lambda of: of.n >= MANY_UNITS),
    Rule("grey images, fewer units", "scatter-centred", lambda of: True),
)
# The models of a recipe, from the most accurate one to the fastest, for --minutes.
MODELS = {
    "linear-centred": ("linear-centred",),
    "patches": ("patches-1024", "patches-256"),
    "scatter-linear": ("scatter-linear",),
    "scatter-centred": ("scatter-linear-centred", "linear-centred"),
}


def choose(of: Numbers, *, width: Callable[[str], int], seconds: Callable[[str], float] = lambda model: 0.0) -> Choice:
    """Return the first rule's recipe that fits the numbers.

    `width` is the number of features of a model. With --minutes, `seconds` predicts the time that a model needs for all
    features on this machine; it is measured on random images.
    """
    from dpvision.settings.recipes import recipe

    name = next(rule.recipe for rule in RULES if rule.holds(of))
    usual, changes, reason = recipe(name, epsilon=of.epsilon), dict[str, Any](), f"{of.words}: {name}"
    models = models_of(name, of)
    model = models[0]
    if model.endswith(f"@{FEATURE_SIDE}"):
        reason += f" at {FEATURE_SIDE} pixels"
    if of.minutes is not None:
        model = next((each for each in models if seconds(each) <= 60 * of.minutes), models[-1])
        if model != models[0]:
            reason += f", with {model} to take about {of.minutes:g} minutes"
    base, at, side = model.partition("@")
    if usual.part == "centred-head" and too_noisy(of, width(model), usual.steps or 1):
        if base in NARROWER:
            model = NARROWER[base] + at + side
            reason += f", with {model}, whose mean has less noise"
        if too_noisy(of, width(model), usual.steps or 1):
            changes["part"] = "head"
            reason += ", without subtracting the mean, which would be mostly noise"
    if model != MODELS.get(name, ("",))[0]:
        changes["model"] = model
    return Choice(name, reason, changes)


def too_noisy(of: Numbers, width: int, steps: int) -> bool:
    """Return whether the mean of rows of norm 1 would be mostly noise, with every unit in each of the steps."""
    sigma = calibrate.sigma(Budget(of.epsilon, of.delta), rate=1.0, steps=steps, confirm=False)
    return sigma * math.sqrt(width) / of.n > MOST_NOISE_OF_MEAN


def width_of(model: str, shape: tuple[int, int, int]) -> int | None:
    """Return the number of features of a model in MODELS or NARROWER, without building it; None for others."""
    (channels, height, width), (base, _, side) = shape, model.partition("@")
    if side:
        scale = int(side) / min(height, width)
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
    kind, _, number = base.removesuffix("-centred").partition("-")
    match kind:
        case "patches" if number.isdigit():
            return 18 * int(number)
        case "scatter" if number == "linear":
            return 81 * channels * (height // 4) * (width // 4)
        case "linear":
            return channels * height * width
        case _:
            return None


def models_of(recipe: str, of: Numbers) -> tuple[str, ...]:
    """Return the models of a recipe, the most accurate first, at the side that features are computed at."""
    if of.encoder is not None:
        return (f"{of.encoder}-centred",)
    names = MODELS[recipe]
    if of.side <= FEATURE_SIDE:
        return names
    return (*(f"{name}@{FEATURE_SIDE}" for name in names), f"{names[-1]}@{FEATURE_SIDE // 2}")


def resolve(
    config: Config, of: Numbers, *, width: Callable[[str], int], seconds: Callable[[str], float] = lambda model: 0.0
) -> Config:
    """Return the settings of the chosen recipe; those that are not of the method stay as they are."""
    from dpvision.settings.recipes import recipe

    if config.pretrained and of.encoder is None:
        choice = Choice("default", "weights of another network are given: default")
    else:
        choice = choose(of, width=width, seconds=seconds)
    kept = {name: getattr(config, name) for name, about in declared(Config).items() if not of_method(about)}
    del kept["recipe"], kept["chosen_by"]
    base = recipe(choice.recipe, epsilon=config.epsilon)
    return replace(base, **kept, **choice.changes, chosen_by=f"auto: {choice.reason}")


def of_method(about: Setting) -> bool:
    """Return whether a setting is part of the method, so that setting it by hand replaces the choice of `auto`."""
    if about.name in _ALSO_THE_METHOD:
        return True
    return about.name not in _NOT_THE_METHOD and about.group in ("Model", "Optimisation", "Views", "Public data")


def by_hand(names: Collection[str]) -> list[str]:
    """Return those of these settings that replace the choice of `auto`."""
    return sorted(name for name, about in declared(Config).items() if name in names and of_method(about))


def fit(config: Config, n: int) -> Config:
    """Fit a recipe's own batch and learning rate to the number of units; those set by hand stay.

    A batch above n becomes n, and the learning rate shrinks in proportion, as the signal does. For larger n nothing
    changes.
    """
    from dpvision.settings.recipes import RECIPES, recipe

    if config.recipe not in RECIPES:
        return config
    usual, changes = recipe(config.recipe, epsilon=config.epsilon), dict[str, Any]()
    if usual.batch is not None and config.batch == usual.batch and usual.batch > n:
        changes["batch"] = n
        if config.lr == usual.lr and config.final_noise is None:
            changes["lr"] = config.lr * n / usual.batch
    return replace(config, **changes) if changes else config


def choose_encoder(of: Numbers) -> tuple[str, str]:
    """Return the encoder of a release, and the reason."""
    if of.encoder is not None:
        name = of.encoder
    elif of.side < SMALL_SIDE // 2 or (of.side < SMALL_SIDE and of.shape[0] == 3):
        name = "pixels"
    else:
        name = "scatter-linear" if of.shape[0] == 1 else "patches-256"
        if of.side > FEATURE_SIDE:
            name += f"@{FEATURE_SIDE}"
    return name, f"{of.words}: {name}"


def choose_head(*, n: int, epsilon: float, public: bool) -> tuple[str, str]:
    """Return the method for a head on features of n units, and the reason."""
    if public:
        return "newton", "features of public images at hand: newton"
    if not math.isfinite(epsilon) or n * epsilon >= ONE_SUM:
        return "descent", f"n times epsilon is {n * epsilon:,.0f}, at least {ONE_SUM:,}: descent"
    return "lda", f"n times epsilon is {n * epsilon:,.0f}, below {ONE_SUM:,}: lda"
