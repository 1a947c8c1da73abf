"""Ranks on two machines, tried as two network namespaces: the bits of one machine, and nothing to read on the cable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.ranks import namespaces, ranks
from tests.system.runs import commands

KEY = "machines"
SETTINGS = ("--epsilon", "3", "--sigma", "3", "--budget", "20", "--batch", "20", "--steps", "12")


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    try:
        with namespaces.two_machines() as names:
            yield names
    except namespaces.NoNamespaces as exc:
        pytest.skip(f"network namespaces cannot be made here: {exc}")


def _torchrun(machines: tuple[str, str], words: list[str], home: Path) -> ranks.Processes:
    """One process on each machine, as in docs/several-devices.md."""
    meeting = (
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--master-addr",
        namespaces.ADDRESSES[0],
        "--master-port",
        "29577",
    )
    environment = os.environ | commands.QUIET | {"DPVISION_HOME": str(home), "DPVISION_TEST_KEY": KEY}
    environment |= {"GLOO_SOCKET_IFNAME": namespaces.CABLE}
    processes = []
    for number, machine in enumerate(machines):
        launch = (sys.executable, "-m", "torch.distributed.run", *meeting, "--node-rank", str(number))
        command = [*namespaces.inside(machine), *launch, "-m", "dpvision", "--", *words]
        processes.append(
            subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    return processes


def test_two_machines_give_the_bits_of_one_and_show_nothing_on_the_way(
    tmp_path: Path, machines: tuple[str, str]
) -> None:
    data, cable = commands.write_data(tmp_path / "data.npz"), tmp_path / "cable"
    home, out, alone = tmp_path / "home", tmp_path / "run", tmp_path / "alone"
    with namespaces.wiretapped(machines[1], cable):
        processes = _torchrun(machines, ["train", str(data), *SETTINGS, "--out", str(out)], home)
        results = ranks.finish(processes, seconds=120)
    assert [code for code, _, _ in results] == [0, 0], results
    local = ranks.finish(
        ranks.start("train", data, *SETTINGS, "--out", alone, ranks=2, home=tmp_path / "other", key=KEY), seconds=120
    )
    assert [code for code, _, _ in local] == [0, 0], local
    assert (out / "weights.safetensors").read_bytes() == (alone / "weights.safetensors").read_bytes()

    passed = cable.read_bytes()
    assert b"dpvision/key" in passed, "what ranks say when they meet is seen, so the rest would be"
    assert len(passed) > 12 * 2 * 260 * 8, "as many bytes as the sums and updates of 260 weights have"
    (ledger,) = (home / "ledgers").glob("*.jsonl")
    (branch,) = (charge["id"] for charge in map(json.loads, ledger.read_text().splitlines()) if "id" in charge)
    assert branch.encode() not in passed, "rank 0 has sent it to rank 1, sealed"
    assert not list((home / "keys").iterdir())
