"""The verbs of `dpvision synth`, as an operator calls them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpvision import data
from dpvision.cli import main
from tests.system.runs.commands import start

FIT = ("synth", "fit", "digits", "--size", "tiny", "--batch", 8, "--seed", 3)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """(exit code, output, errors) of one verb, in this process."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dpvision", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


def test_from_digits_to_a_data_set(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    edm, guide, out = tmp_path / "edm", tmp_path / "guide", tmp_path / "led.npz"
    code, output, error = run(*FIT, "--steps", 2, "--out", edm)
    assert code == 0 and "synth sample" in output, error
    short = ("--samples", 10, "--extractor-steps", 2, "--steps", 2, "--batch", 4, "--width", 8)
    code, output, error = run("synth", "guide", edm, "digits", *short, "--out", guide)
    assert code == 0 and "--guide" in output, error
    draw = ("synth", "sample", edm, "--count", 100, "--steps", 3, "--guide", guide, "--weight", 0.5, "--out", out)
    code, output, error = run(*draw)
    assert code == 0 and "led.png" in output, error
    assert data.load(out).train.images.shape == (100, 8, 8, 1)
    code, _, error = run(*draw)
    assert code == 2 and "already exists. Fix" in error


def test_ctrl_c_ends_with_130_and_the_same_command_resumes(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    edm = tmp_path / "edm"
    process = start(*FIT, "--steps", 100_000, "--out", edm, home=tmp_path)
    while not (edm / "state.safetensors").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 130 and "run the same command again to continue" in output, error
    code, _, error = run(*FIT, "--minutes", 0.0001, "--out", edm)
    assert code == 0 and (edm / "weights.safetensors").exists(), error


def test_refusals(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, _, error = run(*FIT, "--out", tmp_path / "edm")
    assert code == 2 and "--minutes" in error
    code, _, error = run("synth", "sample", tmp_path, "--count", 1, "--out", tmp_path / "s.npz")
    assert code == 3 and "synth fit" in error


def test_help_loads_no_torch() -> None:
    code = "import sys; from dpvision.cli.app import app; import dpvision.cli; app(['synth', 'fit', '--help']); "
    code += "sys.exit('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert output.returncode == 0 and "--minutes" in output.stdout, output.stderr
