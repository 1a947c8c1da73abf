"""Private trainings on real data, kept one by one in trainings.jsonl: a long table can be measured in several goes."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.results import Figure, chosen_device, machine
from benchmarks.shared_data import at_hand, unpacked, unpacked_in_two
from dpvision.core import accountant
from dpvision.models import digest_file
from dpvision.models.patches import CONSTANTS
from dpvision.private.training import train
from dpvision.public import dictionary
from dpvision.released.evaluation import last_accuracy, read_metrics
from dpvision.settings.recipes import recipe
from dpvision.settings.setting import to_dict
from dpvision.settings.training import Config

KEPT = Path(__file__).with_name("trainings.jsonl")


@dataclass(frozen=True)
class Case:
    """One recipe on one data set at one epsilon, trained `seeds` times; `least` is what the mean must reach."""

    data: str
    recipe: str
    epsilon: float = 3.0
    seeds: int = 3
    least: float | None = None
    settings: tuple[tuple[str, Any], ...] = ()  # of the config, over the recipe's
    public: int = 0  # this many training images, the first ones, are not private, and are --synthetic where k_diff is
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.data}, {self.name or self.recipe}, epsilon {self.epsilon:g}"

    def config(self, seed: int) -> Config:
        """The released weights are the averaged ones, if the case does not say else; the budget is no limit here."""
        chosen = {"epsilon": self.epsilon, "budget": 1e4, "seed": seed, "release": "ema"}
        chosen |= {"device": chosen_device(), **dict(self.settings)}
        return replace(recipe(self.recipe, epsilon=self.epsilon), **chosen)

    def prepared(self, seed: int, folder: Path) -> train.Prepared:
        config = self.config(seed)
        if not self.public:
            return train.prepare(unpacked(self.data, folder), config)
        private, public = unpacked_in_two(self.data, folder, public=self.public)
        return train.prepare(private, replace(config, synthetic=public) if config.k_diff else config)


@dataclass(frozen=True)
class Done:
    """One training. `settings` names all that is not a default: changed settings are measured again."""

    title: str
    settings: str
    seed: int
    accuracy: float  # of the released weights
    last: float  # of the last weights
    epsilon: float
    seconds: float
    day: str
    machine: str


def trained(cases: Iterable[Case], *, keep: bool, make: bool = True) -> dict[Case, list[Done]]:
    """Each case's trainings: those that are kept and, with `make`, the others now."""
    measured: dict[Case, list[Done]] = {}
    scratch = os.environ.get("DPVISION_SCRATCH")
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        folder = Path(place)
        os.environ["DPVISION_HOME"] = str(Path(scratch or place) / "home")  # never the operator's own ledgers
        for number, case in enumerate(cases):
            old = _kept(case) if keep else {}
            for seed in range(case.seeds):
                if seed not in old and make and at_hand():
                    old[seed] = _train(case, seed, folder, folder / f"{number}-{seed}")
                    if keep:
                        with KEPT.open("a") as file:
                            file.write(json.dumps(asdict(old[seed])) + "\n")
            if old:
                measured[case] = [old[seed] for seed in sorted(old)]
            else:
                print(f"left out: {case.title}: not measured yet, or the shared data is not at hand", file=sys.stderr)
    return measured


def kept() -> list[Done]:
    """All trainings and releases that are kept."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return [Done(**json.loads(line)) for line in lines]


def _kept(case: Case) -> dict[int, Done]:
    return {
        d.seed: d
        for d in kept()
        if d.title == case.title and d.seed < case.seeds and d.settings == named(case.config(d.seed))
    }


def _train(case: Case, seed: int, data: Path, folder: Path) -> Done:
    began, config = time.monotonic(), case.config(seed)
    prepared = case.prepared(seed, data)
    run = train.begin(prepared, folder)
    outcome = train.proceed(run, prepared)
    both = last_accuracy(read_metrics(run), release=config.release)
    assert both is not None
    print(
        f"{case.title}, seed {seed}: {both['test']['ema']:.4f}, last {both['test']['last']:.4f}, "
        f"{outcome.seconds:.0f} s of {time.monotonic() - began:.0f}",
        file=sys.stderr,
        flush=True,
    )
    return Done(
        title=case.title,
        settings=named(config),
        seed=seed,
        accuracy=both["released_test_accuracy"],
        last=both["test"]["last"],
        epsilon=accountant.epsilon(outcome.event, config.delta),
        seconds=outcome.seconds,
        day=str(date.today()),
        machine=machine(),
    )


def named(config: Config) -> str:
    """Names the settings that are not the usual ones; a setting that comes later does not rename them."""
    usual = to_dict(Config())
    chosen = {k: v for k, v in to_dict(config.without_folders()).items() if v != usual.get(k)}
    if config.device == "cpu":  # as it was before there was a choice
        chosen.pop("device")
    if config.pretrained:
        chosen["pretrained"] = digest_file(Path(config.pretrained))
    if config.prior:
        chosen["prior"] = f"{dictionary.FORMAT} {CONSTANTS}"
    return hashlib.blake2b(json.dumps(chosen, sort_keys=True).encode(), digest_size=16).hexdigest()


def figures(measured: dict[Case, list[Done]]) -> list[Figure]:
    """Mean and spread of each case's released weights, its epsilon, its minutes."""
    every = []
    for case, done in measured.items():
        every += [
            Figure(f"{case.title}: mean of {len(done)}", mean(done), case.least),
            Figure(f"{case.title}: epsilon", max(d.epsilon for d in done), high=case.epsilon),
        ]
    return every


def mean(done: list[Done]) -> float:
    return statistics.mean(d.accuracy for d in done)


def table(measured: dict[Case, list[Done]]) -> str:
    head = "| data, recipe, epsilon | trainings | mean | spread | worst | last weights | epsilon | minutes | day |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|"]
    for case, done in measured.items():
        each = [d.accuracy for d in done]
        spread = f"{statistics.stdev(each):.2%}" if len(each) > 1 else ""
        last, minutes = statistics.mean(d.last for d in done), statistics.median(d.seconds for d in done) / 60
        rows.append(
            f"| {case.title} | {len(done)} | {mean(done):.2%} | {spread} | {min(each):.2%} | {last:.2%} | "
            f"{max(d.epsilon for d in done):.4f} | {minutes:.1f} | {max(d.day for d in done)} |"
        )
    return "\n".join(rows)


def difference(a: list[Done], b: list[Done]) -> tuple[float, float]:
    """Mean of a minus mean of b, and half the width of Welch's 95% interval."""
    from scipy import stats

    one, other = [d.accuracy for d in a], [d.accuracy for d in b]
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    return mean(a) - mean(b), (interval.high - interval.low) / 2
