"""The public trainer resumes a stopped run with the same bits, and only in the run's own folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.trainer import Progress, Task, require_free, save, train, write_weights
from dpvision.storage import safetensors


class Walk(Task):
    """A random walk, each step of which is a function of its number and the current place."""

    name = "walk"

    def __init__(self, start: float = 0.0) -> None:
        self.start, self.place = start, torch.full((3,), start)

    def started_with(self) -> dict[str, dict[str, str]]:
        return {"another start": {"format": "walk-1", "start": repr(self.start)}}

    def tensors(self) -> dict[str, Tensor]:
        return {"place": self.place}

    def train_step(self) -> float:
        rng = torch.Generator().manual_seed(self.step)
        self.place.mul_(0.9).add_(torch.randn(3, generator=rng))
        self.step += 1
        return float(self.place.norm())

    def publish(self, folder: Path) -> None:
        write_weights(folder, self.tensors(), {"format": "walk-1"}, {"steps": self.step})


class Endless(Walk):
    extendable = True


def after(calls: int) -> Callable[[], bool]:
    asked = iter([False] * calls + [True])
    return lambda: next(asked)


@pytest.mark.parametrize("kind", [Walk, Endless])
@pytest.mark.parametrize("save_every", [0.0, 60.0])
def test_stopped_after_any_step_it_ends_with_the_same_bits(kind: type[Walk], save_every: float, tmp_path: Path) -> None:
    assert train(kind(), tmp_path / "straight", steps=5)
    for stopped in range(5):
        folder = tmp_path / str(stopped)
        assert not train(kind(), folder, steps=5, save_every=save_every, stop=after(stopped))
        assert [p.name for p in folder.iterdir()] == ["state.safetensors"]
        assert train(kind(), folder, steps=5)
        for name in ("weights.safetensors", "card.json"):
            assert (folder / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
        assert (folder / "state.safetensors").exists() == kind.extendable


def test_an_extendable_run_takes_more_steps_after_its_end(tmp_path: Path) -> None:
    seen: list[Progress] = []
    assert train(Endless(), tmp_path / "twice", steps=2)
    assert train(Endless(), tmp_path / "twice", steps=4, progress=seen.append)
    assert [(at.step, at.steps, at.done) for at in seen] == [(3, 4, 0.75), (4, 4, 1.0)]
    assert train(Endless(), tmp_path / "twice", steps=1), "nothing is left to do"
    assert train(Endless(), tmp_path / "once", steps=4)
    one, other = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("once", "twice"))
    assert one == other


def test_a_run_ends_after_its_seconds(tmp_path: Path) -> None:
    task = Walk()
    assert train(task, tmp_path, steps=1 << 53, seconds=0.05)
    assert task.step > 0 and task.seconds >= 0.05


def test_occupied_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("words")
    for folder, kind, reason in ((tmp_path, Walk, "has other files"), (tmp_path / "file", Walk, "is not a folder")):
        with pytest.raises(ConfigError, match=reason):
            require_free(folder, kind)
    assert train(Walk(), tmp_path / "done", steps=1) and train(Endless(), tmp_path / "on", steps=1)
    with pytest.raises(ConfigError, match="this walk is finished"):
        require_free(tmp_path / "done", Walk)
    for free in (tmp_path / "on", tmp_path / "new"):
        require_free(free, Endless)


def test_only_the_same_task_resumes(tmp_path: Path) -> None:
    assert not train(Walk(), tmp_path, steps=5, stop=after(2))
    with pytest.raises(ConfigError, match=r"was started with another start. Fix"):
        train(Walk(start=1.0), tmp_path, steps=5)
    with pytest.raises(DataError, match=r"not that of a walk.*step 2.*Fix"):
        train(Walk(), tmp_path, steps=1)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("start", None), ("format", "other"), ("step", None), ("step", "-1"), ("step", "text"), ("seconds", "nan")],
)
def test_a_state_made_by_hand_is_refused(entry: str, value: str | None, tmp_path: Path) -> None:
    save(Walk(), tmp_path)
    path = tmp_path / "state.safetensors"
    header = {k: v for k, v in safetensors.read(path).header.items() if k not in ("digest", entry)}
    path.write_bytes(safetensors.dump(load_file(path), header | ({entry: value} if value else {})))
    with pytest.raises((ConfigError, DataError), match="Fix: "):
        train(Walk(), tmp_path, steps=5)


def test_values_that_are_not_finite_are_neither_read_nor_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"step 0: the loss is nan. Fix: use a smaller --lr"):
        train(Walk(start=float("nan")), tmp_path / "one", steps=5)
    task = Walk()
    task.place.fill_(float("inf"))
    save(task, tmp_path / "other")
    with pytest.raises(DataError, match="not finite"):
        train(Walk(), tmp_path / "other", steps=5)
