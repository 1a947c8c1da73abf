"""Warm-up learns, resumes with the same result, and private training starts from the whole network."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.data import identify, load
from dpvision.errors import ConfigError, DPVisionError
from dpvision.models import build, load_public
from dpvision.models.inputs import Inputs, accuracy
from dpvision.models.tasks import Task
from dpvision.public.batches import Source
from dpvision.public.warmup import CIFAR_10, CIFAR_100, WarmUp, WarmUpSettings, warm_up
from dpvision.storage import safetensors
from tests.public.words import Say, say
from tests.system.runs.commands import start, write_data
from tests.system.runs.stopping import until

__all__ = ["say"]
CLASSES = tuple("abcd")
TINY = WarmUpSettings(model="small-cnn", batch=8, epochs=3, augment=("crop", "flip", "cutmix"), optimiser="sgd")


def images(count: int = 24, *, seed: int = 0, name: str = "some") -> Source:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)
    return Source(name, pixels, np.arange(count, dtype=np.int64) % 4, f"{name} {seed}")


def weights(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def card(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text())


def test_it_learns_digits_from_a_public_part(tmp_path: Path, say: Say) -> None:
    """400 of the 1,437 training images are public; only this test uses the test split."""
    assert say("data", "split", "digits", "--public", 400, "--out", tmp_path / "parts")[0] == 0
    words = ("--model", "small-cnn", "--rho", 0.05, "--augment", "none", "--epochs", 30, "--batch", 40)
    public, out = tmp_path / "parts" / "public.npz", tmp_path / "warm"
    code, result, err = say("warm", public, *words, "--hold-out", 0.1, "--out", out)
    assert code == 0, err
    stated, digits = card(out), load("digits")
    model = build("small-cnn", (1, 8, 8), classes=10, seed=5)
    assert load_public(model, out / "weights.safetensors") == stated["digest"]
    assert digits.test is not None
    reached = accuracy(model, Inputs(digits.test), Task("classes", 10))
    assert reached >= 0.90
    assert stated["sources"][0]["images"] == 360 and stated["sources"][0]["accuracy"] > 0.95
    assert stated["held_out"]["images"] == 40 and abs(stated["held_out"]["accuracy"] - reached) < 0.15
    assert (
        stated["sources"][0]["digest"]
        == json.loads((tmp_path / "parts" / "split.json").read_text())["public"]["digest"]
    )
    assert "held out" in result and f"--pretrained {out}/weights.safetensors" in result
    losses = [loss for _, loss in stated["curve"]]
    assert len(losses) == 30 and losses[-1] < losses[0] / 5


@pytest.mark.parametrize("optimiser", ["sgd", "sam", "asam", "pgd"])
def test_a_warm_up_stopped_after_any_step_resumes_with_the_same_result(optimiser: str, tmp_path: Path) -> None:
    settings = replace(TINY, optimiser=optimiser, ascents=2, epochs=2)
    assert warm_up(settings, [images()], tmp_path / "straight", classes=CLASSES)
    for step in range(1, 6):
        out = tmp_path / str(step)
        assert not warm_up(settings, [images()], out, classes=CLASSES, stop=until(step))
        assert not (out / "card.json").exists()
        assert warm_up(settings, [images()], out, classes=CLASSES)
        assert weights(out) == weights(tmp_path / "straight")
        assert {**card(out), "seconds": 0} == {**card(tmp_path / "straight"), "seconds": 0}
        assert {p.name for p in out.iterdir()} == {"weights.safetensors", "card.json"}


def test_optimisers_and_seeds_differ(tmp_path: Path) -> None:
    """No two of these settings end with the same weights."""
    cases = [replace(TINY, optimiser=o, ascents=2) for o in ("sgd", "sam", "asam", "pgd")]
    cases += [replace(TINY, seed=1), replace(TINY, augment=()), replace(TINY, lr=0.01), replace(TINY, decay=0.1)]
    cases += [replace(TINY, momentum=0.5), replace(TINY, optimiser="sam", rho=0.2)]
    for number, settings in enumerate(cases):
        assert warm_up(settings, [images()], tmp_path / str(number), classes=CLASSES)
    tensors = [load_file(tmp_path / str(n) / "weights.safetensors")["0.weight"] for n in range(len(cases))]
    for i, one in enumerate(tensors):
        assert not any(torch.equal(one, other) for other in tensors[:i])


def test_a_run_resumes_with_the_same_settings_and_images_only(tmp_path: Path) -> None:
    assert not warm_up(TINY, [images()], tmp_path, classes=CLASSES, stop=until(2))
    others = [
        (replace(TINY, lr=0.5), [images()]),
        (TINY, [images(seed=1)]),
        (TINY, [images(), images(name="more")]),
        (replace(TINY, model="linear"), [images()]),
    ]
    for settings, sources in others:
        with pytest.raises(ConfigError, match="other settings or images"):
            warm_up(settings, sources, tmp_path, classes=CLASSES)
    assert warm_up(TINY, [images()], tmp_path, classes=CLASSES)
    with pytest.raises(ConfigError, match="finished"):
        warm_up(TINY, [images()], tmp_path, classes=CLASSES)


def test_several_sources_are_trained_on_together(tmp_path: Path) -> None:
    sources = [images(), images(40, seed=1, name="synthetic")]
    assert warm_up(replace(TINY, hold_out=0.17), sources, tmp_path, classes=CLASSES)
    stated = card(tmp_path)
    assert [(s["name"], s["images"]) for s in stated["sources"]] == [("some", 20), ("synthetic", 40)]
    assert stated["held_out"]["images"] == 4, "of the public part only"
    assert stated["steps"] == 3 * (60 // 8) and stated["images_seen"] == 8 * stated["steps"]
    assert stated["of_each_class"] == [15] * 4


def test_balanced_batches_have_as_many_public_images_as_others(tmp_path: Path) -> None:
    """16 public images and 48 others: each public image occurs three times in a pass, and held-out images never."""
    sources = [images(20), images(48, seed=1, name="synthetic")]
    settings = replace(TINY, hold_out=0.2, balance=True, epochs=1)
    state = WarmUp(settings, sources, classes=CLASSES)
    assert state.steps == 96 // 8
    seen: list[int] = []
    look = state._images
    state._images = lambda rows: seen.extend(rows.tolist()) or look(rows)  # type: ignore[assignment,func-returns-value]
    state._images.labels, state._images.shape = look.labels, look.shape  # type: ignore[attr-defined]
    for _ in range(state.steps):
        state.train_step()
    times = np.bincount(seen, minlength=68)
    assert sorted(times[:20]) == [0] * 4 + [3] * 16 and (times[20:] == 1).all()
    with pytest.raises(ConfigError, match=r"--balance also needs.*--also"):
        WarmUp(settings, sources[:1], classes=CLASSES)
    assert warm_up(settings, sources, tmp_path, classes=CLASSES)
    assert card(tmp_path)["sources"][0]["images"] == 16 and card(tmp_path)["balance"] is True


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("step", "text"),
        ("step", "-1"),
        ("step", "1" + "0" * 30),
        ("step", None),
        ("of", "[" * 20_000),
        ("of", None),
        ("format", "other"),
        ("seconds", "nan"),
        ("sum", "inf"),
        ("curve", "3"),
        ("curve", "[[1, NaN]]"),
    ],
)
def test_a_forged_state_is_one_clear_error(entry: str, value: str | None, tmp_path: Path) -> None:
    assert not warm_up(TINY, [images()], tmp_path, classes=CLASSES, stop=until(2))
    file = tmp_path / "state.safetensors"
    header = {k: v for k, v in safetensors.read(file).header.items() if k != "digest" and (k != entry or value)}
    file.write_bytes(safetensors.dump(load_file(file), header | ({entry: value} if value else {})))
    with pytest.raises(DPVisionError, match="Fix: "):
        warm_up(TINY, [images()], tmp_path, classes=CLASSES)
    assert not (tmp_path / "card.json").exists()


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    assert not warm_up(TINY, [images()], tmp_path, classes=CLASSES, stop=until(2))
    file = tmp_path / "state.safetensors"
    whole, header = file.read_bytes(), {k: v for k, v in safetensors.read(file).header.items() if k != "digest"}
    wrong = [whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"\x80\x04pickle"]
    wrong.append(safetensors.dump({n: t * float("nan") for n, t in load_file(file).items()}, header))
    wrong.append(safetensors.dump({n: t for n, t in load_file(file).items() if n != "model.0.weight"}, header))
    for data in wrong:
        file.write_bytes(data)
        with pytest.raises(DPVisionError, match=r"state\.safetensors"):
            warm_up(TINY, [images()], tmp_path, classes=CLASSES)
    file.write_bytes(whole)
    assert warm_up(TINY, [images()], tmp_path, classes=CLASSES)


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--lr", "1e30", "--model", "small-cnn"), 2, "a smaller --lr"),
        (("--lr", "1e38", "--model", "small-cnn", "--steps", 1), 2, "final loss on public images"),
        (("--optimiser", "adam"), 2, "adam"),
        (("--augment", "crop,flipp"), 2, "Did you mean 'flip'"),
        (("--model", "wrn-16-5"), 2, "Did you mean 'wrn-16-4'"),
        (("--batch", 0), 2, "batch is 0"),
        (("--hold-out", "1.5"), 2, "hold_out is 1.5"),
        (("--hold-out", "0.001"), 2, "hold-out"),
        (("--device", "nowhere"), 2, "device 'nowhere'"),
        (("--also", "missing.npz"), 3, "missing.npz: there is no such file"),
        (("--also", "digits"), 3, "digits"),
        (("--classes", 2), 3, "has the label 3"),
    ],
)
def test_an_impossible_request_is_one_clear_error(
    words: tuple[str, ...], code: int, reason: str, tmp_path: Path, say: Say
) -> None:
    data = write_data(tmp_path / "data.npz", images=40)
    got, _, err = say("warm", data, "--epochs", 5, *_with_model(words), "--out", tmp_path / "warm")
    assert got == code and reason in err and "Traceback" not in err, err
    assert not (tmp_path / "warm" / "card.json").exists()


def _with_model(words: tuple[str, ...]) -> tuple[str, ...]:
    return words if "--model" in words else ("--model", "linear", *words)


def test_bad_files_are_refused(tmp_path: Path, say: Say) -> None:
    whole = write_data(tmp_path / "data.npz", images=40).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-50])
    np.savez(tmp_path / "nan.npz", train_images=np.full((4, 8, 8), np.nan, np.float32), train_labels=np.arange(4))
    np.savez(tmp_path / "object.npz", train_images=np.array([None]), train_labels=np.arange(1))
    for name in ("cut.npz", "nan.npz", "object.npz"):
        code, _, err = say("warm", tmp_path / name, "--model", "linear", "--out", tmp_path / "warm")
        assert code == 3 and name in err, err
        code, _, err = say(
            "warm", tmp_path / "data.npz", "--also", tmp_path / name, "--model", "linear", "--out", tmp_path / "warm"
        )
        assert code == 3 and name in err, err
    assert not (tmp_path / "warm").exists()


def test_only_training_images_are_used(tmp_path: Path, say: Say) -> None:
    """A source with other test images gives the same bits."""
    data = write_data(tmp_path / "data.npz", images=40)
    with np.load(data) as file:
        arrays = dict(file)
    np.savez(tmp_path / "other.npz", **{**arrays, "test_images": 255 - arrays["test_images"]})
    for name in ("data", "other"):
        words = ("--model", "linear", "--epochs", 2, "--out", tmp_path / name)
        assert say("warm", tmp_path / f"{name}.npz", *words)[0] == 0
    assert load_file(tmp_path / "data" / "weights.safetensors")["1.weight"].abs().sum() > 0
    assert weights(tmp_path / "data") == weights(tmp_path / "other")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"of a run")
    with pytest.raises(ConfigError, match="has other files in it"):
        warm_up(TINY, [images()], tmp_path, classes=CLASSES)
    assert weights(tmp_path) == b"of a run"


def test_the_papers_settings() -> None:
    """Table 12 of Park et al. 2024."""
    for settings, batch, epochs, lr in ((CIFAR_10, 100, 100, 0.05), (CIFAR_100, 64, 200, 0.1)):
        assert (settings.batch, settings.epochs, settings.lr) == (batch, epochs, lr)
        assert (settings.momentum, settings.decay, settings.rho) == (0.9, 5e-4, 0.1)
        assert settings.model == "wrn-16-4" and settings.augment == ("crop", "flip", "cutout")
    assert CIFAR_10.total(50_000) == 50_000
    rates = [CIFAR_10.rate(step, 1000) for step in (0, 250, 500, 1000)]
    assert rates == pytest.approx([0.05, 0.05 * (1 + 0.5**0.5) / 2, 0.025, 0.0])


def test_a_killed_and_a_stopped_warm_up_resume(tmp_path: Path, say: Say) -> None:
    """Killed at random instants, then stopped by Ctrl-C and resumed, a warm-up has the bits of an uninterrupted one."""
    data, rng = write_data(tmp_path / "data.npz", images=40), random.Random(0)
    words = ("warm", data, "--model", "small-cnn", "--epochs", 50, "--batch", 10, "--save-every", 0)
    out, home = tmp_path / "warm", tmp_path / "home"
    code, _, err = say(*words, "--out", tmp_path / "straight")
    assert code == 0, err
    for interrupt in (signal.SIGKILL, signal.SIGINT):
        process = start(*words, "--out", out, home=home)
        before = _step(out)
        while process.poll() is None and _step(out) < before + rng.randint(3, 30):
            time.sleep(0.01)
        process.send_signal(interrupt)
        output, err = process.communicate(timeout=60)
        assert process.returncode == (130 if interrupt == signal.SIGINT else -9), err
        assert 0 < _step(out) < 200 and not (out / "card.json").exists()
    assert "run the same command again to continue" in output
    assert say(*words, "--out", out)[0] == 0
    assert weights(out) == weights(tmp_path / "straight")


def _step(folder: Path) -> int:
    return int(safetensors.read_header(folder / "state.safetensors").get("step", 0))


def test_private_training_starts_from_the_whole_network(tmp_path: Path, say: Say) -> None:
    """The head is loaded too: before its first step the private run classifies as the warm network does."""
    assert say("data", "split", "digits", "--public", 200, "--out", tmp_path / "parts")[0] == 0
    words = ("--model", "small-cnn", "--optimiser", "sgd", "--augment", "none", "--epochs", 15, "--batch", 20)
    assert say("warm", tmp_path / "parts" / "public.npz", *words, "--out", tmp_path / "warm")[0] == 0
    private, file = tmp_path / "parts" / "private.npz", tmp_path / "warm" / "weights.safetensors"
    data = load(private)
    model, cold = (build("small-cnn", (1, 8, 8), classes=10, seed=0) for _ in range(2))
    load_public(model, file)
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in load_file(file).items())
    assert data.test is not None
    warm, from_nothing = (accuracy(m, Inputs(data.test), Task("classes", len(data.classes))) for m in (model, cold))
    assert warm > 0.8 and from_nothing < 0.4
    words = ("--epsilon", 3, "--model", "small-cnn", "--batch", 60, "--steps", 5, "--release", "last", "--lr", "0.01")
    code, _, err = say("train", private, *words, "--pretrained", file, "--out", tmp_path / "run")
    assert code == 0, err
    reached = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy_last"]
    assert abs(reached - warm) < 0.1, "so few and small steps hardly move it"
    assert identify(load(tmp_path / "parts" / "public.npz").train)[1] == card(tmp_path / "warm")["sources"][0]["digest"]
