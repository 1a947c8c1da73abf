"""A clock that goes back, and two commands at once: what is charged does not depend on the time, nor on who is first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpvision.core import accountant, adaptive
from dpvision.settings.figures import upper
from tests.fork_server import ForkServer
from tests.system.kills.killing import Undisturbed, account
from tests.system.kills.verbs import KEY, VERBS, World

BY_NAME = {verb.name: verb for verb in VERBS}
YEAR = 365 * 86400.0
SHIFTED = "tests.system.kills.clock:shifted"


@pytest.fixture
def world(tmp_path: Path, supplies: Path) -> World:
    made = World(tmp_path.resolve() / "world", supplies)
    made.out.parent.mkdir(parents=True)
    return made


def _train(world: World, name: str, *more: str | float) -> tuple[str | Path | float, ...]:
    settings = ("--batch", 10, "--steps", 4, "--checkpoint-every", 2)
    return ("train", world.data, "--epsilon", 1.1, *settings, "--out", world.out.with_name(name), *more)


def test_the_ledger_does_not_depend_on_the_clock(server: ForkServer, world: World) -> None:
    for name, shift in (("now", 0.0), ("back", -30 * YEAR), ("ahead", 50 * YEAR)):
        more = ("--budget", 10) if name == "now" else ()
        code, _, err = server.run(shift, *_train(world, name, *more), home=world.home, key=KEY + name, call=SHIFTED)
        assert code == 0, err
        for path in (world.home / "ledgers").iterdir():
            os.utime(path, (0, 0))  # nor on the times of the file system
    result = account(world.home)
    years = [charge.time[:4] for charge in result.charges]
    assert len(result.charges) == 3 and years[1] < years[0] < years[2], "the clock was really shifted"
    (event,) = {charge.event for charge in result.charges}
    assert result.spent() == accountant.epsilon(adaptive.compose((event,) * 3, 1e-5), 1e-5)
    code, out, _ = server.run("ledger", world.data, home=world.home)
    assert code == 0 and f"epsilon {upper(result.spent())}" in out


def test_a_run_goes_on_after_the_clock_went_back(server: ForkServer, world: World, undisturbed: Undisturbed) -> None:
    verb = BY_NAME["train"]
    whole = undisturbed(verb)
    half = 2 * whole.changes // 3
    job = server.start(
        YEAR, *verb.words(world), home=world.home, key=KEY, call=SHIFTED, arena=world.folder, die_at=half
    )
    assert server.ended(job, within=300) == -9 and world.out.exists()
    code, _, err = server.run(-YEAR, *verb.words(world), home=world.home, key=KEY, call=SHIFTED)
    assert code == 0, err
    assert verb.result(world) == whole.result and len(account(world.home).charges) == 1


@pytest.mark.parametrize(("budget", "codes"), [(10.0, [0, 0]), (1.2, [0, 4])])
def test_two_runs_on_one_data_set_at_once(budget: float, codes: list[int], server: ForkServer, world: World) -> None:
    """Both are charged, or one is refused."""
    jobs = [server.start(*_train(world, name, "--budget", budget), home=world.home) for name in ("one", "other")]
    ended = [server.wait(job) for job in jobs]
    assert sorted(code for code, _, _ in ended) == codes, ended
    result = account(world.home)
    assert len(result.charges) == codes.count(0) and result.spent() <= budget
    for (code, _, err), name in zip(ended, ("one", "other"), strict=True):
        assert (code == 4) == ("Nothing was charged" in err)
        assert (code == 0) == world.out.with_name(name).joinpath("weights.safetensors").exists()


def test_two_processes_go_on_with_one_run_at_once(server: ForkServer, world: World, undisturbed: Undisturbed) -> None:
    verb = BY_NAME["train"]
    whole = undisturbed(verb)
    job = server.start(*verb.words(world), home=world.home, key=KEY, arena=world.folder, die_at=whole.changes // 2)
    assert server.ended(job, within=300) == -9 and world.out.exists()
    jobs = [server.start(*verb.words(world), home=world.home, key=KEY) for _ in range(3)]
    ended = [server.wait(job) for job in jobs]
    assert {code for code, _, _ in ended} <= {0, 2} and 0 in [code for code, _, _ in ended], ended
    assert all("another process is working on this run" in err for code, _, err in ended if code == 2)
    assert verb.result(world) == whole.result and len(account(world.home).charges) == 1


def test_two_processes_make_one_release_at_once(server: ForkServer, world: World) -> None:
    verb = BY_NAME["release, moments"]
    jobs = [server.start(*verb.words(world), home=world.home) for _ in range(3)]
    ended = [server.wait(job) for job in jobs]
    codes = sorted(code for code, _, _ in ended)
    assert codes[0] == 0 and set(codes) <= {0, 2} and codes.count(0) == 1, ended
    assert len(account(world.home).charges) == 1
