"""The verbs of `dpvision synth`, as an operator calls them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from dpvision import data
from tests.guarantees.commands import run, start

FIT = ("synth", "fit", "digits", "--size", "tiny", "--batch", 8, "--seed", 3)


def test_from_digits_to_a_data_set(tmp_path: Path) -> None:
    edm, guide, out = tmp_path / "edm", tmp_path / "guide", tmp_path / "led.npz"
    code, said, error = run(*FIT, "--steps", 2, "--out", edm, home=tmp_path)
    assert code == 0 and "synth sample" in said, error
    short = ("--samples", 10, "--extractor-steps", 2, "--steps", 2, "--batch", 4, "--width", 8)
    code, said, error = run("synth", "guide", edm, "digits", *short, "--out", guide, home=tmp_path)
    assert code == 0 and "--guide" in said, error
    draw = ("synth", "sample", edm, "--count", 100, "--steps", 3, "--guide", guide, "--weight", 0.5, "--out", out)
    code, said, error = run(*draw, home=tmp_path)
    assert code == 0 and "led.png" in said, error
    assert data.load(out).train.images.shape == (100, 8, 8, 1)
    code, _, error = run(*draw, home=tmp_path)
    assert code == 2 and "is there. Fix" in error


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(tmp_path: Path) -> None:
    edm = tmp_path / "edm"
    process = start(*FIT, "--steps", 100_000, "--out", edm, home=tmp_path)
    while not (edm / "state.safetensors").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "go on with the same command" in said, error
    code, _, error = run(*FIT, "--minutes", 0.0001, "--out", edm, home=tmp_path)
    assert code == 0 and (edm / "weights.safetensors").exists(), error


def test_refusals(tmp_path: Path) -> None:
    code, _, error = run(*FIT, "--out", tmp_path / "edm", home=tmp_path)
    assert code == 2 and "--minutes" in error
    code, _, error = run("synth", "sample", tmp_path, "--count", 1, "--out", tmp_path / "s.npz", home=tmp_path)
    assert code == 3 and "synth fit" in error
