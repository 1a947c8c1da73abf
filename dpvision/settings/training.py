"""The settings of a run: recipe < --config file < flags; what is left open is computed from public numbers only."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, get_args, get_type_hints

from dpvision.core import files, quick
from dpvision.core.events import Budget, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import calibrate

# Settings that change how a run is looked after, not what it computes: changing one does not make a new branch.
UPKEEP = ("checkpoint_every", "budget", "study", "examples", "licence", "public_licence")
FROM_WEIGHTS = {
    "finetune": "for dinov2-vits14 with the names of the original model",
    "warm": "such as the weights of `dpvision warm`",
    "extended": "such as the weights of `dpvision warm`",
}
MOST_CANARIES, MOST_EXAMPLES = 100_000, 24
# Settings that came later: they name a run only where they are not as they were before they came.
LATER = ("canaries", "probe_steps", "full_batch", "assist", "public_batch", "radius", "adaptive", "horizon", "floor")


@dataclass(frozen=True)
class Config:
    """Everything that shapes a private training. None means: computed, from public numbers, before it starts."""

    recipe: str = "default"
    model: str | None = None  # None: by n, see default_model
    part: str = "all"  # what is trained of it: see models/parts.py; the rest keeps its first weights
    pretrained: str | None = None  # a .safetensors file of public weights to start from
    prior: str | None = None  # "patches": weights to start from are made, of random images, and kept
    # The guarantee.
    epsilon: float = 3.0
    delta: float = 1e-5
    unit: str = "image"  # or "person": all images of a person are views of one unit
    # Public facts. What is not declared is read off the data, said aloud and written on the card.
    n: int | None = None  # units in the training set, as a public number
    classes: tuple[str, ...] | int | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None  # 1 for gray, 3 for colour
    skip_broken: bool = False
    # The training.
    batch: int | None = None  # expected, not actual; None: half of n, at most 4096
    full_batch: bool = False  # every unit in every step: batch is n
    steps: int | None = None  # None: as many as make 30 to 50 expected passes over n units
    sigma: float | None = None  # None: the least that keeps epsilon
    lr: float = 4.0
    final_noise: float | None = None  # sets lr: as large as leaves noise of this size in each weight at the end
    probe_steps: int = 0  # the first so many steps learn the head and the normalisation before it, the others `part`
    probe_share: float | None = None  # instead: as many as tell this share of epsilon
    probe_lr: float | None = None  # of these steps; None: lr
    momentum: float = 0.0
    clip: float = 1.0
    clip_style: str = "flat"  # or "automatic", "per-layer": see core/clipping.py
    ema: float = 0.98  # decay of the weights' running average, warmed up as (1 + t) / (10 + t)
    release: str = "ema"  # or "last"; fixed here, before training, never chosen by accuracy
    seed: int = 0  # initial weights only; noise and sampling come from the operating system's entropy
    physical: int | None = None  # images worked on at a time; None: as many as suit the memory and its caches
    # What an image is trained on: K = k_base + k_diff + k_self views, averaged before clipping.
    augment: tuple[str, ...] = ()  # what is done to each view: see dpvision/views
    k_base: int = 1  # of the image itself
    k_self: int = 0  # mixtures of two of its other views
    k_diff: int = 0  # public images from `synthetic`
    mix: str = "mixup"  # how two views are mixed: or "cutmix"
    mix_alpha: float = 0.2  # shares of a mixture are Beta(alpha, alpha)
    synthetic: str | None = None  # a public data set with the same classes: for k_diff, and for `assist`
    # How public gradients assist each step: see public/assist.py.
    assist: str = "none"  # or "weights" (weight multiplicity), "dope", "mirror", "adadps"
    public_batch: int = 64  # public images in one public gradient
    radius: float = 0.1  # rho: how far weight multiplicity moves the weights of each view
    adaptive: bool = False  # in proportion to the weights
    horizon: float = 1.0  # mirror: the public gradient alone is followed after so many times all steps
    floor: float = 0.1  # adadps: added to the second moment, in units of its mean
    canaries: int = 0  # units that are no one's, each put in by a secret coin, to audit the run by: see carried.py
    # Upkeep.
    checkpoint_every: int = 25
    study: bool = False  # look at gradients before clipping, into the operator's folder
    budget: float | None = None  # the data set's epsilon over all runs; None: the first run's epsilon
    # What others are told beside the guarantee.
    examples: int = 0  # pictures of the TEST split on the report: so many named right, and as many named wrong
    licence: str | None = None  # under which the released weights may be used
    public_licence: str | None = None  # of the public weights or images that went in

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        _one_of("unit", self.unit, ("image", "person"))
        _one_of("release", self.release, ("ema", "last"))
        _one_of("clip_style", self.clip_style, ("flat", "automatic", "per-layer"))
        _one_of("mix", self.mix, ("mixup", "cutmix"))
        _one_of("assist", self.assist, ("none", "weights", "dope", "mirror", "adadps"))
        _one_of("part", self.part, ("all", "head", "centred-head", "probe", "bias"))
        if self.prior is not None:
            _one_of("prior", self.prior, ("patches",))
            if self.pretrained:
                raise ConfigError(
                    f"prior is {self.prior!r}, and pretrained {self.pretrained!r}: a training starts from one of them. "
                    "Fix: leave the other out."
                )
        for name in (
            "n",
            "batch",
            "steps",
            "sigma",
            "budget",
            "physical",
            "lr",
            "final_noise",
            "probe_lr",
            "clip",
            "checkpoint_every",
            "mix_alpha",
            "public_batch",
            "radius",
            "horizon",
            "floor",
        ):
            _positive(name, getattr(self, name))
        if min(self.k_base, self.k_self, self.k_diff) < 0 or self.views < 1:
            raise ConfigError(
                f"k_base is {self.k_base}, k_self {self.k_self} and k_diff {self.k_diff}: none may be below 0, and an "
                "image needs at least one view. Fix: --k-base 1."
            )
        if not (0 <= self.momentum < 1 and 0 <= self.ema < 1):
            raise ConfigError(
                f"momentum is {self.momentum} and ema is {self.ema}: both must be at least 0 and below 1."
            )
        if self.probe_steps < 0 or not 0 <= (self.probe_share or 0) <= 1:
            raise ConfigError(
                f"probe_steps is {self.probe_steps} and probe_share {self.probe_share}: steps are not below 0, and a "
                "share is from 0 to 1."
            )
        if (self.probe_steps or self.probe_share) and self.part != "all":
            raise ConfigError(f"the head is learned before {self.part!r}. Fix: --part all, or --probe-steps 0.")
        if self.part == "centred-head" and (self.steps == 1 or not self.as_it_is):
            raise ConfigError("centred-head needs one step for the mean of their features and more, and no views.")
        if self.canaries != 0 and not 2 <= self.canaries <= MOST_CANARIES:
            raise ConfigError(
                f"canaries is {self.canaries}: it must be 0, or from 2 to {MOST_CANARIES:,}; 1,000 is usual, or as "
                "many as there are weights if these are fewer."
            )
        if not 0 <= self.examples <= MOST_EXAMPLES:
            raise ConfigError(f"examples is {self.examples}: it must be from 0 to {MOST_EXAMPLES}.")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^63.")
        if self.full_batch and self.batch not in (None, self.n):
            raise ConfigError(f"full_batch is set, and batch is {self.batch}. Fix: leave one of them out.")
        if self.batch is not None and self.n is not None and self.batch > self.n:
            raise ConfigError(f"batch is {self.batch} and n is {self.n}: the expected batch can not exceed n.")

    @property
    def views(self) -> int:
        """K: how many views of an image there are."""
        return self.k_base + self.k_self + self.k_diff

    @property
    def one_view(self) -> bool:
        """Whether every unit is a single view."""
        return self.unit == "image" and self.views == 1

    @property
    def as_it_is(self) -> bool:
        """Whether an image is its own only view, so that features of it can be computed once."""
        return self.views == self.k_base == 1 and not self.augment

    def complete(self, n: int) -> Config:
        """All that was left open, from `n` units and nothing else."""
        self._require_views()
        n = n if self.n is None else self.n
        if n < 2:
            raise ConfigError(f"n is {n}: private training needs at least 2 units.")
        model = self.model or ("patches-1024" if self.prior or self.recipe == "patches" else default_model(n))
        prior = self.prior or ("patches" if model.startswith("patches-") and not self.pretrained else None)
        batch = n if self.full_batch else default_batch(n) if self.batch is None else self.batch
        if batch > n:
            raise ConfigError(
                f"batch is {batch} and n is {n}: the expected batch can not exceed n. Fix: --batch {default_batch(n)}."
            )
        if self.delta * n >= 1:
            raise ConfigError(
                f"delta is {self.delta:g} and n is {n}: to tell all about one unit in {1 / self.delta:.3g} would be "
                f"allowed. Fix: a --delta well below {1 / n:.2g}, such as 1e-5."
            )
        steps = default_steps(n, batch) if self.steps is None else self.steps
        sigma = self.sigma
        if sigma is None:
            sigma = calibrate.sigma(Budget(self.epsilon, self.delta), rate=batch / n, steps=steps)
        lr = self.lr
        if self.final_noise is not None:
            lr = rate_of_noise(self.final_noise, self.momentum, sigma=sigma * self.clip / batch, steps=steps)
        whole = replace(
            self, n=n, model=model, prior=prior, batch=batch, steps=steps, sigma=sigma, lr=lr, final_noise=None
        )
        if self.probe_share is not None:
            whole = replace(whole, probe_share=None, probe_steps=steps_of_share(self.probe_share, whole))
            if self.probe_share and not whole.probe_steps:
                raise ConfigError(
                    f"probe_share is {self.probe_share:g}: the first step alone tells more than that share of epsilon. "
                    "Fix: a larger share, or --probe-steps."
                )
        if whole.probe_steps > steps:
            raise ConfigError(f"probe_steps is {whole.probe_steps}, and there are {steps} steps. Fix: fewer of them.")
        return whole

    def _require_views(self) -> None:
        """Views and public inputs that can be what was meant."""
        if self.k_diff and not self.synthetic:
            raise ConfigError(f"k_diff is {self.k_diff}: it needs public images. Fix: --synthetic FOLDER_OR_NPZ.")
        if self.synthetic and not self.k_diff and self.assist == "none":
            raise ConfigError(
                "public images are given, but k_diff is 0 and assist is 'none': none would be used. Fix: --k-diff 2, "
                "or --assist weights."
            )
        if self.k_self and self.k_base + self.k_diff < 2:
            raise ConfigError(
                f"k_self is {self.k_self}, and k_base + k_diff is {self.k_base + self.k_diff}: a mixture needs two "
                "views. Fix: --k-base 2 or more, or --k-self 0."
            )
        if self.k_base > 1 and not self.augment:
            raise ConfigError(
                f"k_base is {self.k_base} without augment: the views would all be the image itself. Fix: --augment "
                "crop,flip, or --k-base 1."
            )
        if self.recipe.startswith(tuple(FROM_WEIGHTS)) and not self.pretrained:
            whence = next(w for kind, w in FROM_WEIGHTS.items() if self.recipe.startswith(kind))
            raise ConfigError(
                f"recipe {self.recipe} starts from public weights, and none are given. Fix: --pretrained "
                f"FILE.safetensors, {whence}."
            )
        self._require_assistance()

    def _require_assistance(self) -> None:
        """A way of being assisted that this training can take."""
        if self.assist == "none":
            return
        if not self.synthetic:
            raise ConfigError(f"assist is {self.assist!r}: it needs public images. Fix: --public FOLDER_OR_NPZ.")
        if self.part == "centred-head" or self.probe_steps or self.probe_share:
            raise ConfigError(f"assist is {self.assist!r}, and the training has two phases. Fix: --assist none.")
        if self.assist == "weights" and self.unit == "person":
            raise ConfigError(
                "assist is 'weights': it moves the weights of each view of an image, and persons have different "
                "numbers of images. Fix: --assist dope, mirror or adadps."
            )

    def without_folders(self) -> Config:
        """Public inputs by file name alone: what may be released does not show the operator's folders."""
        pretrained, synthetic = (v and PurePath(v).name for v in (self.pretrained, self.synthetic))
        return replace(self, pretrained=pretrained, synthetic=synthetic)

    def hash(self) -> str:
        """Names the settings that shape the result; says nothing about the data."""
        usual = to_dict(Config())
        values = to_dict(self.without_folders())
        shaping = {k: v for k, v in values.items() if k not in UPKEEP and not (k in LATER and v == usual[k])}
        return hashlib.blake2b(json.dumps(shaping, sort_keys=True).encode(), digest_size=16).hexdigest()


SETTINGS = frozenset(f.name for f in fields(Config)) - {"recipe"}


def default_model(n: int) -> str:
    """With few units the noise on many weights outweighs what they can learn: measured in benchmarks/RESULTS.md."""
    return "linear" if n < 5000 else "small-cnn"


def default_batch(n: int) -> int:
    return max(1, min(n // 2, 4096))


def default_steps(n: int, batch: int) -> int:
    """50 expected passes over few units, 30 over many: there, more would cost hours and gain little."""
    return max(1, round((50 if n < 5000 else 30) * n / batch))


def rate_of_noise(wanted: float, momentum: float, *, sigma: float, steps: int) -> float:
    """lr such that lr / (1 - momentum) * sigma * sqrt(steps) is `wanted`: `sigma` is the noise in one step's gradient.

    Panda et al. 2022 (arXiv 2212.04486): the best total rate grows linearly in epsilon; so it does in n / sigma.
    """
    return wanted * (1 - momentum) / (sigma * math.sqrt(steps))


def steps_of_share(share: float, config: Config) -> int:
    """How many of the first steps tell at most this share of the whole training's epsilon."""
    assert config.batch and config.n and config.sigma and config.steps
    event = PoissonGaussian(config.batch / config.n, config.sigma, config.steps)
    most = share * quick.epsilon(event, config.delta)
    low, high = 0, config.steps
    while low < high:
        middle = (low + high + 1) // 2
        fits = quick.epsilon(replace(event, steps=middle), config.delta) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values; what is None is left out."""
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}


def merged(base: Config, changes: Mapping[str, Any], *, source: str) -> Config:
    """`base` with `changes`, each checked: an unknown key is an error with a suggestion."""
    values = checked(Config, changes, source=source)
    if "lr" in values and values.setdefault("final_noise", None) is not None:
        raise ConfigError(f"{source}: lr and final_noise both set the learning rate. Fix: leave one of them out.")
    if values.get("batch") is not None:
        values.setdefault("full_batch", False)
    if values.get("pretrained") is not None:
        values.setdefault("prior", None)  # of a recipe
    return replace(base, **values)


def checked(kind: type, changes: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Values for the fields of a class of settings, each of the right kind."""
    known = get_type_hints(kind)
    values = {}
    for raw, value in changes.items():
        key = raw.replace("-", "_")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{source}: there is no setting {raw!r}.{hint}")
        values[key] = _typed(key, value, known[key], source)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """A settings file as a flat table."""
    try:
        return tomllib.loads(files.read(path, most=1 << 20).decode())
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: can not be read as TOML: {exc}.") from exc


def write_toml(config: Any) -> str:
    """The settings as a file that `read_toml` reads back to the last bit."""
    lines = []
    for key, value in to_dict(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}, which is not a number.")
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=True)}")
    return "\n".join(lines) + "\n"


def _typed(key: str, value: Any, hint: Any, source: str) -> Any:
    allowed = get_args(hint) or (hint,)
    bad = ConfigError(f"{source}: {key} = {_shown(value)} is not of the right kind ({_words(allowed)}).")
    if value is None:
        if NoneType in allowed:
            return None
        raise bad
    if isinstance(value, list | tuple):
        if key == "size" and len(value) == 2 and all(isinstance(v, int) and v > 0 for v in value):
            return tuple(value)
        if key in ("classes", "augment") and all(isinstance(v, str) for v in value):
            return tuple(value)
        if key == "class_counts" and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return tuple(value)
        raise bad
    if key == "size" and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return (value, value)
    if isinstance(value, bool):
        if bool in allowed:
            return value
        raise bad
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise bad
    if isinstance(value, int) and float in allowed:
        return float(value)
    if type(value) in allowed and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise bad


def _shown(value: Any) -> str:
    """For a message: as it was given, if that is short."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _words(kinds: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return " or ".join(names.get(k, "a list") for k in kinds if k is not NoneType)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: it must be {' or '.join(map(repr, choices))}.")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ConfigError(f"{name} is {value}: it must be above 0.")
