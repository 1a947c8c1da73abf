"""The privacy suite: checks of the real code, each returning its alarms in words; none on code that is sound.

replay ...             neighbours with the same random draws, of every mechanism (tests/system/replay/mechanisms.py)
ranks                  the same for two ranks, whose messages stay in this process
links                  no two messages of any two ranks are sealed under the same nonce
noise, keys            law, grid and streams of the noise; fresh keys
sampler of ...         who takes part, at the rate that is charged
blocks of releases     members and weights of rows in different blocks are drawn independently
units apart ...        no unit changes what another contributes; any data, held out, fetched, declared, cached features, law of tuning,
                       branches, accounts, said: what whole runs look at and depend on (whole.py)
accountant             never below what is certain; no sigma that exceeds the budget
ledger, resume         what is charged stays charged, is on the disk first, and is counted by resumed runs
several labels         no row moves a sum over labels or grades by more than its claim
unsafe layers          models that mix the images of a batch are refused
static, auditor        no other random numbers near the noise; scores that say nothing give epsilon 0
... on a device        the same on the stand-in accelerator (devices.py), where it can be built
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from dpvision.audit import bounds
from dpvision.audit.recording import patched
from dpvision.core import accountant, adaptive, noise
from dpvision.core.events import Adaptive, Budget, Composed, Gaussian, PoissonGaussian, parts
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.core.sampling import Poisson, PoissonSampler, Scheduled
from dpvision.errors import BudgetSpent, DataError, UnsafeLayer
from dpvision.private.accounts.accounts import read_accounts
from dpvision.private.engine import ClippedSum, refuse_unsafe
from dpvision.private.statistics import fit_head
from dpvision.private.statistics.mixtures import BLOCK, Mixtures, RandomWeights
from dpvision.private.training import train
from dpvision.private.training.links import Link
from dpvision.private.training.network import each_loss
from dpvision.private.training.private_sum import PrivateSum
from dpvision.private.training.ranks import Team
from dpvision.settings import calibrate, quick
from dpvision.settings.release import hierarchical
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from tests.core import accountant_checks, noise_checks, sampler_checks
from tests.private.engine.oracle import verify
from tests.private.statistics import test_sensitivity
from tests.system.planted import whole
from tests.system.replay import mechanisms
from tests.system.replay.mechanisms import MECHANISMS, Mechanism, charged, folder
from tests.system.replay.neighbours import Records
from tests.system.replay.pairs import Pair, pairs, replay_pairs

try:
    importlib.import_module("tests.standin")  # before the first backward pass of the process
except ModuleNotFoundError:
    ON_DEVICES: dict[str, Callable[[int], list[str]]] = {}
else:
    ON_DEVICES = importlib.import_module("tests.system.planted.devices").CHECKS
Check = Callable[[int], list[str]]  # of a seed

# Neighbours that show most, and the number of records that they are added to.
TELLING = ("huge", "nan", "last of its class", "opposite", "one number")
SIZES = (7, 0, 3)
DEVIATION = 2.0**33  # of the noise, in grid steps: so fine that draws hardly repeat


def _replay(names: tuple[str, ...], seed: int) -> list[str]:
    """A few pairs of each mechanism, in both directions; up to the first that is told apart."""
    for name in names:
        mechanism = MECHANISMS[name]
        for pair in _telling(mechanism, seed):
            *_, result = replay_pairs(mechanism, [pair])
            if result:
                return [f"{name}: {result[0]}"]
    return []


def _telling(mechanism: Mechanism, seed: int) -> Iterator[Pair]:
    """Each size and kind once, added or removed in turn."""
    few = replace(mechanism, kinds=tuple(kind for kind in TELLING if kind in mechanism.kinds))
    sizes = [size for size in SIZES if size in mechanism.sizes] or mechanism.sizes
    every = list(pairs(few, sizes=sizes, seed=seed))
    return islice((every[i] for place in (0, 1) for i in range(place, len(every), 2)), seed % 2, None, 3)


# Two ranks


@dataclass(frozen=True)
class Beside(Team):
    """A rank whose messages are left in a list for rank 0, which takes its turn last."""

    letters: Any = None

    def total(self, share: Tensor) -> Tensor | None:
        if not self.first:
            self.letters.append(share)
            return None
        for other in self.letters:
            share = share + other
        self.letters.clear()
        return share

    def from_first(self, value: Tensor) -> Tensor:
        return value


def _two_ranks(records: Records) -> Tensor:
    """Steps of two ranks; what rank 0 gets, which is what it hands out."""
    sampler, letters = PoissonSampler(6, 8, 3), list[Tensor]()
    event, noisy = sampler.event(2.0), []
    charge = charged(event)
    model = mechanisms.linear()
    ranks = [
        PrivateSum(
            Gate(charge, mechanisms.KEY, sampler, name="b"),
            ClippedSum(model, each_loss, clip=0.5, one_view=True),
            team=Beside(rank, 2, letters),
        )
        for rank in (1, 0)
    ]
    images, labels = torch.from_numpy(records.x).permute(0, 3, 1, 2), torch.from_numpy(records.labels)

    def fetch(drawn: Any, _seed: int) -> tuple[Tensor, Tensor, list[int]]:
        return images[drawn], labels[drawn], [1] * len(drawn)

    for step in range(3):
        noisy.append([one.step(step, len(records), fetch) for one in ranks][-1])
    return torch.stack(noisy)


def _ranks(seed: int) -> list[str]:
    mechanism = Mechanism(_two_ranks, **mechanisms.IMAGES, sizes=(7, 0))
    return replay_pairs(mechanism, islice(pairs(mechanism, seed=seed), 0, None, 2))[2][:1]


def _links(_seed: int) -> list[str]:
    """Four ranks under one key, each of which sends the same values to all others, three times."""
    key, sent = Key.for_tests("links"), list[bytes]()
    with patched(dist, "send", lambda message, _receiver: sent.append(message.numpy().tobytes())):
        for sender, receiver in itertools.permutations(range(4), 2):
            link = Link(key, sender)
            for _ in range(3):
                link.send(torch.zeros(8), receiver)
    return [] if len(set(sent)) == len(sent) == 36 else ["two messages are sealed under the same nonce"]


# Noise and draws


def _noise(seed: int) -> list[str]:
    key = Key.for_tests(f"noise {seed}")

    def released(total: np.ndarray, step: int, *, branch: str = "") -> np.ndarray:
        stream = key.stream("noise", step=step, branch=branch)
        return noise.add_noise(total, stream, sensitivity=0.5, sigma=2.0)

    scale, grid = noise.noise_scale(64, sensitivity=0.5, sigma=2.0)
    rows = np.stack([released(np.zeros(64), step) for step in range(400)])
    result = noise_checks.of_releases(rows, scale=scale)
    large = released(np.zeros(3 * noise.BLOCK), 9_999)  # made in blocks, none of which may be like another
    if len(np.unique(large)) < 0.9 * large.size:
        result.append("a large release has the same noise in several blocks")
    result += noise_checks.of_draws(
        noise.rounded_normal(key.stream("noise", step=10_000), 300_000, DEVIATION), scale=DEVIATION
    )
    result += noise_checks.of_grid(released(np.random.default_rng(seed).normal(size=64), 3), grid=grid)
    if not 1.0 <= scale / (0.5 * 2.0) <= 1.01:
        result.append("the scale is not sigma times the sensitivity, and a little more")
    if np.array_equal(released(np.zeros(9), 0, branch="a"), released(np.zeros(9), 0, branch="b")):
        result.append("two branches have the same noise")
    return result


def _sampler_of_training(seed: int) -> list[str]:
    """Through the steps themselves: whoever is fetched took part. With two ranks, all of both.

    The data has other numbers of units than the public one: the rate must not know.
    """
    results = []
    for batch, n, declared, steps, ranks in ((20, 50, 50, 200, 1), (1, 4, 4, 400, 1), (20, 40, 50, 200, 2)):
        sampler = PoissonSampler(batch, declared, steps)
        charge = charged(sampler.event(50.0))
        model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
        engine = ClippedSum(model, each_loss, clip=1.0, one_view=True)
        key, letters = Key.for_tests(f"sampler {seed}"), list[Tensor]()
        teams = [Beside(rank, ranks, letters) for rank in reversed(range(ranks))]
        private = [PrivateSum(Gate(charge, key, sampler, name="b"), engine, team=team) for team in teams]
        took_part = np.zeros((steps, n))
        for step in range(steps):

            def fetch(drawn: Any, _seed: int, row: np.ndarray = took_part[step]) -> tuple[Tensor, Tensor, list[int]]:
                row[drawn] += 1
                return torch.zeros(len(drawn), 1, 1, 1), torch.zeros(len(drawn), dtype=torch.int64), [1] * len(drawn)

            for one in private:
                one.step(step, n, fetch)
        assert isinstance(charge.event, PoissonGaussian)
        if took_part.max() > 1:
            results.append("a unit takes part twice in one step")
        results += sampler_checks.suspicious(took_part, charge.event.rate)
    return results


def _sampler_of_releases(seed: int) -> list[str]:
    n, rows, key = 60, 500, Key.for_tests(f"releases {seed}")
    labels, results = np.arange(n) % 3, []
    for declared in (n, 80):  # a public number, which the rate follows whatever the data has
        poisson = Poisson(12.0, declared, rows)
        results += sampler_checks.suspicious(_in_rows(poisson, labels, key), poisson.event(2.0).rate, groups=labels)
    weights, few = RandomWeights(0.3, 0.5), (3, 4, 9)
    shares = [weights.shares(key.stream("weights", step=0), count, degree=12.0) for count in few]
    if any(not np.array_equal(one, shares[-1][: len(one)]) or one.max() > 1 or one.min() < 0 for one in shares):
        results.append("a record's weight depends on how many are drawn, or is not from 0 to 1")
    scheduled = hierarchical(rows, degree=10.0, n=n, classes=3, drawn=1.2, seed=seed)
    event, drawn = scheduled.event(2.0), _in_rows(scheduled, labels, key)
    for k in range(3):
        about = scheduled.table[:, k]
        if drawn[~about][:, labels == k].any() or about.sum() > event.rows[k]:
            results.append("a record is in a row that its class is not charged for")
        results += sampler_checks.suspicious(drawn[about][:, labels == k], event.rates[k])
    return results


def _blocks_of_releases(seed: int) -> list[str]:
    """As one-hot records under little noise show them: who is in each row, and where all are, with which weight."""
    results, width, key = [], 12, Key.for_tests(f"blocks {seed}")
    rows = Rows.of(np.eye(width), np.arange(width) % 3, Preparation(), classes=3)
    for what, degree, weights in (("members", width / 2, None), ("weights", width, RandomWeights(1.0, 0.5))):
        mixtures = Mixtures(rows, Poisson(degree, width, 2 * BLOCK), degree=degree, weights=weights)
        event = mixtures.event(0.05)
        blocks = mixtures.blocks(charged(event, id=mixtures.name(key, event)), key)
        one, other = (features.ravel() for features, _ in blocks)
        if abs(np.corrcoef(one, other)[0, 1]) > 6 / np.sqrt(one.size):
            results.append(f"rows of two blocks do not have independent {what}")
    return results


def _in_rows(sampler: Poisson | Scheduled, labels: np.ndarray, key: Key) -> np.ndarray:
    """(rows, records): who is in which, a hundred rows at a time."""
    result = np.zeros((sampler.rows, len(labels)))
    for number in range(sampler.rows // 100):
        part = range(100 * number, 100 * (number + 1))
        chosen = sampler.choose(labels, part, key.stream("coins", step=number))
        result[100 * number + np.repeat(np.arange(100), np.diff(chosen.starts)), chosen.members] += 1
    return result


# The account


def _accountant(_seed: int) -> list[str]:
    results = [f"dp-accounting states {x}" for x in accountant_checks.too_low(accountant.epsilon)]
    results += [f"the quick accountant states {x}" for x in accountant_checks.too_low(quick.epsilon)]
    for budget, rate, steps in ((Budget(1.0, 1e-5), 1.0, 10), (Budget(3.0, 1e-5), 0.1, 40)):
        sigma = calibrate.sigma(budget, rate=rate, steps=steps)
        if accountant.epsilon(PoissonGaussian(rate, sigma, steps), budget.delta) > budget.epsilon:
            results.append(f"sigma {sigma} exceeds {budget}")
    return results


def _ledger(_seed: int) -> list[str]:
    results, event, synced = [], Gaussian(3.0), []
    with folder() as path:
        ledger = Ledger(path, "ab" * 16)
        ledger.open(Budget(3.0, 1e-5))
        real = os.fsync
        os.fsync = lambda descriptor: (synced.append(os.readlink(f"/proc/self/fd/{descriptor}")), real(descriptor))[1]
        try:
            ledger.spend(event, id="a", run="one")
            ledger.spend(event, id="b", run="two")
        finally:
            os.fsync = real
        if synced.count(str(ledger.path)) < 2:
            results.append("a charge is not on the disk although it is reported to be")
        account = Ledger(path, "ab" * 16).account()
        spent = account.spent()
        if not spent == account.spent() == Ledger(path, "ab" * 16).account().spent():
            results.append("asking again gives another answer")
        if not spent >= quick.lower_bound(Composed((event, event)), 1e-5) or len(account.charges) != 2:
            results.append("less is counted than was charged")
        try:
            for number in range(8):
                ledger.spend(Gaussian(3.0), id=f"more {number}", run="three")
            results.append("more is charged than the budget has")
        except BudgetSpent:
            pass
    return results


def _resume(_seed: int) -> list[str]:
    """A run that is stopped and resumed with another batch or rate: all of its steps are in what it reports.

    Before, its state replaces one that could not be signed: that run must not continue with the same noise.
    It is stopped after two steps, and before the first one, when it is charged and no step of it is saved.
    """
    records = Mechanism(_two_ranks, (8, 8, 1), np.uint8, every_class=True).records(12, 0)
    for done in (2, 0):
        with folder() as path:
            os.environ["DPVISION_HOME"] = str(path / "home")
            np.savez(path / "data.npz", train_images=records.x, train_labels=records.labels)
            config = Config(model="linear", epsilon=3.0, n=12, batch=6, steps=4, budget=1e4, lr=0.1)
            prepared = train.prepare(str(path / "data.npz"), config)
            run = train.begin(prepared, path / "run")
            asked = iter([False] * done + [True])
            train.proceed(run, prepared, stop=lambda asked=asked: next(asked))  # type: ignore[misc]
            own = run.state.read_bytes()
            header = {k: v for k, v in safetensors.read(run.state).header.items() if k not in ("digest", "signature")}
            run.state.write_bytes(safetensors.dump(load_file(run.state), header))
            with suppress(DataError):
                train.proceed(run, train.reopen(run))
                return ["an unsigned state continues with the same noise"]
            run.state.write_bytes(own)
            outcome = train.proceed(run, train.reopen(run, {"batch": 3} if done else {"lr": 0.05}))
            charged = len(read_accounts(run.facts()).first.account().charges)
        steps = [event.steps for event in parts(outcome.event) if isinstance(event, PoissonGaussian)]
        if steps != [4, 4 - done] or charged != 2:
            return [f"4 steps were charged, then {4 - done}, and it reports {steps} and {charged} charges"]
    return []


def _chosen_later(_seed: int) -> list[str]:
    """A second run that was chosen after the first: dominated at every epsilon, with its leak reserved in delta."""
    results, first = [], Gaussian(4.0)
    epsilons = np.linspace(0.0, 20.0, 401)
    for event in (PoissonGaussian(0.05, 3.0, 300), PoissonGaussian(0.1, 1.0, 1)):
        total = adaptive.compose((first, event), 1e-5)
        if not isinstance(total, Adaptive) or parts(total) != (first, event):
            results.append("a run that was chosen later counts as planned")
            continue
        later = total.later[0]
        most = later.leak + (1 - later.leak) * np.array([adaptive.gaussian_delta(1 / later.sigma, e) for e in epsilons])
        if (accountant.profile(event, epsilons.tolist()) > most * (1 + 1e-9) + 1e-15).any():
            results.append("a later run reveals more than the Gaussian that it is counted as")
        if not later.leak <= total.reserve == adaptive.reserve(1e-5) <= accountant.delta(total, 100.0):
            results.append("the leak is not in delta, or what is reserved for it depends on the runs")
    return results


def _pairs_of_noise(_seed: int) -> list[str]:
    """Numbers are the correctly rounded ones, also where the words that make them are extreme."""
    words = Key.for_tests("pairs").stream("words", step=0).words(4 * 3000).reshape(4, 3000).copy()
    words[0, :1000] >>= np.uint64(44)  # far out
    for deviation in (2.0**22.5, 2.0**40):
        drawn = noise.rounded_normal(SimpleNamespace(words=lambda _: words.reshape(-1).copy()), 6000, deviation)
        for place in range(0, 6000, 3):
            k = [int(word) for word in words[:, place % 3000]]
            u, v = k[0] << 64 | k[1], k[2] << 64 | k[3]
            if drawn[place] != noise.round_exactly(u, v, deviation, sine=place >= 3000):
                return [f"number {place} at deviation {deviation:g} is not the rounded one"]
    return []


def _persons_counted(seed: int) -> list[str]:
    """The same persons with other numbers of images: where n is not declared, it is the same."""
    counts = []
    for images in (1, 3):
        persons = np.repeat(np.arange(9), images)
        x = np.random.default_rng(seed).normal(size=(len(persons), 4))
        with folder() as path:
            given = {"classes": 3, "ledger": Ledger(path, "ab" * 16), "persons": persons, "test_key": "k"}
            counts.append(fit_head(x, persons % 3, Budget(3.0, 1e-5), **given, method="lda").n)
    return [] if counts == [9, 9] else ["n depends on how many images a person has"]


# Models, source, auditor


class ByTheLargest(nn.Module):
    """Couples the images of a batch, and no list of classes knows it."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.nan_to_num().abs().max()


def _unsafe_layers(_seed: int) -> list[str]:
    loss = partial(F.cross_entropy, reduction="none")
    coupled = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten(), nn.Linear(32, 3)
    )
    scaled = nn.Sequential(nn.Flatten(), ByTheLargest(), nn.Linear(36, 3))
    attempts: dict[str, Callable[[], object]] = {
        "batch normalisation": lambda: refuse_unsafe(coupled),
        "its clipped sum": lambda: ClippedSum(coupled, loss, clip=1.0),
        "a layer that scales by the batch": lambda: verify(scaled, loss, (1, 6, 6), 3),
    }
    results = []
    for name, attempt in attempts.items():
        try:
            attempt()
            results.append(f"{name} is let through")
        except UnsafeLayer:
            pass
    return results


NEAR_THE_NOISE = (
    "dpvision.core.noise",
    "dpvision.core.sampling",
    "dpvision.core.keys",
    "dpvision.core.gate",
    "dpvision.private.training.private_sum",
    "dpvision.private.statistics.mixtures",
    "dpvision.private.training.tune",
    "dpvision.private.training.stopping",
)


def _several_labels(_seed: int) -> list[str]:
    """The claims of sums over rows with several labels or a grade."""
    results = []
    for task in ("labels", "grades"):
        try:
            test_sensitivity.test_a_row_with_every_label_wrong_moves_the_sum_by_at_most_the_claim(task, 10.0)
        except AssertionError as problem:
            results.append(f"{task}: {str(problem)[:80]}")
    return results


def _static(_seed: int) -> list[str]:
    results = []
    for name in NEAR_THE_NOISE:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        source = spec.loader.get_source(name)  # type: ignore[attr-defined]
        results += [
            f"{name}: {word}" for word in ("Generator", "randn", "np.random", "import random") if word in source
        ]
    return results


def _auditor(seed: int) -> list[str]:
    rng, results = np.random.default_rng(seed), []
    for shift in (0.0, -0.3):  # no evidence, and scores that point the wrong way
        out, into = rng.normal(size=2000), rng.normal(size=2000) + shift
        if bounds.estimate(out, into, delta=1e-5, confidence=1 - 1e-6).low > 0:
            results.append(f"an estimate of mu above 0 from a shift of {shift}")
        if shift == 0 and bounds.lower_bound(out, into, delta=1e-5, confidence=1 - 1e-6).epsilon > 0:
            results.append("a lower bound above 0 from nothing")
    return results


def _of(kind: str) -> tuple[str, ...]:
    return tuple(name for name in MECHANISMS if name.startswith(kind))


TRAINED = tuple(name for name in mechanisms.TRAININGS if name.startswith("dp-sgd"))
OF_IMAGES = mechanisms.TRAININGS | mechanisms.TRAINED | mechanisms.OF_PERSONS
# They take long, and what they do is in others too; all are in the long form (tests/system/replay/test_replay.py).
LONG = ("dp-sgd, one at a time", "16 views, few at a time", "diff-mix, K 4", "train, the head and then all")
ASSISTED = tuple(name for name in mechanisms.RUNS if "assisted" in name)
VIEWS = ("4 views", "self-mix, K 4", "diff-mix, K 4")
CHECKS: dict[str, Check] = {
    "static": _static,
    "auditor": _auditor,
    "keys": lambda _: noise_checks.of_keys(),
    "ledger": _ledger,
    "noise": _noise,
    "pairs of noise": _pairs_of_noise,
    "chosen later": _chosen_later,
    "unsafe layers": _unsafe_layers,
    "several labels": _several_labels,
    "sampler of training": _sampler_of_training,
    "sampler of releases": _sampler_of_releases,
    "blocks of releases": _blocks_of_releases,
    "replay dp-sgd": partial(_replay, TRAINED),
    "replay views": partial(_replay, VIEWS),
    "replay assisted": partial(_replay, ("dope", "mirror", "adadps", "weight multiplicity, K 4")),
    "replay persons": partial(_replay, ("persons", "persons, 4 views")),
    "replay rows of persons": partial(_replay, _of("rows of persons")),
    "replay heads": partial(_replay, _of("head: ")),
    "persons counted": _persons_counted,
    "replay baselines": partial(_replay, _of("baseline: ")),
    "replay releases": partial(_replay, (*_of("moments"), *mechanisms.MIXTURES)),
    "replay train": partial(_replay, ("train", "train, the head and then all")),
    "replay whole runs": partial(_replay, tuple(n for n in mechanisms.RUNS if n not in ASSISTED)),
    "replay assisted runs": partial(_replay, ASSISTED),
    "units apart: training": partial(whole.units_apart, tuple(n for n in OF_IMAGES if n not in LONG)),
    "units apart: rows": partial(whole.units_apart, tuple(n for n in MECHANISMS if n not in OF_IMAGES)),
    "any data": partial(whole.any_data, tuple(n for n in MECHANISMS if n not in (*LONG, *ASSISTED))),
    "any data of assisted runs": partial(whole.any_data, ASSISTED),
    "held out": whole.held_out,
    "fetched": whole.fetched,
    "declared": whole.declared,
    "cached features": whole.cached_features,
    "law of tuning": whole.law_of_tuning,
    "branches": whole.branches,
    "accounts": whole.accounts,
    "said": whole.said,
    "ranks": _ranks,
    "links": _links,
    "resume": _resume,
    "accountant": _accountant,
} | ON_DEVICES
# Checks that draw at random, to be run with many seeds.
STATISTICAL = (
    "keys",
    "noise",
    "sampler of training",
    "sampler of releases",
    "blocks of releases",
    "auditor",
    "law of tuning",
)


# Under which a check is listed that broke instead of finding something.
BROKEN = "broken"


def alarms(names: tuple[str, ...] = tuple(CHECKS), *, seed: int = 0, first: bool = False) -> dict[str, list[str]]:
    """Of each check, what it found, where it found anything; with `first`, of the first one that did."""
    results: dict[str, list[str]] = {}
    for name in names:
        try:
            result = CHECKS[name](seed)
        except Exception as error:  # an alarm in the clean code, and no way to find a planted bug
            name, result = BROKEN, [f"{name}: {type(error).__name__}: {error}"]
        if result:
            results[name] = result
            if first:
                break
    return results
