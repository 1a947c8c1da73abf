"""The state of a run between two steps, and the branch it is on, which names its noise and its charge.

Formal guarantee: two stretches of training with the same branch name, key and step draw the same noise for the same
weights, data, settings and software, so they give the same bits; anything else gets another name, hence independent
noise and a charge of its own. The name covers the digest of the state it started from: the same change made at another
point is another branch. A state that continues under the same noise is signed with the run's key: one that was written
by hand is refused. A branch is named when it is first charged, and by the exact features that it computes with.
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
    """All that the next step needs, and every bit of it a function of noisy sums only."""

    weights: Tensor
    momentum: Tensor
    ema: Tensor
    config: Config
    key: str  # name of the key's file
    private: bool  # False once a fixed key was used
    step: int = 0
    branch: str = ""  # names the noise and the charge; it has no name before it is charged
    data: str = ""  # names all that it computes with: records, public files, the bytes of features
    first: int = 0  # the step at which this branch began
    path: tuple[Event, ...] = ()  # what the initial weights revealed, and earlier branches as they were charged
    software: str = ""
    digest: str = ""  # of the file it was read from
    second: Tensor | None = None  # AdaDPS: the second moment of public gradients
    canaries: Tensor | None = None  # the score of each so far: a function of noisy sums too

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
        """Read the settings from the header of a state's file; one without a device is of a run on the CPU."""
        try:
            return merge(Config(device="cpu"), json.loads(header["config"]), source=str(path))
        except safetensors.UNSOUND as exc:
            raise DataError(f"{path}: does not state which settings it belongs to ({exc}).") from exc

    @staticmethod
    def load(path: Path, model: nn.Module) -> State:
        """Read a state's file, for weights of the model's size; its signature is checked while the key exists."""
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
    """Return the names of a state's tensors, each of the size of all trained weights but for the canaries' scores."""
    second = ("second",) if WAYS[config.assist].second_moment else ()
    return ("weights", "momentum", "ema", *second, *(("canaries",) if config.canaries else ()))


def branch_name(state: State, config: Config, *, data: str, software: str, key: str) -> str:
    """Return a name for a stretch of training from everything that shapes it: the same name means the same bits."""
    first = hashlib.blake2b(state.weights.numpy().tobytes(), digest_size=16).hexdigest()
    where = [state.branch, state.step, state.digest if state.branch else first]
    shaping = [*where, config.hash(), data, software, key]
    return hashlib.blake2b(json.dumps(shaping).encode(), digest_size=16).hexdigest()


def same_or_new_branch(state: State, config: Config, *, data: str, software: str) -> tuple[State, Key]:
    """Continue as before if nothing changed; else start a branch here, with fresh noise and a charge of its own.

    `software` is what `software()` returns for the device and the precision that will train.
    """
    before = state.config
    key = Key.read(run_folder.key_path(state.key))
    if key and state.branch and config.hash() == before.hash() and state.software == software:
        if state.data != data:
            raise LedgerMismatch(
                "the training data, a public file or the cached features are not those that the run began with, and "
                "the same noise would reveal the difference. Fix: remove the run's features from "
                "$DPVISION_HOME/features, and they are computed again; or restore the files, or start a new run."
            )
        return replace(state, config=config, private=state.private and key.private), key
    if (config.steps or 0) < state.step:
        raise ConfigError(f"{state.step} steps are done already; steps cannot be set to {config.steps}.")
    if config.hash() != before.hash() and before.steps == config.steps == state.step:
        raise ConfigError(f"all {state.step} steps are done, so settings cannot change any more. Fix: a new run.")
    name = state.key
    if key is None:  # without the old key the old noise cannot be drawn again
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
    """Return the event that the state's branch was charged for: all of its steps, also those that were never done.

    Whoever stops a training run where it looks good, and states the epsilon of the steps so far, states too little:
    which steps were done then depends on what was seen.
    """
    config = state.config
    assert config.sigma and config.batch and config.n and config.steps
    return PoissonSampler(config.batch, config.n, config.steps).event(config.sigma, first=state.first)


def event_charged(state: State, budget: Budget, *, before: int) -> Event:
    """Return the event of all charges of a run and of its initial weights: the first `before` events of its path.

    Branches are chosen one after the other, and results may decide how many there are. Where there are several, their
    composition is a meter, and the guarantee is the account's budget. The guarantee of the initial weights, which may
    have been charged elsewhere, is added to it.
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
    """Return an epsilon and a delta that hold, whatever results decided."""
    if isinstance(event, Capped):
        return event.epsilon, event.delta
    return accountant.epsilon(event, delta), delta


def software(device: torch.device = CPU, precision: str = "float32", *, passes: str = "") -> str:
    """Return what computes, on how many ranks: any other may round or draw differently, so it gets fresh noise.

    `passes` are the sizes of passes on an accelerator (Network.passes).
    """
    several = f"{ranks.ranks()} ranks" if ranks.ranks() > 1 else ""
    facts = (computing(), f"{torch.get_num_threads()} threads", several, name_computation(device, precision), passes)
    return ", ".join(filter(None, facts))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained."""
    return [p for p in model.parameters() if p.requires_grad]


def flat_weights(model: nn.Module) -> Tensor:
    """Return the trained parameters as one vector on the host, in which a state keeps them."""
    return parameters_to_vector(trainable(model)).detach().cpu()


@torch.no_grad()
def load_weights(weights: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Write a state's vector into parameters, in place: they stay on their device, and are what others share."""
    parts = weights.to(parameters[0].device).split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))
