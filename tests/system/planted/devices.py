"""Checks on the stand-in accelerator: what a device computes, what names it, and what is tried before a charge.

sums on a device      clipped sums are the CPU's, exact, from memory that is moved and read when it is there
apart on a device     kernels that are chosen by size move no unit but the one that is added
named by device       whatever rounds differently has noise of its own, and nothing else decides it
runs on a device      whole runs are the CPU's, under one name
tried on a device     devices that round float64, or by place, or lack memory are refused before a charge
ranks on devices      the noise of a step is added once, whatever the number of ranks
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tests.standin as standin
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError, DPVisionError, UnsafeLayer
from dpvision.models.device import find_device, name_computation
from dpvision.private.engine import ClippedSum, Public
from dpvision.private.training import prepare, train
from dpvision.private.training.private_sum import PrivateSum
from dpvision.private.training.ranks import Team
from dpvision.settings.training import Config
from dpvision.storage.home import ledger_of
from tests.charges import charged
from tests.standin import module

CLOSE = 1e-5
SHAPE, CLASSES = (1, 8, 8), 10
FAR = torch.device("standin:1")  # while device 0 is the current one
SETTINGS = Config(epsilon=3.0, n=60, batch=20, steps=2, budget=50.0, model="linear", checkpoint_every=1)
KINDS: dict[str, dict[str, Any]] = {
    "views": {"model": "small-cnn", "k_base": 2, "augment": ("crop", "flip")},
    "dope": {"assist": "dope", "synthetic": "public", "public_batch": 4},
}


class Checkpointed(nn.Module):
    """A small network that computes its hidden layer again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = checkpoint(lambda v: torch.tanh(self.body(v)), x.flatten(1), use_reentrant=False)
        return self.head(hidden)  # type: ignore[no-any-return]


def _small() -> nn.Module:
    body = (nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(128, 130), nn.Tanh(), nn.Linear(130, CLASSES))


def _networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"small": _small(), "checkpointed": Checkpointed()}


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _batch(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, generator=rng) * 2 - 1, torch.randint(CLASSES, (count,), generator=rng)


def _public(kind: str, size: int) -> Public:
    rng = torch.Generator().manual_seed(1)
    vectors = [torch.randn(size, generator=rng) for _ in range(2)]
    if kind == "shaped":
        return Public(vectors[0].abs() + 0.5, 0.05 * vectors[1])
    return Public(perturbations=[0.1 * v for v in vectors]) if kind == "perturbed" else Public()


def sums(_seed: int) -> list[str]:
    """With late copies, and with TF32 wherever torch's flags allow it."""
    results = []
    for name, near in _networks().items():
        views = [2, 1, 3, 2, 2] if name == "small" else [1, 1]
        for kind in ("plain", "shaped", "perturbed") if name == "small" else ("plain",):
            with standin.asked(late=1, tf32=1):
                results += [f"{name}, {kind}: {what}" for what in _sum(near, kind, views)]
    return results


def _sum(near: nn.Module, kind: str, views: list[int]) -> list[str]:
    results, figures = [], ([], [])
    views = [2] * len(views) if kind == "perturbed" else views
    images, targets = _batch(sum(views))
    far = _moved(near)
    engines = []
    for model, seen in ((near, figures[0]), (far, figures[1])):
        watch = _watching(seen)
        engines.append(ClippedSum(model, _losses, clip=0.5, physical=4, watch=watch))
    here, there = engines
    public = _public(kind, here.size)
    expected = here(images, targets, views, public)
    used = torch.standin.memory_allocated(0)
    got = there(images, targets, views, public)
    if got.device != FAR or torch.standin.max_memory_allocated(0) > used:
        results.append("it is not computed on the device that was asked for")
    if not _close(got, expected):
        results.append("the clipped sum is not that of the CPU")
    if not all(_close(a, b) for a, b in zip(*map(_sorted, figures), strict=True)):
        results.append("the losses or norms are not those of the CPU")
    split, at = 2, sum(views[:2])
    parts = [
        there(images[:at], targets[:at], views[:split], public),
        there(images[at:], targets[at:], views[split:], public),
    ]
    if not torch.equal(parts[0] + parts[1], got):
        results.append("the sum of two parts has other bits than the whole")
    for unit in range(len(views)):
        first = sum(views[:unit])
        rows = slice(first, first + views[unit])
        if float(there(images[rows], targets[rows], views[unit : unit + 1], public).norm()) > 0.5 * (1 + CLOSE):
            results.append("a contribution exceeds the bound")
    return results


def _watching(seen: list[tuple[Tensor, Tensor]]) -> Callable[[Tensor, Tensor, float], None]:
    return lambda losses, norms, _: seen.append((losses.double(), norms.double()))


def _sorted(seen: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    losses, norms = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return losses.sort().values, norms.sort().values


def _moved(model: nn.Module) -> nn.Module:
    copy = type(model)() if isinstance(model, Checkpointed) else _small()
    copy.load_state_dict(model.state_dict())
    return copy.to(FAR)


def _close(got: Tensor, expected: Tensor) -> bool:
    if got.shape != expected.shape:
        return False
    return float((got.cpu() - expected.cpu()).norm()) <= CLOSE * float(expected.norm())


def apart(seed: int) -> list[str]:
    """One unit, of one to three images, is added to others; each kernel errs by up to a thousandth, by its sizes.

    What it adds is what it is alone, but for the host's own kernels: some of them round the last bit by place, for which
    a certificate would refuse this device.
    """
    engine, results = ClippedSum(_networks()["small"].to(FAR), _losses, clip=100.0, physical=4), []
    with standin.asked(by_size=1e-3):
        for case in range(4 * seed, 4 * seed + 4):
            rng = torch.Generator().manual_seed(case)
            views = torch.randint(1, 4, (3 + case % 4,), generator=rng).tolist()
            images, targets = _batch(sum(views), case)
            whole = engine(images, targets, views)
            first, others = slice(0, views[0]), slice(views[0], None)
            alone, without = (
                engine(images[first], targets[first], views[:1]),
                engine(images[others], targets[others], views[1:]),
            )
            if not _close(whole - without, alone):
                results.append("one unit more moves the contributions of others")
    return results


@contextmanager
def _files() -> Iterator[dict[str, Path]]:
    """Random images of 8x8 pixels, private and public, and a new home folder."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"DPVISION_HOME": f"{folder}/home"}):
        paths = {"folder": Path(folder)}
        for name, count in (("data", 60), ("public", 12)):
            arrays = {}
            for split, images in (("train", count), ("test", 12)):
                arrays[f"{split}_images"] = rng.integers(0, 256, (images, 8, 8, 3), dtype=np.uint8)
                arrays[f"{split}_labels"] = np.arange(images) % 3
            paths[name] = Path(folder) / f"{name}.npz"
            np.savez(paths[name], **arrays)
        yield paths


def _prepared(files: dict[str, Path], device: str, **settings: Any) -> train.Prepared:
    if "synthetic" in settings:
        settings["synthetic"] = str(files["public"])
    return train.prepare(str(files["data"]), replace(SETTINGS, device=device, **settings))


def names(_seed: int) -> list[str]:
    results = []
    with _files() as files:

        def name(device: str = "standin", **settings: Any) -> str:
            return _prepared(files, device, **settings).software()

        def passes() -> str:
            return _prepared(files, "standin", batch=60, model="small-cnn").network.passes

        usual, card = name(), standin.describe()
        others = {"the CPU": name("cpu"), "tf32": name(precision="tf32"), "larger passes": name(batch=40)}
        described = name_computation(FAR)
        with standin.asked(bits=9):
            others["a card that rounds to 9 bits"] = name()
            if name_computation(FAR) == described:
                results.append("a card that rounds to 9 bits is described as the usual one")
        with standin.asked(bits=9), mock.patch.object(module, "options", SimpleNamespace(describe=lambda _: card)):
            others["a card whose bits nothing describes"] = name()
        with mock.patch.dict(os.environ, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}):
            others["another workspace of cuBLAS"] = name()
        results += [
            f"{what} has the name, and so the noise, of the usual one" for what in others if others[what] == usual
        ]
        with standin.asked(limit=8 << 20):
            before = passes()
            full = torch.empty(6 << 20, dtype=torch.uint8, device="standin:0")
            if passes() != before:
                results.append("memory that something else uses changes the name")
            del full
        if name("standin:1") != usual or name("cpu", batch=40) != others["the CPU"]:
            results.append("a card's number, or a pass on the CPU, changes the name")
    return results


def runs(_seed: int) -> list[str]:
    """Two steps of each kind, under one name and key, hence with the same noise."""
    results = []
    with _files() as files, mock.patch.object(prepare, "software", lambda *_, **__: "any device"):
        for kind, settings in KINDS.items():
            weights = []
            for device in ("cpu", str(FAR)):
                prepared = _prepared(files, device, **settings)
                with standin.asked(late=1, tf32=1):
                    done = train.run(prepared, files["folder"] / f"{kind} {device}", test_key="devices")
                tensors = load_file(done.run.weights)
                weights.append(torch.cat([tensors[name].flatten() for name in sorted(tensors)]).double())
            if not torch.allclose(weights[1], weights[0], rtol=CLOSE, atol=CLOSE):
                results.append(f"{kind}: the released weights are not those of the CPU")
    return results


def tried(_seed: int) -> list[str]:
    results = []
    for options in ({"bits64": 40}, {"no_float64": 1}):
        with standin.asked(**options):
            try:
                find_device("standin")
                results.append(f"a device with {options} is used")
            except ConfigError:
                pass
    with _files() as files:
        large = {"model": "small-cnn", "physical": 4096}
        cases: list[tuple[dict[str, float], dict[str, Any], type[DPVisionError]]] = [
            ({"by_place": 1e-6}, {"model": "small-cnn"}, UnsafeLayer),
            ({"jitter": 1e-6, "chance": 1}, {"model": "small-cnn"}, UnsafeLayer),
            ({"limit": 8 << 20}, large, ConfigError),
        ]
        for options, settings, refusal in cases:
            prepared = _prepared(files, "standin", **settings)
            try:
                with standin.asked(**options):
                    train.begin(prepared, files["folder"] / "run", test_key="devices")
                results.append(f"a device with {options} trains")
            except refusal:
                pass
            ledger = ledger_of(prepared.fingerprint)
            if ledger.exists() and ledger.account().charges:
                results.append(f"a device with {options} is charged for")
    return results


@dataclass(frozen=True)
class Waiting(Team):
    """A rank whose messages are kept for rank 0, which takes its turn last."""

    letters: Any = None

    def total(self, share: Tensor) -> Tensor | None:
        if not self.first:
            self.letters.append(share.clone())
            return None
        return share + sum(self.letters)

    def from_first(self, value: Tensor) -> Tensor:
        return value


def ranks(seed: int) -> list[str]:
    """Two ranks with a device each, and units whose gradients are zero: what is released is the noise alone."""
    sampler, sigma, clip = PoissonSampler(6, 8, 4), 2.0, 0.7
    charge, letters, key = charged(sampler.event(sigma)), list[Tensor](), Key.for_tests(f"ranks {seed}")
    private = []
    for rank in (1, 0):
        device = torch.device("standin", rank)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256, bias=False)).to(device)
        engine = ClippedSum(model, lambda outputs, _: 0 * outputs.sum(1), clip=clip, physical=4)
        gate = Gate(charge, key, sampler, name="b")
        private.append(PrivateSum(gate, engine, team=Waiting(rank, 2, letters), device=device))

    def fetch(drawn: Any, _seed: int) -> tuple[Tensor, Tensor, list[int]]:
        return torch.ones(len(drawn), *SHAPE), torch.zeros(len(drawn), dtype=torch.int64), [1] * len(drawn)

    released = []
    for step in range(sampler.steps):
        letters.clear()
        released.append([one.step(step, 8, fetch) for one in private][-1] * sampler.batch)
    deviation = float(torch.stack(released).square().mean().sqrt())
    if not 0.97 <= deviation / (sigma * clip) <= 1.03:  # of 65,536 numbers
        return [f"the noise of two ranks has {deviation / (sigma * clip):.2f} times the deviation that is charged"]
    return []


def _telling(check: Callable[[int], list[str]]) -> Callable[[int], list[str]]:
    """Let a check tell what the device refuses: mixed devices, early reads, memory that is read by the host."""

    def telling(seed: int) -> list[str]:
        try:
            return check(seed)
        except (RuntimeError, TypeError, IndexError, DPVisionError) as exc:
            return [f"{type(exc).__name__}: {str(exc).splitlines()[0]}"]

    return telling


CHECKS = {
    name: _telling(check)
    for name, check in {
        "sums on a device": sums,
        "apart on a device": apart,
        "named by device": names,
        "runs on a device": runs,
        "tried on a device": tried,
        "ranks on devices": ranks,
    }.items()
}
