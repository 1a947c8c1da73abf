"""The example of mode collapse runs, and counts modes correctly."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gan_ring.py"


def test_modes_are_counted() -> None:
    made = runpy.run_path(str(EXAMPLE))
    centres, covered = made["centres"](), made["covered"]
    assert covered(made["ring"](1, 1000, torch.Generator().manual_seed(0))[0]) == 8
    assert covered(centres[:3].repeat(100, 1)) == 3
    assert covered(0.5 * centres.repeat(100, 1)) == 0, "there is no mode inside the ring"
    assert covered(torch.cat([centres[:1].repeat(99, 1), centres[1:2]])) == 1, "one in a hundred is not enough"


def test_games_are_independent_of_each_other() -> None:
    """Losses are summed over the games, so that the gradient of a game does not depend on the others."""
    made = runpy.run_path(str(EXAMPLE))
    networks = made["Networks"](3, 2, 1, torch.Generator().manual_seed(0))
    points = torch.randn(3, 10, 2, generator=torch.Generator().manual_seed(1))
    networks(points).mean(dim=1).sum().backward()
    all_three = [p.grad.clone() for p in networks.parameters()]
    networks.zero_grad()
    networks(points)[1].mean(dim=0).sum().backward()
    for together, alone in zip(all_three, networks.parameters(), strict=True):
        assert torch.allclose(together[1], alone.grad[1], atol=1e-6) and not alone.grad[[0, 2]].any()


def test_the_quick_run_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "ring.png"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--quick", "--out", str(picture)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == ["50", "250", "2,500"]
