"""What one rank does in tests/system/ranks/test_ranks.py; it prints one JSON line about itself."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from dpvision.core import noise
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.sampling import PoissonSampler
from dpvision.private.engine import ClippedSum
from dpvision.private.training import loop, ranks, train
from dpvision.private.training.private_sum import PrivateSum
from dpvision.settings.training import Config
from tests.charges import charged
from tests.system.runs.commands import write_data

SIGMA, CLIP, SAMPLER, UNITS = 2.0, 0.7, PoissonSampler(8, 20, 4), 20
releases = 0


def _count_releases() -> None:
    original = noise.add_noise

    def counting(*args, **kwargs):
        global releases
        releases += 1
        return original(*args, **kwargs)

    noise.add_noise = counting


def only_noise(*, unreadable: bool = False) -> dict:
    """Four steps over units whose gradients are zero, on 2^18 weights; `unreadable` images are found on rank 1."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(512, 512, bias=False))
    clipped_sum = ClippedSum(model, lambda output, _: 0 * output.sum(1), clip=CLIP, physical=4)
    team, gate = ranks.team(), Gate(charged(SAMPLER.event(SIGMA)), Key.for_tests("noise"), SAMPLER, name="b")
    private = PrivateSum(gate, clipped_sum, team=team)
    images = torch.ones(UNITS, 1, 16, 32)
    fetched = []

    def fetch(drawn, _seed) -> tuple[Tensor, Tensor, list[int]]:
        if unreadable and team.rank == 1:
            raise OSError("an image on rank 1 cannot be read")
        fetched.extend(drawn.tolist())
        return images[drawn], torch.zeros(len(drawn)), [1] * len(drawn)

    noisy = torch.stack([private.step(step, UNITS, fetch) for step in range(SAMPLER.steps)]) * SAMPLER.batch
    return {
        "variance": float(noisy.square().mean()),
        "size": noisy[0].numel(),
        "digest": _digest(noisy),
        "fetched": fetched,
    }


def training(folder: Path) -> dict:
    """50 real steps; the digest is of the weights, momentum and average that this rank ended with."""
    if ranks.rank() == 0:
        write_data(folder / "data.npz")
    ranks.team().wait()
    last, steps, original = [], [], loop._descend

    def recording(*args, **named):
        last[:] = [original(*args, **named)]
        steps.append(last[0].step)
        return last[0]

    loop._descend = recording
    prepared = train.prepare(str(folder / "data.npz"), Config(epsilon=3.0, batch=40, steps=50, model="small-cnn"))
    outcome = train.proceed(train.begin(prepared, folder / "run"), prepared)
    state = last[0]
    digest = _digest(torch.stack([state.weights, state.momentum, state.ema]))
    return {"digest": digest, "steps": len(steps), "complete": outcome.complete}


def _digest(tensor: Tensor) -> str:
    return hashlib.blake2b(tensor.contiguous().numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    ranks.start()
    _count_releases()
    results = (
        training(Path(sys.argv[2])) if sys.argv[1] == "training" else only_noise(unreadable=sys.argv[1] == "unreadable")
    )
    print(json.dumps({"rank": ranks.rank(), "ranks": ranks.ranks(), "releases": releases, **results}))
