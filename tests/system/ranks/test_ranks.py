"""Several ranks: noise once, disjoint shares, equal bits, one charge, and no rank left behind when another is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dpvision.core import noise
from dpvision.core.account import Account
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError
from dpvision.private.training import ranks as distributed
from dpvision.private.training.private_sum import PrivateSum
from dpvision.private.training.ranks import Team
from tests.charges import charged
from tests.system.ranks import rank_worker, ranks
from tests.system.runs import commands

WORKER = "tests.system.ranks.rank_worker"
KEY = "ranks"
SETTINGS = (
    "--epsilon",
    "3",
    "--sigma",
    "3",
    "--budget",
    "20",
    "--batch",
    "20",
    "--steps",
    "200",
    "--checkpoint-every",
    "7",
)


class FewUnits:
    """Stands in for the clipped sum: notes who was fetched and sums up their indices."""

    sensitivity, size, units_at_a_time = 1.0, 3, 5

    def sum(self, batches, public=None) -> Tensor:
        total = torch.zeros(self.size, dtype=torch.float64)
        for drawn, _, views in batches:
            assert 0 < len(drawn) == len(views) <= self.units_at_a_time
            total += float(drawn.sum())
        return total


class Deaf(Team):
    """A rank whose messages go nowhere, to look at its share alone."""

    def total(self, share: Tensor) -> Tensor | None:
        return share

    def from_first(self, value: Tensor) -> Tensor:
        return value


def _share(sampler: PoissonSampler, step: int, units: int, *, rank: int, ranks: int) -> list[int]:
    """Who takes part in one step on one rank."""
    return _step(sampler, step, units, Deaf(rank, ranks))[0]


def _step(sampler: PoissonSampler, step: int, units: int, team: Team) -> tuple[list[int], Tensor]:
    """Who takes part in one step, and what it releases."""
    results: list[int] = []

    def fetch(drawn, _seed):
        results.extend(drawn.tolist())
        return torch.from_numpy(drawn), torch.empty(0), [1] * len(drawn)

    gate = Gate(charged(sampler.event(2.0)), Key.for_tests("shares"), sampler, name="b")
    private = PrivateSum(gate, FewUnits(), team=team)  # type: ignore[arg-type]
    noisy = private.step(step, units, fetch)
    return results, noisy


def _account(home: Path) -> Account:
    (path,) = (home / "ledgers").glob("*.jsonl")
    return Ledger(path.parent, json.loads(path.read_text().split("\n")[0])["fingerprint"]).account()


def _steps(folder: Path) -> int:
    """How many steps are in the operator's log."""
    log = folder / "operator" / "log.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


def _wait_for_steps(folder: Path, steps: int, processes: ranks.Processes) -> None:
    end = time.monotonic() + 300  # the machine may have much else to do
    while _steps(folder) < steps:
        assert time.monotonic() < end and all(p.poll() is None for p in processes), "it did not come this far"
        time.sleep(0.01)


def _told(results: list[ranks.Result]) -> list[str]:
    return [line for _, _, err in results for line in err.splitlines() if line.startswith("dpvision")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.write_data(tmp_path_factory.mktemp("data") / "data.npz")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, data: Path) -> bytes:
    """The weights of a run by torchrun with two ranks that nobody disturbs."""
    folder = tmp_path_factory.mktemp("unbroken")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dpvision")
    done = subprocess.run(
        [sys.executable, *launch, "train", data, *SETTINGS, "--out", folder / "run"],
        env=os.environ | commands.QUIET | {"DPVISION_HOME": str(folder / "home"), "DPVISION_TEST_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("plan\n") == done.stdout.count("test accuracy") == 1, "one rank speaks"
    assert len(_account(folder / "home").charges) == 1, "one charge for all ranks"
    assert not list((folder / "home" / "keys").iterdir())
    assert {"card.md", "report.html", "weights.safetensors"} <= {p.name for p in (folder / "run").iterdir()}
    return (folder / "run" / "weights.safetensors").read_bytes()


def test_one_rank_is_what_it_was_without_ranks() -> None:
    """The same draws and noise as made by hand from the streams without a rank."""
    assert (distributed.rank(), distributed.ranks()) == (0, 1)
    sampler, key = PoissonSampler(30, 100, 5), Key.for_tests("shares")
    for step in range(5):
        rng = sampler.draw(100, key.stream("sampling", step=step, branch="b"))
        total, stream = np.full(3, float(rng.sum())), key.stream("noise", step=step, branch="b")
        drawn, noisy = _step(sampler, step, 100, distributed.team())
        assert drawn == rng.tolist()
        assert (noisy.numpy() == noise.add_noise(total, stream, sensitivity=1.0, sigma=2.0) / 30).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_shares_are_disjoint_and_complete(count: int) -> None:
    everybody = PoissonSampler(50, 50, 1)
    for units in (0, 1, count, 50, 53):
        shares = [_share(everybody, 0, units, rank=rank, ranks=count) for rank in range(count)]
        assert sorted(unit for share in shares for unit in share) == list(range(units))
        assert all(unit % count == rank for rank, share in enumerate(shares) for unit in share)


def test_coins_have_one_rate_and_are_independent_over_ranks() -> None:
    """Four ranks with 1,000 units each, 25 steps: 25,000 draws a rank, none of them a copy of another rank's."""
    sampler, count, result = PoissonSampler(1200, 4000, 25), 4, 1000
    rng = np.zeros((count, 25, result))
    for rank in range(count):
        for step in range(25):
            rng[rank, step, np.array(_share(sampler, step, count * result, rank=rank, ranks=count)) // count] = 1
    flat = rng.reshape(count, -1)
    spread = 5 / np.sqrt(flat.shape[1])
    assert np.abs(flat.mean(1) - 0.3).max() < spread * np.sqrt(0.21)
    assert np.abs(np.corrcoef(flat) - np.eye(count)).max() < spread
    assert np.abs(rng.mean((0, 1)) - 0.3).max() < 6 * np.sqrt(0.21 / 100), "every unit at the same rate"


@pytest.mark.parametrize("count", [2, 4])
def test_noise_is_added_once_whatever_the_number_of_ranks(count: int, tmp_path: Path) -> None:
    results = ranks.finish(ranks.start("only_noise", ranks=count, home=tmp_path, module=WORKER))
    assert all(code == 0 for code, _, _ in results), results
    content = [json.loads(out) for _, out, _ in results]
    scale, _ = noise.noise_scale(content[0]["size"], sensitivity=rank_worker.CLIP, sigma=rank_worker.SIGMA)
    assert scale == pytest.approx(rank_worker.SIGMA * rank_worker.CLIP, rel=5e-4), "the slack is tiny"
    for rank, line in enumerate(content):
        assert (line["rank"], line["ranks"], line["size"]) == (rank, count, 1 << 18)
        assert line["variance"] == pytest.approx(scale**2, rel=0.01), "2^20 numbers: one standard deviation is 0.14%"
        assert line["releases"] == (rank_worker.SAMPLER.steps if rank == 0 else 0), "only rank 0 releases, once a step"
        assert line["digest"] == content[0]["digest"]
    assert sum(len(line["fetched"]) for line in content) > 0, "there was something to sum"


def test_ranks_are_equal_to_the_last_bit_after_fifty_steps(tmp_path: Path) -> None:
    results = ranks.finish(ranks.start("training", tmp_path, ranks=2, home=tmp_path / "home", module=WORKER))
    assert all(code == 0 for code, _, _ in results), results
    first, second = (json.loads(out) for _, out, _ in results)
    assert first["digest"] == second["digest"]
    assert first["complete"] and second["complete"] and first["steps"] == second["steps"] == 50
    assert (first["releases"], second["releases"]) == (50, 0)
    charges = _account(tmp_path / "home").charges
    assert [c.event.steps for c in charges] == [50]  # type: ignore[union-attr]
    log = [json.loads(x) for x in (tmp_path / "run" / "operator" / "log.jsonl").read_text().splitlines()]
    assert [x["step"] for x in log] == list(range(1, 51))
    assert np.mean([x["units"] for x in log]) == pytest.approx(40, abs=5 * 40**0.5 / 50**0.5), "of both ranks"


def test_a_killed_rank_stops_all_and_resuming_gives_the_bits_of_an_unbroken_run(
    tmp_path: Path, data: Path, unbroken: bytes
) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    words: tuple[str | Path, ...] = ("train", data, *SETTINGS, "--out", out)
    for victim in (1, 0):
        processes = ranks.start(*words, ranks=2, home=home, key=KEY)
        _wait_for_steps(out, _steps(out) + 15, processes)
        processes[victim].kill()
        results = ranks.finish(processes, seconds=120)
        assert results[victim][0] == -signal.SIGKILL and results[1 - victim][0] == 5, results
        (message,) = _told(results)
        assert "lost contact with another rank" in message
        assert f"torchrun --nproc-per-node 2 -m dpvision -- resume {out}" in message
        assert len(_account(home).charges) == 1 and not (out / "weights.safetensors").exists()
        words = ("resume", out)
    results = ranks.finish(ranks.start(*words, ranks=2, home=home, key=KEY))
    assert [code for code, _, _ in results] == [0, 0], results
    assert (out / "weights.safetensors").read_bytes() == unbroken
    assert len(_account(home).charges) == 1, "the same noise is paid once"


def test_all_ranks_stop_at_one_step_and_another_number_of_ranks_is_another_branch(tmp_path: Path, data: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    processes = ranks.start("train", data, *SETTINGS, "--out", out, ranks=2, home=home)
    _wait_for_steps(out, 20, processes)
    processes[1].send_signal(signal.SIGINT)
    results = ranks.finish(processes, seconds=120)
    assert [code for code, _, _ in results] == [130, 130], results
    assert "torchrun --nproc-per-node 2 -m dpvision -- resume" in results[0][1] and not results[1][1]
    done = _steps(out)
    assert 20 <= done < 200
    code, output, err = commands.run("resume", out, home=home)
    assert code == 0, err
    assert "used 2 worker processes so far and now uses 1" in output
    charges = _account(home).charges
    assert [c.event.steps for c in charges] == [200, 200 - done]  # type: ignore[union-attr]
    assert len({c.id for c in charges}) == 2


def test_a_rank_that_fails_in_a_step_leaves_nobody_waiting(tmp_path: Path) -> None:
    results = ranks.finish(ranks.start("unreadable", ranks=2, home=tmp_path, module=WORKER), seconds=120)
    assert [code for code, _, _ in results] == [1, 1], results
    assert "RankLost: rank 0 of 2 lost contact" in results[0][2] and "cannot be read" in results[1][2]


@pytest.mark.parametrize("case", ["no data", "other data", "no key"])
def test_a_rank_that_can_not_take_part_stops_all_before_anything_is_charged(
    case: str, tmp_path: Path, data: Path
) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    theirs = {"no data": tmp_path / "missing.npz", "other data": tmp_path / "other.npz", "no key": data}[case]
    commands.write_data(tmp_path / "other.npz", seed=1)
    processes = ranks.start(
        *("train", data, *SETTINGS, "--out", out),
        last=("train", theirs, *SETTINGS, "--out", out),
        last_home=tmp_path / "elsewhere" if case == "no key" else None,
        ranks=2,
        home=home,
    )
    results = ranks.finish(processes, seconds=120)
    codes = {"no data": [5, 3], "other data": [2, 2], "no key": [4, 4]}[case]
    words = {
        "no data": "missing.npz",
        "other data": "not the same on all 2 ranks",
        "no key": "rank 1 of 2 does not see this key",
    }
    assert [code for code, _, _ in results] == codes, results
    assert words[case] in "".join(_told(results)), results
    assert not list(home.glob("ledgers/*.jsonl")) and not (out / "weights.safetensors").exists()


def test_half_a_set_of_variables_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for value in ("2", "two"):
        monkeypatch.setenv("WORLD_SIZE", value)
        with pytest.raises(ConfigError, match="torchrun"):
            distributed.start()
