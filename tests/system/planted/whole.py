"""Checks of whole runs beyond replay: what a run looks at, and what its plan, its draws and its files depend on.

units apart         no unit changes what another one contributes, at any clip (replay/quartets.py, `interaction`)
any data            given the noisy results, all that is public is the same for any data, of any size
held out            the test and validation splits move no sum and no released number but their own accuracy
fetched             the images that reach a clipped sum are those of the training split, each unit whole
declared            with declared facts, nothing of a plan depends on the data: size, labels, pixels or persons
cached features     rows served from $DPVISION_HOME are those of the images at hand, in their order, whatever was cached before
law of tuning       the number of trials and the candidates follow the law that is charged; the best is released
branches            every setting, and whatever else shapes a result, is in the name of its noise
accounts            opened and charged with the budget and the unit that were asked for
said                command line, card and report are the same for neighbours
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy import stats

from dpvision.audit.recording import Recording, patched, record
from dpvision.audit.replay import compare_recordings, first_difference
from dpvision.core.events import Budget
from dpvision.core.gate import secret_name
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.data import Split, identify
from dpvision.models import Featured
from dpvision.models.inputs import Inputs, to_tensor
from dpvision.models.tasks import Task
from dpvision.private.features import cache, encoders
from dpvision.private.statistics import head_run, release
from dpvision.private.training import train, tune
from dpvision.private.training.network import phases
from dpvision.private.training.private_sum import PrivateSum
from dpvision.private.training.state import State, branch_name
from dpvision.private.training.stopping import Stopping
from dpvision.settings.recipes import RECIPES, release_recipe
from dpvision.settings.setting import declared as settings_of
from dpvision.settings.training import HEADS, Config
from tests.system.replay.mechanisms import MECHANISMS, RUNS
from tests.system.replay.neighbours import Records, one_more
from tests.system.replay.quartets import ROUNDING, interactions
from tests.system.replay.whole_runs import CLASSES, LINEAR, SETTINGS, SIDE, N, Run, features, home, write

FALSE_ALARM = 1e-6


def units_apart(names: tuple[str, ...], seed: int) -> list[str]:
    for name in names:
        for moved in interactions(MECHANISMS[name], seed=seed):
            if moved > ROUNDING:
                return [f"{name}: a unit changes what another contributes, by {moved:.2g} of the sensitivity"]
    return []


def any_data(names: tuple[str, ...], seed: int) -> list[str]:
    """Given the noisy results, a run is the same on any data, not only on neighbours: only the sums may differ."""
    for name in names:
        mechanism = MECHANISMS[name]
        one, other = mechanism.records(6, seed), mechanism.records(29, seed + 1)
        labels = np.where(
            np.arange(len(other)) < CLASSES, other.labels, other.labels % 2
        )  # half of the classes are rare
        dark = other.x // 3 if mechanism.dtype == np.uint8 else other.x / 3
        before = record(mechanism.run, one)
        after = record(mechanism.run, replace(other, x=dark.astype(other.x.dtype), labels=labels), like=before)
        results = [violation for violation in compare_recordings(before, after) if violation.what != "sum"]
        if results:
            return [f"{name}: {results[0]}"]
    return []


# Held-out images

HELD_OUT = (
    *("train, full batch, last weights", "train, with canaries", "train, the head", "train, persons", "tune"),
    *("train, assisted by dope", "release, moments", "release, mixtures", "head run, newton"),
)
ABOUT_TEST = ("evaluation.json", "metrics.jsonl", "accuracy", "card.json")


def held_out(seed: int) -> list[str]:
    for name in HELD_OUT:
        mechanism = RUNS[name]
        data = mechanism.records(8, seed)
        first = record(mechanism.run, data)
        for other in (1, 2):
            again = record(replace(mechanism.run, held_out=other), data, like=first)  # type: ignore[type-var]
            if result := _told_apart(first, again):
                return [f"{name}: {result}"]
    return []


def _told_apart(one: Recording, other: Recording) -> str | None:
    for result in (one, other):
        if result.error is not None:
            raise result.error
    sums = [[asked.total for asked in result.calls] for result in (one, other)]
    results = [_without(result.outcome, ABOUT_TEST) for result in (one, other)]
    return (
        first_difference(*sums, where="sums")
        or first_difference(one.charges, other.charges, where="charges")
        or first_difference(one.public, other.public, where="public")
        or first_difference(*results, where="released")
    )


def _without(outcome: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in outcome.items() if name not in names}


# The units that are fetched

FETCHED: dict[str, dict[str, Any]] = {
    "persons": {"unit": "person"},
    "persons with many images": {"unit": "person"},
    "images": {},
    "canaries": {"canaries": 30},
    "persons, canaries": {"unit": "person", "canaries": 30},
    "assisted": {"assist": "dope", "public_batch": 6},
    "phases": {"model": "wrn-10-1", "probe_steps": 1},
}
MANY = 1100  # images of one of three persons: more than are fetched, and than pass, at a time


def fetched(seed: int) -> list[str]:
    """In steps with every unit, each unit comes with all of its images and labels, and nothing else."""
    for name, changes in FETCHED.items():
        mechanism = RUNS["train, persons" if "persons" in name else "train"]
        data = mechanism.records(9, seed)
        if "many" in name:
            data = replace(mechanism.records(MANY, seed), persons=np.minimum(np.arange(MANY) // 2, 2))
            data = replace(data, x=data.x[:MANY], labels=data.labels[:MANY])
        with home() as path:
            run = Run({**LINEAR, **changes, "full_batch": True, "batch": None, "steps": 2})
            prepared = train.prepare(write(path, data), run.config(path))
            steps = list(_steps_of(prepared, path / "run"))
        owners = np.arange(len(data)) if data.persons is None else data.persons
        images, wanted = to_tensor(data.x), Counter[tuple[Any, ...]]()
        for who in np.unique(owners):
            wanted[_named(images[owners == who], torch.from_numpy(data.labels[owners == who]))] += 1
        if len(steps) != 2 or any(step != wanted for step in steps):
            return [f"{name}: the fetched data are not the training split, unit by unit"]
    return []


def _named(images: torch.Tensor, labels: torch.Tensor) -> tuple[Any, ...]:
    return tuple(sorted((image.numpy().tobytes(), int(label)) for image, label in zip(images, labels, strict=True)))


def _steps_of(prepared: train.Prepared, folder: Path) -> Iterator[Counter[tuple[Any, ...]]]:
    """Return the units of each step as the sum receives them."""
    step_of, seen = PrivateSum.step, list[Counter[tuple[Any, ...]]]()

    def stepping(self: Any, number: int, units: int, fetch: Any, public: Any = None) -> torch.Tensor:
        seen.append(Counter())

        def noting(drawn: Any, seed: int) -> Any:
            images, labels, counts = fetch(drawn, seed)
            start = 0
            for count in counts:
                seen[-1][_named(images[start : start + count], labels[start : start + count])] += 1
                start += count
            return images, labels, counts

        return step_of(self, number, units, noting, public)

    with patched(PrivateSum, "step", stepping):
        train.proceed(train.begin(prepared, folder), prepared)
    yield from seen


# The inputs of a plan

DECLARED: dict[str, Any] = {"n": 400, "classes": CLASSES, "size": (SIDE, SIDE), "channels": 1, "epsilon": 3.0}
COLUMNS = 20  # of features; with n as declared, and not with half of it, lda releases a covariance


def _unlike(seed: int) -> list[Records]:
    """Data sets that have nothing in common but the shape of an image."""
    rng, results = np.random.default_rng(seed), []
    for count, brightest, shares in (
        (400, 256, None),
        (399, 256, None),
        (150, 40, (0.7, 0.1, 0.1, 0.1)),
        (700, 256, None),
    ):
        x = rng.integers(0, brightest, (count, SIDE, SIDE, 1), dtype=np.uint8)
        labels = np.concatenate([np.arange(CLASSES), rng.choice(CLASSES, count - CLASSES, p=shares)])
        persons = np.sort(rng.integers(0, max(5, count // int(rng.integers(1, 6))), count))
        results.append(Records(x, labels, persons))
    return results


def declared(seed: int) -> list[str]:
    plans: list[dict[str, Any]] = []
    with home() as path:
        for data in _unlike(seed):
            source = write(path, data)
            plans.append(dict(_plans(source, path)))
    return [
        f"{name}: the plan depends on the data: {where}"
        for name in plans[0]
        for other in plans[1:]
        if (where := first_difference(plans[0][name], other[name], where="plan"))
    ][:1]


def _plans(source: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Return everything that is decided before the first step, with every optional setting unset."""
    base, public = Config(**DECLARED), {"synthetic": str(path / "public.npz")}
    named = {n: RECIPES[n]() for n in ("linear", "small-cnn", "scatter-linear", "dp-sgd")}
    settings = {
        "default": base,
        "person": replace(base, unit="person", n=60),
        "noise at the end": replace(base, final_noise=0.1, momentum=0.9),
        "probe": replace(base, model="wrn-10-1", probe_share=0.2),
        "views": replace(base, augment=("crop", "flip"), k_base=2, k_self=2, k_diff=1, **public),
        "assisted": replace(base, assist="adadps", **public),
        "full batch": replace(base, full_batch=True),
        "patches": replace(base, model="patches-256", part="centred-head"),
        **{f"recipe {n}": replace(recipe, batch=None, steps=None, **DECLARED) for n, recipe in named.items()},
    }
    for name, result in settings.items():
        prepared = train.prepare(source, result)
        weights = dict(prepared.network.build().state_dict().items())
        stretches = [(p.first, p.end, p.part, p.lr) for p in phases(prepared.network)]
        facts = prepared.config, prepared.event(), prepared.sampler, prepared.read_off, tuple(prepared.data.classes)
        yield f"train, {name}", (*facts, stretches, weights, sorted(train.metrics.measured_steps(prepared)))
    for recipe in ("moments", "neuromix", "class-schedule"):
        asked = release_recipe(recipe)
        given = {k: v for k, v in DECLARED.items() if k in ("n", "classes", "size", "channels", "epsilon")}
        prepared_release = release.prepare(source, replace(asked, **given, delta=1e-6))
        yield f"release, {recipe}", (prepared_release.config, prepared_release.event(), prepared_release.read_off)
        of_persons = release.prepare(source, replace(asked, **given | {"n": 60}, delta=1e-6, unit="person"))
        yield f"release, {recipe}, persons", (of_persons.config, of_persons.event(), of_persons.read_off)
    for head in HEADS:
        prepared_head = head_run.prepare(features(source, columns=COLUMNS), _of_head(head, path))
        yield (
            f"head, {head}",
            (prepared_head.config, prepared_head.setup, prepared_head.event(), prepared_head.read_off),
        )
    tuned = tune.prepare(source, base, {"lr": [1.0, 4.0]}, score=public["synthetic"], trials=3.0)
    yield "tune", (tuned.event, tuned.stopping, [result.config for result in tuned.candidates])


def _of_head(head: str, path: Path) -> Config:
    public = features(str(path / "public.npz"), columns=COLUMNS) if head == "newton" else None
    return Config(epsilon=3.0, n=DECLARED["n"], classes=CLASSES, head=head, synthetic=public)


# Cached features


def cached_features(seed: int) -> list[str]:
    """A data set and the same images in another order, trained on and released one after the other in one home."""
    rng = np.random.default_rng(seed)
    labels = np.arange(16) % CLASSES
    first = Records(rng.integers(0, 256, (16, SIDE, SIDE, 1), dtype=np.uint8), labels)
    results = [first, Records(first.x[::-1].copy(), labels[::-1].copy())]
    with home() as path:
        for turn, data in enumerate(results):
            source = write(path, data, held_out=turn)
            for name, changes in {
                "head of a random network": {"model": "small-cnn", "part": "head"},
                "head of another one": {"model": "small-cnn", "part": "head", "seed": 1},
                "patches": {"model": "patches-256"},
                "scattering": {"model": "scatter-linear"},
            }.items():
                prepared = train.prepare(source, replace(SETTINGS, n=16, **changes))
                model = prepared.network.build()
                parts = prepared.network.split(model)
                if parts is None:
                    return [f"{name}: has no features to cache"]
                for split in (prepared.data.train, prepared.data.test, prepared.data.val):
                    if split is not None and not _served(
                        prepared.network.load_or_compute_inputs(split, model), parts, split
                    ):
                        return [f"{name}: the features are not those of these images"]
            for encoder in ("pixels", "linear", "scattering", "patches-256"):
                settings = replace(
                    release_recipe("moments"), n=16, classes=CLASSES, epsilon=3.0, encoder=encoder, rank=0
                )
                prepared_release = release.prepare(source, settings)
                encoded = release.Encoded(prepared_release)
                for split in (prepared_release.data.train, prepared_release.data.test):
                    rows = encoders.extract(encoded.encoder, split)  # type: ignore[arg-type]
                    if not np.array_equal(rows, _computed(encoded.encoder, split)):  # type: ignore[arg-type]
                        return [f"release, {encoder}: the features are not those of these images"]
                alone = encoded.preparation.apply(_computed(encoded.encoder, prepared_release.data.train))[0]
                if not np.array_equal(encoded.rows.x, alone):
                    return [f"release, {encoder}: rows are not made of these images, each alone"]
    return []


def _computed(parts: Featured, split: Split) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(parts.features(to_tensor(np.asarray(split.images))).float().numpy())


def _served(inputs: Inputs, parts: Featured, split: Split) -> bool:
    return len(inputs) == len(split) and np.array_equal(inputs(slice(None)).numpy(), _computed(parts, split))


# The distribution of tuning

CANDIDATES, TUNINGS = 3, 1500


def law_of_tuning(seed: int) -> list[str]:
    """`tune` itself, with trainings that take no time: the draws are secret, so these are new in each call."""
    scores = np.random.default_rng(seed)
    for trials, eta in ((5.0, 1.0), (4.0, 0.0)):
        with home() as path:
            data = MECHANISMS["train"].records(12, seed)
            grid = {"lr": [0.1 * (1 + i) for i in range(CANDIDATES)]}
            source = write(path, data)
            settings = replace(SETTINGS, **LINEAR)
            prepared = tune.prepare(source, settings, grid, score=str(path / "public.npz"), trials=trials, eta=eta)
            law = Stopping(prepared.event.eta, prepared.event.gamma)
            runs_of, wrong = _tunings(prepared, path, scores)
        if result := _wrong_law(runs_of, law):
            return [f"{trials:g} trials, eta {eta:g}: {result}"]
        if wrong:
            return [f"{trials:g} trials, eta {eta:g}: {wrong}"]
    return []


def _tunings(
    prepared: tune.PreparedTuning, path: Path, scores: np.random.Generator
) -> tuple[list[list[int]], str | None]:
    """Return the candidates of many tunings in turn, and the problems with the choice of the best."""
    tried: list[tuple[int, float]] = []
    every: list[list[int]] = []
    firsts, expected, variance = 0, 0.0, 0.0
    public = True

    def begin(candidate: train.Prepared, place: Path, **_: Any) -> SimpleNamespace:
        tried.append((prepared.candidates.index(candidate), float(scores.integers(4))))
        return SimpleNamespace(folder=place, number=len(tried))

    def score(_model: None, inputs: Inputs, _task: Task, **_: Any) -> float:
        nonlocal public
        public = public and inputs.labels is prepared.score.labels
        return tried[-1][1]

    run = SimpleNamespace(folder=path / "run", operator=path / "run" / "operator")
    run.operator.mkdir(parents=True)
    with ExitStack() as stack:
        for owner, name, value in (
            (tune.train, "run", lambda candidate, place, **_: SimpleNamespace(run=begin(candidate, place))),
            (tune, "load_model", lambda _: SimpleNamespace(model=None)),
            (tune, "accuracy", score),
            (tune.run_folder, "append_json", lambda *_: None),
        ):
            stack.enter_context(patched(owner, name, value))
        for _ in range(TUNINGS):
            tried.clear()
            trial, which, reached = tune._train_trials(run, prepared, None, None, lambda _: None)  # type: ignore[arg-type]
            every.append([candidate for candidate, _ in tried])
            best = [i for i, (_, result) in enumerate(tried, 1) if result == max(result for _, result in tried)]
            if trial.number not in best or tried[trial.number - 1] != (which, reached):  # type: ignore[attr-defined]
                return every, "the released trial does not have the best score"
            firsts += trial.number == best[0]  # type: ignore[attr-defined]
            expected, variance = expected + 1 / len(best), variance + (1 - 1 / len(best)) / len(best)
    if not public:
        return every, "trials are not scored on the public images"
    unlikely = abs(firsts - expected) > stats.norm.isf(FALSE_ALARM / 2) * np.sqrt(variance)
    return every, "ties are not broken at random" if unlikely else None


def _wrong_law(runs_of: list[list[int]], law: Stopping) -> str | None:
    """By chi-square tests: K, each candidate's share, and its independence of the trial's number and of the one before."""
    most = max(2, *(k for k, chance in enumerate(law.probabilities(50), 1) if len(runs_of) * chance >= 8))
    chances = law.probabilities(most - 1)
    counts = Counter(min(len(result), most) for result in runs_of)
    due = len(runs_of) * np.array([*chances, 1 - sum(chances)])
    if stats.chisquare([counts[k] for k in range(1, most + 1)], due).pvalue < FALSE_ALARM:
        return "the number of trials is not drawn from the distribution that is charged"
    every = [which for result in runs_of for which in result]
    if stats.chisquare(np.bincount(every, minlength=CANDIDATES)).pvalue < FALSE_ALARM:
        return "candidates are not drawn uniformly"
    tables = {
        "the trial's number": [(min(i, 4), which) for result in runs_of for i, which in enumerate(result)],
        "the candidate before": [pair for result in runs_of for pair in itertools.pairwise(result)],
        "the number of trials": [(min(len(result), 5) - 1, which) for result in runs_of for which in result],
    }
    for name, pairs in tables.items():
        table = np.zeros((5, CANDIDATES))
        for row, which in pairs:
            table[row, which] += 1
        table = table[table.sum(1) >= 30]
        due = table.sum(1, keepdims=True) / CANDIDATES
        if stats.chi2.sf(((table - due) ** 2 / due).sum(), table.shape[0] * (CANDIDATES - 1)) < FALSE_ALARM:
            return f"the candidate depends on {name}"
    return None


# What names the noise of a run

# Settings that may change without fresh noise: they change nothing of what is computed.
# What they choose is in the name, by the settings that follow.
CHOSEN = ("chosen_by", "minutes")
UPKEEP = ("checkpoint_every", "device", "budget", "study", "examples", "group", "licence", "public_licence", *CHOSEN)
OTHER_VALUES: dict[str, Any] = {
    "head": "lda",
    "test_share": 0.3,
    "window": "9,9",
    "columns": "image=img",
    "precision": "bf16",
    "model": "linear",
    "part": "head",
    "pretrained": "a",
    "prior": "patches",
    "unit": "person",
    "mix": "cutmix",
    "classes": 7,
    "size": (9, 9),
    "clip_style": "automatic",
    "release": "last",
    "augment": ("flip",),
    "synthetic": "b",
    "assist": "dope",
    "final_noise": 0.3,
    "probe_lr": 0.7,
    "probe_share": 0.4,
    "recipe": "linear",
    "n": 900,
    "batch": 31,
    "steps": 17,
    "sigma": 2.7,
    "physical": 5,
    "channels": 3,
    "canaries": 12,
    "ema": 0.5,
    "momentum": 0.3,
    "delta": 1e-7,
}


def branches(_seed: int) -> list[str]:
    """Everything that shapes a result changes the noise and the charge."""
    base = Config(n=1000, batch=100, steps=20, sigma=2.0)
    names = {base.hash(): "no change"}
    for field in fields(Config):
        if field.name not in UPKEEP:
            value = getattr(base, field.name)
            if field.name in OTHER_VALUES:
                other = OTHER_VALUES[field.name]
            elif choices := settings_of(Config)[field.name].choices:
                other = next(choice for choice in choices if choice != value)
            else:
                other = not value if isinstance(value, bool) else value + 1
            more = {"batch": None} if field.name == "full_batch" else {}
            result = replace(base, **{field.name: other, **more}).hash()
            if result in names:
                return [f"{field.name}: another value has the name of {names[result]}"]
            names[result] = field.name
    zero = torch.zeros(3)
    first = State(zero, zero, zero, base, "k", True, step=3, branch="b", digest="d")
    asked = {"data": "data", "software": "dpvision", "key": "key"}
    changed = {
        "branch": (replace(first, branch="c"), base, asked),
        "step": (replace(first, step=4), base, asked),
        "state": (replace(first, digest="e"), base, asked),
        "settings": (first, replace(base, lr=9.0), asked),
        "data": (first, base, {**asked, "data": "other"}),
        "key": (first, base, {**asked, "key": "other"}),
        "software": (first, base, {**asked, "software": "another version, or another device"}),
        "first weights": (replace(first, branch="", weights=zero + 1), base, asked),
        "none": (replace(first, branch=""), base, asked),
    }
    # A run that was killed before its first checkpoint is charged, and no step of it is saved.
    unsaved = replace(first, step=0)
    changed |= {
        "step 0": (unsaved, base, asked),
        "step 0, settings": (unsaved, replace(base, lr=9.0), asked),
        "step 0, other settings": (unsaved, replace(base, clip=9.0), asked),
    }
    found_names = [branch_name(state, config, **more) for state, config, more in changed.values()]
    found_names.append(branch_name(first, base, **asked))
    if len(set(found_names)) < len(found_names):
        return ["two parts of a training have the same name"]
    return _unnamed_places()


ROWS, ROW = 20_000, 64  # of float32: more than any function digests at a time
NAMES: dict[str, Callable[[np.ndarray], object]] = {
    "features": lambda x: Inputs(
        Split(np.zeros((len(x), 1, 1, 1), np.uint8), np.zeros(len(x)), None), x
    ).digest_features(),
    "images": lambda x: identify(Split(x.view(np.uint8).reshape(-1, 16, 16, 1), np.zeros(len(x)), None))[0],
    "images in order": lambda x: identify(Split(x.view(np.uint8).reshape(-1, 16, 16, 1), np.zeros(len(x)), None))[1],
    "labels": lambda x: identify(Split(np.zeros((len(x), 1, 1, 1), np.uint8), x.sum(1), None))[1],
    "rows of a release or a head": lambda x: secret_name(Key.for_tests("x"), "name", "", [x]),
    "a frozen part": lambda x: cache.digest(_holding(torch.from_numpy(x))),
    "first weights": lambda x: branch_name(_beginning(torch.from_numpy(x)), Config(), data="", software="", key=""),
}


def _unnamed_places() -> list[str]:
    """Every number of what shapes a result is in a name, with its place, wherever it is and however many there are."""
    x = np.zeros((ROWS, ROW), np.float32)
    rng = np.random.default_rng(0)
    columns = [0, *rng.choice(np.arange(1, ROW - 1), 6, replace=False).tolist(), ROW - 1]  # a set of images has no rows
    places = (ROW * np.array([0, *np.sort(rng.choice(ROWS, 6)), ROWS - 1]) + columns).tolist()
    for what, name in NAMES.items():
        names = [name(x)]
        for place in places:
            x.reshape(-1)[place] = 1
            names.append(name(x))
            x.reshape(-1)[place] = 0
        if len(set(names)) < len(names) or name(x) != names[0]:
            return [f"{what}: a number can change, or change places, without another name"]
    return []


def _holding(weights: torch.Tensor) -> Featured:
    prefix = torch.nn.Module()
    prefix.register_buffer("weights", weights)
    return Featured(prefix, torch.nn.Identity())


def _beginning(weights: torch.Tensor) -> State:
    return State(weights, weights, weights, Config(), "k", True)


# Which account is charged

CHARGED = (
    *("train", "train, persons", "release, moments", "tune", "head run, descent"),
    *("estimator, classifier", "estimator, release"),
    *("release, persons, moments", "head run, persons, lda", "estimator, persons, release"),
)


def accounts(seed: int) -> list[str]:
    """The account is opened with the budget and the unit that were asked for, and charged in that unit, as private."""
    opened, spent = Ledger.open, Ledger.spend
    for name in CHARGED:
        seen: list[object] = []

        def opening(self: Ledger, budget: Budget, *, unit: str = "image", seen: list[object] = seen) -> Any:
            seen.append((budget, unit))
            return opened(self, budget, unit=unit)

        def spending(self: Ledger, event: Any, seen: list[object] = seen, **rest: Any) -> Any:
            seen.append((rest.get("unit", "image"), rest.get("private", True)))
            return spent(self, event, **rest)

        unit = "person" if "persons" in name else "image"
        with patched(Ledger, "open", opening), patched(Ledger, "spend", spending):
            RUNS[name].run(RUNS[name].records(8, seed))
        if set(seen) != {(Budget(1e4, 1e-5), unit), (unit, True)}:
            return [f"{name}: asked for a budget of {(1e4, 1e-5)} for each {unit}, and there was {seen}"]
    return []


# What is printed

OF_THE_CLOCK = re.compile(r"about [\d.]+ \w+|[\d.]+ s\b|\d{4}-\d\d-\d\d[T ]?[\d:.+]*|[\d.,]+ images/s")


def said(seed: int) -> list[str]:
    """The command line on neighbours: its output, the card, the report and the public part of the ledger."""
    released = ("release", "--encoder", "pixels", "--rank", "0", "--rows", "16")
    for mechanism, words in (
        (RUNS["train"], ("train", "--steps", "4", "--lr", "0.1", "--clip", "6")),
        (RUNS["train"], released),
        (RUNS["train, persons"], (*released, "--unit", "person", "--objective", "balanced")),
    ):
        fewer = mechanism.records(11, seed)
        more = one_more(fewer, "huge", classes=CLASSES, seed=seed)
        before = record(lambda data, words=words: _said(words, data), fewer)  # type: ignore[misc]
        after = record(lambda data, words=words: _said(words, data), more, like=before)  # type: ignore[misc]
        for result in (before, after):
            if result.error is not None:
                raise result.error
        if where := first_difference(before.outcome, after.outcome):
            return [f"{words[0]}: neighbours differ in what is printed: {where}"]
    return []


def _said(words: tuple[str, ...], data: Records) -> dict[str, object]:
    from dpvision.cli.app import app

    out, err = StringIO(), StringIO()
    with home() as path, redirect_stdout(out), redirect_stderr(err):
        verb, *more = words
        facts = ("--n", str(N), "--classes", str(CLASSES), "--size", str(SIDE), "--channels", "1", "--epsilon", "3")
        command = [verb, write(path, data), *facts, *more, "--out", str(path / "run")]
        tokens = iter(range(10**6))
        with ExitStack() as stack:
            stack.enter_context(patched(secrets, "token_hex", lambda n=8: f"{next(tokens):0{2 * n}x}"))
            app(command, exit_on_error=False, print_error=False, result_action="return_value")
        content: dict[str, object] = {
            p.name: _plain(p.read_text("utf-8"), path) for p in sorted((path / "run").iterdir()) if p.suffix in TEXTS
        }
        return {**content, "standard output": _plain(out.getvalue(), path), "errors": _plain(err.getvalue(), path)}


TEXTS = (".json", ".jsonl", ".md", ".html", ".toml", ".csv")


def _plain(text: str, path: Path) -> str:
    """Without places and times. Names are drawn, the same ones each time here: none may be a digest of the data."""
    return OF_THE_CLOCK.sub("<time>", text.replace(str(path), "<folder>"))
