"""The steps of private training: draw, clip, sum, add noise, descend.

The loop is a function of noisy sums and public numbers. Other figures that depend on private data (the true batch size,
losses, the share of clipped units and, with --study, gradients before clipping) go to `operator/` and steer nothing.
`Progress` contains the true number of images as well, and is not for release.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpvision.core import files
from dpvision.core.gate import Gate
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import Inputs
from dpvision.models.parts import CENTRE, SHARES
from dpvision.private.engine import Tally
from dpvision.private.training import gradient_study, metrics
from dpvision.private.training.canaries import Canaries
from dpvision.private.training.network import Phase, phases
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.private_sum import PrivateSum, count_units, fetcher
from dpvision.private.training.ranks import Team
from dpvision.private.training.state import State
from dpvision.public import assist
from dpvision.public.assist import ALONE, Assisted
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from dpvision.views import Views


@dataclass(frozen=True)
class Progress:
    """The progress of a training run after a step, for the operator. `images` is a true count, not for release."""

    step: int
    steps: int
    epsilon: float
    images: int


@dataclass(frozen=True)
class Watch:
    """Callbacks that follow and stop a training run: `progress` is called after each step, `stop` before each step."""

    progress: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    track: Callable[[dict[str, Any]], None] = lambda _: None  # gets the lines of metrics.jsonl


def train_steps(
    run: run_folder.Run,
    prepared: Prepared,
    state: State,
    gate: Gate,
    *,
    model: nn.Module,
    inputs: Inputs,
    test: Inputs | None,
    canaries: Canaries | None,
    epsilon: float,
    team: Team,
    watch: Watch,
) -> State:
    """Train from the state's step to the end, or until `watch.stop` returns True; return the final state."""
    config, steps = prepared.config, prepared.sampler.steps
    units = count_units(prepared.data.train, config.unit)
    tally, in_order = Tally(), phases(prepared.network)
    phase = next((p for p in in_order if state.step < p.end), in_order[-1])
    clipped_sum = phase.clipped_sum(tally)
    private_sum = PrivateSum(
        gate,
        clipped_sum if canaries is None else canaries.add_to(clipped_sum),
        team=team,
        views=config.views,
        device=prepared.device,
    )
    assistant = None if config.assist == "none" else Assistant(prepared, phase, model, team)
    measured = metrics.measured_steps(prepared)
    studied = gradient_study.studied_steps(steps) if config.study else {}
    if team.first:
        _drop_lines_after(run.metrics, state.step, epsilon=epsilon)
        _drop_lines_after(gradient_study.file(run), state.step)
        _drop_lines_after(run.operator / "log.jsonl", state.step)
    images, fetch = 0, None
    for number in range(state.step, steps):
        if team.any(watch.stop()):
            break
        if number == phase.end:
            phase, fetch = next(p for p in in_order if p.first == number), None
            clipped_sum = phase.clipped_sum(tally)
            private_sum.sum_with(clipped_sum if canaries is None else canaries.add_to(clipped_sum))
        phase.load(state.weights)
        if fetch is None:
            rows = inputs if phase.before is None else inputs.through(phase.before)
            fetch = fetcher(prepared.data.train, config.unit, rows, prepared.views(), prepared.device)

        # Public gradients shape the contributions; units are drawn, clipped, summed and noised; the weights descend.
        state, assisted = (state, ALONE) if assistant is None else assistant(state)
        if canaries is None:
            noisy = private_sum.step(number, units, fetch, assisted.public)
        else:
            canaries.start_step(number, clipped_sum.size)
            noisy = private_sum.step(number, canaries.units, canaries.wrap_fetch(fetch), assisted.public)
            assert state.canaries is not None
            state = replace(state, canaries=state.canaries + canaries.scores(noisy, norm=clipped_sum.sensitivity))
        state = _descend(state, phase.spread(assisted.finish(noisy).float()), config, lr=phase.lr)
        if state.step == phase.end:
            # The average of weights restarts after a step that estimated a mean.
            average = state.weights.clone() if phase.part in (CENTRE, SHARES) else state.ema
            state = replace(state, momentum=torch.zeros_like(state.momentum), ema=average)

        # Rank 0 writes the operator's log, metrics and checkpoints.
        figures = _over_all_ranks(tally.flush(), team)
        if not team.first:
            continue
        images += figures["images"]
        run_folder.append_json(run.operator / "log.jsonl", {"step": state.step, **figures})
        if state.step in studied:
            line = gradient_study.measure(clipped_sum, fetch, units)
            run_folder.append_json(gradient_study.file(run), {"step": state.step, "share": studied[state.step], **line})
        if state.step in measured:
            line = metrics.measure(state, prepared, model, test, epsilon)
            run_folder.append_json(run.metrics, line)
            watch.track(line)
        if state.step % config.checkpoint_every == 0:
            state.save(run)
        watch.progress(Progress(state.step, steps, epsilon, images))
    return state


class Assistant:
    """Computes the public assistance of a step, from public images and the state before the step.

    Rank 0 computes gradients of public images, at weights that come from noisy sums, and sends them to the other ranks,
    so that all ranks use the same bits. A public batch is a function of the seed, the step and the number of the batch,
    so a resumed run draws the same batches.
    """

    def __init__(self, prepared: Prepared, phase: Phase, model: nn.Module, team: Team) -> None:
        self._config, self._phase, self._team = prepared.config, phase, team
        public = prepared.public.images
        assert public is not None  # the settings require public images
        config, views = prepared.config, None
        if not config.as_it_is:
            views = Views(config.augment, base=1, classes=len(prepared.data.classes))
        self._fetch = fetcher(
            public, "image", prepared.network.load_or_compute_inputs(public, model), views, prepared.device
        )
        self._images = len(public.labels)

    def __call__(self, state: State) -> tuple[State, Assisted]:
        """Return the state and the assistance of its next step; the phase's network must hold the state's weights."""
        assisted = assist.assist(
            self._config.assist,
            assist.Moment(
                state.weights, state.step, self._config, lambda count: self._gradients(state, count), state.second
            ),
        )
        if assisted.second is not None:
            state = replace(state, second=assisted.second)
        return state, assisted

    def _gradients(self, state: State, count: int) -> Tensor:
        """Return the (count, size) mean gradients of `count` public batches, the same on all ranks."""
        gradients = torch.empty(count, len(state.weights))
        if self._team.first:
            for number in range(count):
                gradients[number] = self._gradient(state.step, number)
        return self._team.from_first(gradients)

    def _gradient(self, step: int, number: int) -> Tensor:
        rng = np.random.default_rng([self._config.seed, step, number])
        size = min(self._config.public_batch, self._images)
        rows = np.sort(rng.choice(self._images, size, replace=False))
        images, targets, _ = self._fetch(rows, int(rng.integers(1 << 62)))
        gradient = assist.mean_gradient(self._phase.learner, self._phase.loss, images, targets)
        if not bool(gradient.isfinite().all()):
            raise ConfigError(
                f"step {step}: the gradient of the public images is not finite, so training has diverged. "
                "The charge remains in the ledger. Fix: start a new run with a smaller --lr."
            )
        return gradient


def _descend(state: State, gradient: Tensor, config: Config, *, lr: float) -> State:
    """Take a step of SGD with momentum; the decay of the weight average warms up as (1 + t) / (10 + t)."""
    momentum = config.momentum * state.momentum + gradient
    weights = state.weights - lr * momentum
    decay = min(config.ema, (1 + state.step) / (10 + state.step))
    ema = decay * state.ema + (1 - decay) * weights
    return replace(state, step=state.step + 1, weights=weights, momentum=momentum, ema=ema)


def _over_all_ranks(figures: dict[str, float], team: Team) -> dict[str, Any]:
    """Combine the operator's figures of one step from all ranks, on rank 0; other ranks return only their own."""
    units, images = figures["units"], figures["images"]
    sums = [units, images, figures["mean_loss"] * images, figures["clipped_share"] * units]
    total = team.total(torch.tensor(sums, dtype=torch.float64)) if team.ranks > 1 else None
    if total is None:
        return figures
    units, images, loss, clipped = total.tolist()
    return {
        "units": int(units),
        "images": int(images),
        "mean_loss": loss / images if images else 0.0,
        "clipped_share": clipped / units if units else 0.0,
    }


def _drop_lines_after(path: Path, step: int, **updates: float) -> None:
    """Remove the lines of steps that will be repeated, and apply the updates to the remaining ones."""
    lines = run_folder.read_lines(path)
    if not all(type(line.get("step", 0)) is int for line in lines):
        raise DataError(f"{path}: a line has no valid step number. Fix: remove the file, then resume.")
    lines = [{**line, **updates} for line in lines if line.get("step", 0) <= step]
    files.write(path, "".join(json.dumps(line) + "\n" for line in lines))
