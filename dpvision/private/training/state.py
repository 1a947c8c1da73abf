"""The state of a run between two steps, and its branch, which names the noise and the charge.

Formal guarantee: two segments of training with the same branch name, key and step draw the same noise for the same
weights, data, settings and software, so they give the same bits; anything else gets another name, and with it
independent noise and a separate charge. The name covers the digest of the initial state of the branch, so the same
change at another step is another branch. A state that continues under the same noise is signed with the run's key, and
an edited state is refused. A branch is named when it is first charged, and the name covers the exact features.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from dpvision.core import accountant, adaptive, files
from dpvision.core.events import Budget, Capped, Event, exposures, from_json, to_json
from dpvision.core.keys import Key
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.models.device import CPU, name_computation
from dpvision.private.training import ranks
from dpvision.settings.setting import to_dict
from dpvision.settings.training import WAYS, Config, merge
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import computing


@dataclass(frozen=True)
class State:
    """Everything that the next step needs; every bit of it is a function of noisy sums and public numbers."""

    weights: Tensor
    momentum: Tensor
    ema: Tensor
    config: Config
    key: str  # name of the key file
    private: bool  # False once a fixed key was used
    step: int = 0
    branch: str = ""  # name of the noise and the charge; empty before the first charge
    data: str = ""  # name of all inputs: records, public files, the bytes of features
    first: int = 0  # the first step of this branch
    path: tuple[Event, ...] = ()  # the event of the initial weights, and those charged for earlier branches
    software: str = ""
    digest: str = ""  # of the file that it was read from
    second: Tensor | None = None  # AdaDPS: the second moment of public gradients
    canaries: Tensor | None = None  # the scores of the canaries so far

    def dump(self) -> bytes:
        """Return the bytes of the state's file, signed with the run's key."""
        header = {
            "step": str(self.step),
            "first": str(self.first),
            "branch": self.branch,
            "data": self.data,
            "key": self.key,
            "private": json.dumps(self.private),
            "software": self.software,
            "config": json.dumps(to_dict(self.config), sort_keys=True),
            "path": json.dumps([to_json(e) for e in self.path]),
        }
        key = Key.read(run_folder.key_path(self.key))
        tensors = {name: getattr(self, name) for name in tensors_of(self.config)}
        return safetensors.dump(tensors, header, sign=None if key is None else key.sign)

    def save(self, run: run_folder.Run) -> None:
        """Write the state's file into the run folder."""
        files.write(run.state, self.dump())

    @staticmethod
    def config_of(header: dict[str, str], path: Path) -> Config:
        """Read the settings from the header of a state's file; the default device is the CPU."""
        try:
            return merge(Config(device="cpu"), json.loads(header["config"]), source=str(path))
        except safetensors.UNSOUND as exc:
            raise DataError(f"{path}: its header has no valid settings ({exc}).") from exc

    @staticmethod
    def load(path: Path, model: nn.Module) -> State:
        """Read a state's file for a model with these weights; its signature is checked as long as the key exists."""
        flat = flat_weights(model)
        config = State.config_of(safetensors.read(path).header, path)
        names = tensors_of(config)
        like = dict.fromkeys(names, flat)
        if "canaries" in like:
            like["canaries"] = torch.empty(config.canaries, dtype=torch.float64, device="meta")
        tensors, header = safetensors.load(path, like)
        try:
            key = Key.read(run_folder.key_path(header["key"]))
            if key is not None and header.get("signature") != key.sign(header["digest"]):
                raise DataError(f"{path}: was not written by this run. Fix: restore the run folder from a backup.")
            state = State(
                **tensors,
                config=State.config_of(header, path),
                key=header["key"],
                private=header["private"] == "true",
                step=int(header["step"]),
                branch=header["branch"],
                data=header["data"],
                first=int(header["first"]),
                path=tuple(from_json(e) for e in json.loads(header["path"])),
                software=header["software"],
                digest=header["digest"],
            )
        except safetensors.UNSOUND as exc:
            raise DataError(f"{path}: its header is not that of a run's state ({exc}).") from exc
        config = state.config
        if not (config.batch and config.n and config.sigma and 0 <= state.first <= state.step <= (config.steps or 0)):
            raise DataError(f"{path}: its header is not that of a run's state (settings or steps are missing).")
        return state


def tensors_of(config: Config) -> tuple[str, ...]:
    """Return the names of a state's tensors; all have the size of the trained weights, except the canaries' scores."""
    second = ("second",) if WAYS[config.assist].second_moment else ()
    return ("weights", "momentum", "ema", *second, *(("canaries",) if config.canaries else ()))


def branch_name(state: State, config: Config, *, data: str, software: str, key: str) -> str:
    """Name a segment of training by everything that affects it: the same name means the same bits."""
    first = hashlib.blake2b(state.weights.numpy().tobytes(), digest_size=16).hexdigest()
    start = [state.branch, state.step, state.digest if state.branch else first]
    facts = [*start, config.hash(), data, software, key]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def same_or_new_branch(state: State, config: Config, *, data: str, software: str) -> tuple[State, Key]:
    """Continue the branch if nothing changed; otherwise start a new one, with fresh noise and a separate charge.

    `software` is the result of `software()` for the device and precision that will be used.
    """
    before = state.config
    key = Key.read(run_folder.key_path(state.key))
    if key and state.branch and config.hash() == before.hash() and state.software == software:
        if state.data != data:
            raise LedgerMismatch(
                "the training data, a public file or the cached features changed since the run began, and the same "
                "noise would reveal the difference. Fix: remove the run's features from $DPVISION_HOME/features, so "
                "that they are computed again; or restore the files, or start a new run."
            )
        return replace(state, config=config, private=state.private and key.private), key
    if (config.steps or 0) < state.step:
        raise ConfigError(f"{state.step} steps are already done, so --steps cannot be {config.steps}.")
    if config.hash() != before.hash() and before.steps == config.steps == state.step:
        raise ConfigError(f"all {state.step} steps are done, so settings can no longer change. Fix: start a new run.")
    name = state.key
    if key is None:  # the old noise cannot be drawn without the old key
        name, key = secrets.token_hex(8), Key.fresh()
        key.write(run_folder.key_path(name))
    return replace(
        state,
        config=config,
        key=name,
        private=state.private and key.private,
        branch=branch_name(state, config, data=data, software=software, key=key.label(name)),
        data=data,
        first=state.step,
        path=(*state.path, charged_here(state)) if state.branch else state.path,
        software=software,
    ), key


def charged_here(state: State) -> Event:
    """Return the event that was charged for the state's branch: all of its steps, including those never done.

    The epsilon of the steps so far is too small if a run is stopped when its results look good, because the number of
    steps then depends on the results.
    """
    config = state.config
    assert config.sigma and config.batch and config.n and config.steps
    return PoissonSampler(config.batch, config.n, config.steps).event(config.sigma, first=state.first)


def event_charged(state: State, budget: Budget, *, before: int) -> Event:
    """Return the event of all charges of a run and of its initial weights, the first `before` events of its path.

    Branches are chosen adaptively, and results may determine how many there are. If there are several, their
    composition only meters the privacy loss, and the guarantee is the account's budget. The guarantee of the initial
    weights, which may have been charged to another account, is added to it.
    """
    here, delta = charged_here(state), state.config.delta
    total = adaptive.compose((*state.path, here), delta)
    first, branches = state.path[:before], [e for e in (*state.path[before:], here) if any(exposures(e))]
    if len(branches) < 2 and not any(isinstance(event, Capped) for event in first):
        return total
    points = [_point(event, delta) for event in first]
    points.append((budget.epsilon, budget.delta) if len(branches) > 1 else _point(here, delta))
    epsilon = math.fsum(e for e, _ in points)
    return Capped(total, epsilon, math.fsum(d for _, d in points)) if math.isfinite(epsilon) else total


def _point(event: Event, delta: float) -> tuple[float, float]:
    """Return an epsilon and a delta that hold for adaptively chosen events."""
    if isinstance(event, Capped):
        return event.epsilon, event.delta
    return accountant.epsilon(event, delta), delta


def software(device: torch.device = CPU, precision: str = "float32", *, passes: str = "") -> str:
    """Describe software, hardware and number of ranks; any change may change rounding or draws, so it gets fresh noise.

    `passes` are the pass sizes on an accelerator (Network.passes).
    """
    several = f"{ranks.ranks()} ranks" if ranks.ranks() > 1 else ""
    facts = (computing(), f"{torch.get_num_threads()} threads", several, name_computation(device, precision), passes)
    return ", ".join(filter(None, facts))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained."""
    return [p for p in model.parameters() if p.requires_grad]


def flat_weights(model: nn.Module) -> Tensor:
    """Return the trained parameters as one vector on the CPU, the form in which a state stores them."""
    return parameters_to_vector(trainable(model)).detach().cpu()


@torch.no_grad()
def load_weights(weights: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Copy a state's vector into parameters in place, so that they stay on their device and remain shared."""
    parts = weights.to(parameters[0].device).split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))
