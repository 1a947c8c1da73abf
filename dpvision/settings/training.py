"""The settings of a training run, each declared once. Options override the --config file, which overrides the recipe.

A setting that is None is computed from public numbers before training starts: see `complete` in plan.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpvision.core.events import Budget
from dpvision.errors import ConfigError
from dpvision.settings.setting import (
    OBJECTIVES,
    REQUIRED,
    centre_and_width,
    check,
    check_values,
    class_list,
    declared,
    setting,
    size_pair,
    to_dict,
    without_folders,
    word_list,
)
from dpvision.settings.symmetry import SYMMETRIES


@dataclass(frozen=True)
class Way:
    """A way in which gradients of public images assist a private step: the facts needed before the step runs.

    title           a line of the printed plan; {0} is replaced by the settings
    shaped_by       public vectors that change a contribution before it is clipped (core.clipping.Public)
    each_view       whether each view of a unit uses its own weights
    second_moment   whether the state of a training run stores a second moment
    """

    title: str
    shaped_by: tuple[str, ...] = ()
    each_view: bool = False
    second_moment: bool = False


# To add a way, add a line here and a function of the same name in public/assist.py, which has the formulas.
WAYS: dict[str, Way] = {
    "none": Way("private gradients only"),
    "weights": Way("weight multiplicity, radius {0.radius:g}", ("perturbations",), each_view=True),
    "dope": Way("DOPE-SGD: the public gradient is subtracted before clipping and added afterwards", ("shift",)),
    "mirror": Way("mirror descent: moves from the private to the public gradient during training"),
    "adadps": Way(
        "AdaDPS: gradients are scaled by public second moments before clipping", ("scale",), second_moment=True
    ),
}
FROM_WEIGHTS = {
    "finetune": "or `dpvision weights get dinov2-vits14`, and then --pretrained dinov2-vits14",
    "warm": "such as the weights of `dpvision warm`",
    "extended": "such as the weights of `dpvision warm`",
}
MAX_CANARIES, MAX_EXAMPLES = 100_000, 24
# Methods of fitting a linear classifier to features, and the name of the resulting model.
HEADS = ("auto", "descent", "newton", "moments", "lda")
HEAD_ON_FEATURES = "head-on-features"
# What a model answers (models/tasks.py).
TASKS = ("classes", "labels", "grades")
# Rounding of the inputs of matrix products: none, to 10 bits (TF32) or to 7 bits (bfloat16). Sums are float32.
PRECISIONS = ("float32", "tf32", "bf16")


@dataclass(frozen=True)
class Config:
    """All settings that determine a training run. Those that are None are computed from public numbers beforehand."""

    # fmt: off
    recipe: str = setting(
        "default", group="Model", option=False, on_card=False,
        help="Settings to start from, by name; `dpvision recipes` lists them.",
    )
    chosen_by: str | None = setting(
        None, group="Model", option=False, names_branch="never", on_card=False,
        help="If `auto` chose the recipe: the public numbers that it followed from.",
    )
    model: str | None = setting(
        None, group="Model", tunable=True, shown="linear below 5,000 units, else small-cnn",
        help="Network to train, such as small-cnn, wrn-16-4 or scatter-linear.",
    )
    part: str = setting(
        "all", group="Model", tunable=True, choices=("all", "head", "centred-head", "probe", "bias"),
        help="Which parameters to train; the others keep their initial values.",
    )
    objective: str = setting(
        "accuracy", group="Model", choices=OBJECTIVES, names_branch="changed",
        help="What to aim for: accuracy on images like the private ones, or in the mean over all classes (balanced).",
    )
    symmetry: str | None = setting(
        None, group="Model", names_branch="changed", choices=SYMMETRIES, shown="that of the model: mirror for patches",
        help="Average the features of an image over views with the same meaning: its mirror image, or also its "
        "rotations by right angles, where orientation means nothing (skin, cells, satellites).",
    )
    head: str | None = setting(
        None, group="Model", choices=HEADS, shown="auto for features: newton with --public, lda for very little data, "
        "else descent",
        help="For an .npz of features instead of images: how to fit the linear classifier.",
    )
    pretrained: str | None = setting(
        None, group="Model", path=True, on_card=False, shown="random weights",
        help="Public weights to start from: a .safetensors file, or a name of `dpvision weights list`.",
    )
    prior: str | None = setting(
        None, group="Model", choices=("patches",), on_card=False,
        help="Build (and cache) initial weights from random images.",
    )
    epsilon: float = setting(
        3.0, group="Privacy", above=0, on_card=False, shown=REQUIRED,
        help="Privacy budget of this run. Lower is more private: 1 strong, 3 moderate, 8 weak.",
    )
    delta: float = setting(
        1e-5, group="Privacy", above=0, below=1, on_card=False,
        help="Probability of exceeding epsilon; keep it below 1/n.",
    )
    unit: str = setting(
        "image", group="Privacy", choices=("image", "person"), on_card=False,
        help="What the guarantee protects: each image, or each person with all of their images.",
    )
    task: str = setting(
        "classes", group="Data", choices=TASKS, names_branch="changed", on_card=False,
        help="What is asked about an image: one of several classes, several labels that may each apply or not, or a "
        "grade, one of several ordered classes.",
    )
    group: str | None = setting(
        None, group="Data", names_branch="never", on_card=False, shown="no groups",
        help="Column with the group of each image (sex, site, device): recall and AUROC on the test split by group. "
        "Never used in training.",
    )
    n: int | None = setting(
        None, group="Data", above=0, shown="read from the data and treated as public",
        help="Number of training images (or persons), declared as a public number.",
    )
    classes: tuple[str, ...] | int | None = setting(
        None, group="Data", from_text=class_list, on_card=False, shown="read from the data and treated as public",
        help="The classes, declared as public: their number, or a comma-separated list of their names.",
    )
    size: tuple[int, int] | None = setting(
        None, group="Data", from_text=size_pair, on_card=False,
        shown="unchanged, or 64 if their sizes differ",
        help="Resize image files to this number of pixels per side, or to HEIGHTxWIDTH, cropping the longer side.",
    )
    channels: int | None = setting(
        None, group="Data", on_card=False, shown="unchanged",
        help="Convert images to this number of channels: 1 for grey, 3 for colour.",
    )
    skip_broken: bool = setting(
        False, group="Data", on_card=False, help="Skip images that cannot be read instead of stopping."
    )
    test_share: float | None = setting(
        None, group="Data", at_least=0, at_most=0.9, names_branch="changed", on_card=False,
        shown="0.2 for a folder of classes or a Parquet table, 0 for a CSV file; only if no split is named",
        help="Share of the images to set aside for the test accuracy, by person if persons are known.",
    )
    window: str | None = setting(
        None, group="Data", from_text=centre_and_width, names_branch="changed", on_card=False,
        shown="40,400 for CT; for other DICOM images the range of the stored bits",
        help="Centre and width of the window of DICOM images.",
    )
    columns: str | None = setting(
        None, group="Data", names_branch="changed", on_card=False, shown="image, label and, if present, person, split",
        help="Columns of a Parquet or Hugging Face table: image=NAME,label=NAME,person=NAME,split=NAME.",
    )
    batch: int | None = setting(
        None, group="Optimisation", above=0, resumable=True, tunable=True, shown="half of n, at most 4096",
        help="Expected batch size; the actual size of each batch is random.",
    )
    full_batch: bool = setting(
        False, group="Optimisation", names_branch="changed", help="Use every unit in every step: the batch is n."
    )
    steps: int | None = setting(
        None, group="Optimisation", above=0, resumable=True, tunable=True,
        shown="30 expected passes over the data, 50 below 5,000 units",
        help="Number of training steps.",
    )
    minutes: float | None = setting(
        None, group="Optimisation", above=0, names_branch="never", on_card=False, shown="no limit",
        help="With the recipe auto: choose a model whose training takes at most about this time on this machine.",
    )
    sigma: float | None = setting(
        None, group="Privacy", above=0, resumable=True, on_card=False, shown="smallest that keeps epsilon",
        help="Noise multiplier: standard deviation of the noise over the clipping norm.",
    )
    lr: float = setting(4.0, group="Optimisation", above=0, resumable=True, tunable=True, help="Learning rate.")
    final_noise: float | None = setting(
        None, group="Optimisation", above=0, tunable=True,
        help="Set the learning rate so that the noise in each final weight has this standard deviation; replaces --lr.",
    )
    probe_steps: int = setting(
        0, group="Optimisation", at_least=0, names_branch="changed",
        help="Number of initial (probe) steps that train only the head and the normalisation before it.",
    )
    probe_share: float | None = setting(
        None, group="Optimisation", at_least=0, at_most=1,
        help="Fraction of epsilon to spend on probe steps, from 0 to 1; replaces --probe-steps.",
    )
    probe_lr: float | None = setting(
        None, group="Optimisation", above=0, tunable=True, shown="that of --lr", help="Learning rate of probe steps."
    )
    momentum: float = setting(
        0.0, group="Optimisation", at_least=0, below=1, resumable=True, tunable=True, help="Momentum of the optimiser."
    )
    clip: float = setting(
        1.0, group="Optimisation", above=0, resumable=True, tunable=True,
        help="Clipping norm: the largest norm that the gradient of one unit may have.",
    )
    clip_style: str = setting(
        "flat", group="Optimisation", choices=("flat", "automatic", "per-layer"), resumable=True, tunable=True,
        help="How to clip gradients: scale down those above the norm (flat), normalise all of them (automatic), or "
        "clip each layer (per-layer).",
    )
    ema: float = setting(
        0.98, group="Optimisation", at_least=0, below=1, resumable=True, tunable=True,
        help="Decay of the running average of the weights.",
    )
    release: str = setting(
        "ema", group="Optimisation", choices=("ema", "last"), tunable=True,
        help="Which weights to publish: their running average (ema) or the last ones. Fixed before training.",
    )
    seed: int = setting(
        0, group="Model", at_least=0, below=1 << 63, on_card=False,
        help="Seed of the initial weights only; noise and sampling have no seed.",
    )
    physical: int | None = setting(
        None, group="Optimisation", above=0, resumable=True, on_card=False, shown="chosen to fit memory and caches",
        help="Microbatch size: number of images processed at once. Trades memory for speed.",
    )
    device: str = setting(
        "auto", group="Optimisation", resumable=True, names_branch="never",
        help="Device to compute on: auto (an accelerator that passes a self-test, or else the CPU), cpu, cuda, cuda:1.",
    )
    precision: str = setting(
        "float32", group="Optimisation", choices=PRECISIONS, resumable=True, names_branch="changed",
        help="Precision of the inputs of matrix products; sums and clipping are not affected. tf32 (accelerators only) "
        "and bf16 are faster on accelerators, but less accurate.",
    )
    augment: tuple[str, ...] = setting(
        (), group="Views", from_text=word_list, tunable=True,
        help="Augmentations of each view, comma-separated: crop, flip, cutout, jitter, autoaugment.",
    )
    k_base: int = setting(
        1, group="Views", at_least=0, tunable=True,
        help="Number of augmented views of each image; all views are averaged before clipping.",
    )
    k_self: int = setting(
        0, group="Views", at_least=0, tunable=True,
        help="Number of additional views that are mixtures of two other views of the same image.",
    )
    k_diff: int = setting(
        0, group="Views", at_least=0,
        help="Number of public images from --synthetic added to the views of each image.",
    )
    mix: str = setting(
        "mixup", group="Views", choices=("mixup", "cutmix"), tunable=True, help="How to mix two views."
    )
    mix_alpha: float = setting(
        0.2, group="Views", above=0, tunable=True,
        help="Mixing proportions are drawn from Beta(alpha, alpha).",
    )
    synthetic: str | None = setting(
        None, group="Public data", path=True, on_card=False, aliases=("--public",),
        help="Public images of the same classes, for --k-diff and --assist: an .npz, a folder or a .csv.",
    )
    assist: str = setting(
        "none", group="Public data", names_branch="changed", choices=WAYS,
        help="How gradients of public images assist training: weight multiplicity, DOPE-SGD, mirror descent or AdaDPS.",
    )
    public_batch: int = setting(
        64, group="Public data", above=0, names_branch="changed", help="Number of public images per public gradient."
    )
    radius: float = setting(
        0.1, group="Public data", above=0, names_branch="changed",
        help="Weight multiplicity: how far to perturb the weights for each view.",
    )
    adaptive: bool = setting(
        False, group="Public data", names_branch="changed",
        help="Weight multiplicity: perturb each weight in proportion to its magnitude.",
    )
    horizon: float = setting(
        1.0, group="Public data", above=0, names_branch="changed",
        help="Mirror descent: fraction of training after which only the public gradient is used.",
    )
    floor: float = setting(
        0.1, group="Public data", above=0, names_branch="changed",
        help="AdaDPS: constant added to the second moments, as a fraction of their mean.",
    )
    canaries: int = setting(
        0, group="Privacy", names_branch="changed", on_card=False,
        help="Number of synthetic canary records to insert for a one-run audit, usually 1000 or, if smaller, the "
        "number of weights. Costs accuracy.",
    )
    checkpoint_every: int = setting(
        25, group="Output", above=0, resumable=True, names_branch="never", help="Number of steps between checkpoints."
    )
    study: bool = setting(
        False, group="Output", names_branch="never",
        help="Record gradients before clipping for your own inspection: no noise protects them, so they are not for "
        "release.",
    )
    budget: float | None = setting(
        None, group="Privacy", above=0, names_branch="never", shown="this run's epsilon",
        help="Total privacy budget (epsilon) of the data set over all runs, set by the first run on it.",
    )
    examples: int = setting(
        0, group="Output", at_least=0, at_most=MAX_EXAMPLES, names_branch="never",
        help="Show this many correctly classified and this many misclassified TEST images in the report.",
    )
    licence: str | None = setting(
        None, group="Output", names_branch="never", help="Licence of the published weights, for the card."
    )
    public_licence: str | None = setting(
        None, group="Output", names_branch="never", help="Licence of the public weights or images used, for the card."
    )
    # fmt: on

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check(self)
        if self.prior and self.pretrained:
            raise ConfigError(
                f"prior is {self.prior!r} and pretrained is {self.pretrained!r}, but a training run starts from one "
                "of them. Fix: leave the other one out."
            )
        if self.views < 1:
            raise ConfigError(
                "k_base, k_self and k_diff are all 0, but an image needs at least one view. Fix: use --k-base 1."
            )
        if (self.probe_steps or self.probe_share) and self.part != "all":
            raise ConfigError(
                f"part is {self.part!r}, but probe steps come before training all weights. Fix: use --part all, or "
                "--probe-steps 0."
            )
        if self.part == "centred-head" and (self.steps == 1 or not self.as_it_is):
            raise ConfigError(
                "centred-head needs at least 2 steps (the first computes the mean of the features) and no augmented "
                "views. Fix: use --steps 2 or more, --k-base 1, and no --augment."
            )
        if self.canaries != 0 and not 2 <= self.canaries <= MAX_CANARIES:
            raise ConfigError(
                f"canaries is {self.canaries}: it must be 0, or from 2 to {MAX_CANARIES:,}; usually 1,000 or, if "
                "smaller, the number of weights."
            )
        if self.objective == "balanced":
            self._require_one_objective()
        if self.task == "labels" and self.k_diff:
            raise ConfigError(
                f"k_diff is {self.k_diff}: public images among the views need one class per image, but task is "
                "'labels'. Fix: use --k-diff 0, and --assist for public images."
            )
        if self.task == "labels" and self.examples:
            raise ConfigError(
                "examples shows images with one class each, but task is 'labels'. Fix: leave --examples out."
            )
        if self.full_batch and self.batch not in (None, self.n):
            raise ConfigError(f"full_batch is set, but batch is {self.batch}. Fix: leave one of them out.")

    def _require_one_objective(self) -> None:
        """Refuse what has no balanced form: more phases, public gradients, canaries, and ridge regression."""
        others = {
            "probe_steps": self.probe_steps or self.probe_share,
            "assist": self.assist != "none",
            "canaries": self.canaries,
        }
        for name in (name for name, used in others.items() if used):
            raise ConfigError(
                f"objective is 'balanced', whose first steps find the shares of the classes, which {name} does not "
                f"allow. Fix: leave --{name.replace('_', '-')} out, or use --objective accuracy."
            )
        if self.task != "classes":
            raise ConfigError(
                f"objective is 'balanced', which is about the frequencies of classes, but task is {self.task!r}. Fix: "
                "leave --objective out."
            )
        first = 2 if self.part == "centred-head" else 1
        if self.steps is not None and self.head is None and self.steps <= first:
            raise ConfigError(
                f"steps is {self.steps}, but the objective 'balanced' needs more than {first}: the first ones estimate "
                "means. Fix: use more --steps."
            )
        if self.head == "moments":
            raise ConfigError(
                "objective: the head moments has no balanced form. Fix: use --head descent or --head lda."
            )

    @property
    def views(self) -> int:
        """The number K of views of each image."""
        return self.k_base + self.k_self + self.k_diff

    @property
    def one_view(self) -> bool:
        """Whether every unit is a single view."""
        return self.unit == "image" and self.views == 1

    @property
    def as_it_is(self) -> bool:
        """Whether the only view of an image is the image itself, so that its features can be cached."""
        return self.views == self.k_base == 1 and not self.augment

    def complete(self, n: int) -> Config:
        """Compute the settings that are None, from the number of units alone."""
        from dpvision.settings.plan import complete

        self.require_views()
        return complete(self, n)

    def require_views(self) -> None:
        """Refuse views and public inputs that contradict each other."""
        if self.k_diff and not self.synthetic:
            raise ConfigError(f"k_diff is {self.k_diff}: it needs public images. Fix: use --synthetic FOLDER_OR_NPZ.")
        if self.synthetic and not self.k_diff and self.assist == "none" and self.head is None:
            raise ConfigError(
                "public images are given, but k_diff is 0 and assist is 'none', so none would be used. Fix: "
                "use --k-diff 2, or --assist weights."
            )
        if self.k_self and self.k_base + self.k_diff < 2:
            raise ConfigError(
                f"k_self is {self.k_self}, but k_base + k_diff is {self.k_base + self.k_diff}: a mixture needs two "
                "views. Fix: use --k-base 2 or more, or --k-self 0."
            )
        if self.k_base > 1 and not self.augment:
            raise ConfigError(
                f"k_base is {self.k_base} without augment, so all views would be the image itself. Fix: use --augment "
                "crop,flip, or --k-base 1."
            )
        if self.recipe.startswith(tuple(FROM_WEIGHTS)) and not self.pretrained:
            hint = next(text for kind, text in FROM_WEIGHTS.items() if self.recipe.startswith(kind))
            raise ConfigError(
                f"recipe {self.recipe} starts from public weights, but none are given. Fix: use --pretrained "
                f"FILE.safetensors, {hint}."
            )
        self._require_assistance()

    def _require_assistance(self) -> None:
        """Refuse an `assist` that this training run cannot use."""
        if self.assist == "none":
            return
        if not self.synthetic:
            raise ConfigError(f"assist is {self.assist!r}: it needs public images. Fix: use --public FOLDER_OR_NPZ.")
        if self.part == "centred-head" or self.probe_steps or self.probe_share:
            raise ConfigError(f"assist is {self.assist!r}, but training has two phases. Fix: use --assist none.")
        if WAYS[self.assist].each_view and self.unit == "person":
            raise ConfigError(
                f"assist is {self.assist!r}: it perturbs the weights for each view of an image, but persons have "
                "different numbers of images. Fix: use --assist dope, mirror or adadps."
            )

    def without_folders(self) -> Config:
        """Return the settings with paths reduced to file names: a release must not reveal the operator's folders."""
        return without_folders(self)

    def hash(self) -> str:
        """Return a digest of the settings that determine the result; it reveals nothing about the data."""
        names = {name: of.names_branch for name, of in declared(type(self)).items()}
        defaults, values = to_dict(type(self)()), to_dict(without_folders(self))
        named = {
            k: v for k, v in values.items() if names[k] == "always" or (names[k] == "changed" and v != defaults.get(k))
        }
        return hashlib.blake2b(json.dumps(named, sort_keys=True).encode(), digest_size=16).hexdigest()


def merge(base: Config, changes: Mapping[str, Any], *, source: str) -> Config:
    """Return `base` with `changes`, which are checked; an unknown key is an error with a suggestion.

    Changes of the method by hand replace the recipe `auto` by `default`.
    """
    from dpvision.settings import auto

    values = check_values(type(base), changes, source=source)
    if names := auto.by_hand(values):
        if values.get("recipe", base.recipe) == auto.AUTO:
            values["recipe"] = "default"
            values["chosen_by"] = f"auto: settings are given by hand ({', '.join(names)}): default"
        elif base.recipe != "default":
            values.setdefault("chosen_by", None)
    if "lr" in values and values.setdefault("final_noise", None) is not None:
        raise ConfigError(f"{source}: lr and final_noise both set the learning rate. Fix: leave one of them out.")
    if values.get("batch") is not None:
        values.setdefault("full_batch", False)
    if values.get("pretrained") is not None:
        values.setdefault("prior", None)  # given weights replace the prior of a recipe
    return replace(base, **values)
