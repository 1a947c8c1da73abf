"""`dpvision weights`, as it is typed: its examples, a kill in the middle, and weights that are found by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save
from torch import Tensor

from dpvision.models import build
from dpvision.private.training import train
from dpvision.released.report import card
from dpvision.settings.training import Config
from dpvision.storage.home import ledger_of
from dpvision.storage.weights import find, path_of, registry, store
from tests.storage.weights.server import COMMIT, Manners, sha256, wait_until
from tests.system.docs.examples import call, examples

EXAMPLES = examples()
# A process without huggingface_hub, whose own way of continuing is not under test here.
PLAIN = "import sys; sys.modules['huggingface_hub'] = None; from dpvision.cli import main; main()"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of the examples, without the digest and the size of a file that is not here."""
    entry = replace(registry.NETWORKS["dinov2-vits14"], sha256=None, size=None)
    monkeypatch.setitem(registry._BY_NETWORK, "dinov2-vits14", entry)


def _run(example: str, monkeypatch: pytest.MonkeyPatch) -> int:
    return call(example.split()[1:], monkeypatch)


def test_the_examples_run(
    address: str, small: None, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(EXAMPLES["weights where"][0], monkeypatch) == 2
    assert "Fix: run `dpvision weights get dinov2-vits14`" in capsys.readouterr().err
    assert _run(EXAMPLES["weights get"][0], monkeypatch) == 0
    text = capsys.readouterr().out
    path = own_home / "weights" / "dinov2-vits14.safetensors"
    assert f"downloaded {path}" in text and "recorded now; no digest is pinned" in text and "Apache-2.0" in text
    assert _run(EXAMPLES["weights where"][0], monkeypatch) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert _run(EXAMPLES["weights get"][0], monkeypatch) == 0
    text = capsys.readouterr().out
    assert f"checked {path}" in text and "as recorded when it was first downloaded" in text


def test_the_list_is_honest_about_digests(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(EXAMPLES["weights list"][0], monkeypatch) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    for name, entry in registry.NETWORKS.items():
        assert (f"pinned {entry.sha256[:8]}" if entry.sha256 else "unknown until the first get") in rows[name]
        assert entry.trained_on in text
    assert call(["weights", "list", "--json"], monkeypatch) == 0
    output = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert output.keys() == registry.NETWORKS.keys() and not any(entry["here"] for entry in output.values())
    assert output["dinov2-vits14"]["revision"] == registry.NETWORKS["dinov2-vits14"].revision


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["get", "dinov2-vits15"], 2, "Did you mean 'dinov2-vits14"),
        (["get", "timm:net"], 3, "torch.save or pickle"),
        (["get", "efficientnet-lite0"], 2, "docs/efficientnet-lite.md"),
    ],
)
def test_errors_are_one_message(
    address: str,
    manners: Manners,
    words: list[str],
    code: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manners.data = b"\x80\x02}q\x00(X\x06"
    assert call(["weights", *words], monkeypatch) == code
    text = capsys.readouterr().err
    assert reason in text and "Traceback" not in text


def test_killed_in_the_middle_the_same_command_continues(address: str, manners: Manners, own_home: Path) -> None:
    manners.pace = (50_000, 0.1)
    command, environment = [sys.executable, "-c", PLAIN, "weights", "get", "timm:net"], {**os.environ}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: any(p.stat().st_size >= 100_000 for p in (own_home / "weights").glob(".*.part")), 60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    entry = registry.entry_of("timm:net")
    assert not path_of(entry).exists() and store.record_of(entry) is None
    manners.pace = (1 << 20, 0.0)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert find("timm:net").read_bytes() == manners.data
    assert int((manners.seen[-1][2] or "bytes=0-").removeprefix("bytes=").removesuffix("-")) >= 100_000
    assert sha256(manners.data) in done.stdout and COMMIT in done.stdout


def _published(seed: int) -> bytes:
    """A file as it is published for vit-tiny, which stands in for a large network."""
    tensors: dict[str, Tensor] = {
        n: t for n, t in build("vit-tiny", (1, 8, 8), classes=10, seed=seed).state_dict().items() if "head" not in n
    }
    return save(tensors)


@pytest.fixture
def tiny(manners: Manners, monkeypatch: pytest.MonkeyPatch) -> str:
    manners.data = _published(5)
    size, digest = len(manners.data), sha256(manners.data)
    entry = replace(registry.NETWORKS["dinov2-vits14"], name="vit-tiny", sha256=digest, size=size, networks=())
    monkeypatch.setitem(registry._BY_NETWORK, "vit-tiny", entry)
    return "vit-tiny"


RELEASE = ["release", "digits", "--epsilon", "1", "--encoder", "vit-tiny", "--rows", "40"]
TRAIN = ["train", "digits", "--epsilon", "3", "--model", "vit-tiny", "--part", "head", "--steps", "2"]


def test_without_the_weights_the_message_is_the_one_command(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ([*RELEASE, "--dry-run"], [*RELEASE, "--weights", tiny], [*TRAIN, "--pretrained", tiny]):
        assert call(words, monkeypatch) == 2
        assert "Fix: run `dpvision weights get vit-tiny`" in capsys.readouterr().err


def test_a_release_finds_them_by_name_and_its_card_names_licence_and_origin(
    address: str, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = registry.entry_of(tiny)
    assert call(["weights", "get", tiny], monkeypatch) == 0
    assert call([*RELEASE, "--out", "made"], monkeypatch) == 0
    card = json.loads(Path("made/card.json").read_text())
    assert card["features"]["origin"] == entry.origin
    assert entry.licence in entry.origin and card["config"]["weights"] == "vit-tiny.safetensors"
    assert (
        entry.origin in Path("made/README.md").read_text() and str(tmp_path) not in Path("made/card.json").read_text()
    )
    # The same by path, and features for it, by name and without.
    for out, more in (("1", []), ("2", ["--weights", tiny]), ("3", ["--weights", str(find(tiny))])):
        words = ["features", "made", "digits", "--out", f"{out}.safetensors", *more]
        assert call(words, monkeypatch) == 0
    files = [Path(f"{n}.safetensors").read_bytes() for n in "123"]
    assert files[0] == files[1] == files[2] and entry.origin.encode() in files[0]


def test_a_run_finds_them_by_name_and_its_card_names_licence_and_origin(
    address: str, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = registry.entry_of(tiny)
    assert call(["weights", "get", tiny], monkeypatch) == 0
    assert call([*TRAIN, "--pretrained", tiny, "--out", "run"], monkeypatch) == 0
    card = json.loads(Path("run/card.json").read_text())
    assert card["public_inputs"]["pretrained"]["origin"] == entry.origin
    assert card["public_inputs"]["pretrained"]["licence"] == entry.licence
    text = Path("run/card.md").read_text()
    assert f"licence: {entry.licence}" in text and "LVD-142M" in text


@pytest.mark.parametrize("began", ["unknown", "known", "with origin in its names"])
def test_a_charged_run_resumes_when_other_facts_are_known_about_its_weights(
    began: str, address: str, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are for the card; what identifies the weights is their digest."""
    entry = registry.entry_of(tiny)
    known = {"origin": entry.origin, "licence": entry.licence}
    file = tmp_path / "vit-tiny.safetensors"
    file.write_bytes(_published(5))
    if began != "unknown":
        assert call(["weights", "get", tiny], monkeypatch) == 0
    config = Config(epsilon=3.0, batch=20, steps=4, model="vit-tiny", part="head", budget=1e4, checkpoint_every=1)
    prepared = train.prepare("digits", replace(config, pretrained=str(file)))
    run = train.begin(prepared, tmp_path / "run")
    if began == "with origin in its names":  # as some runs of version 0.2.0 did
        facts = {key: value for key, value in run.facts().items() if key != "public_stated"}
        run.write_facts({**facts, "public": {"pretrained": {**facts["public"]["pretrained"], **known}}})
    asked = iter([False] * 2 + [True])
    assert not train.proceed(run, prepared, stop=lambda: next(asked)).complete
    if began == "unknown":
        assert call(["weights", "get", tiny], monkeypatch) == 0
    else:
        monkeypatch.setitem(registry._BY_NETWORK, tiny, replace(entry, architecture="in other words"))
    assert train.proceed(run, train.reopen(run)).complete
    account = ledger_of(prepared.fingerprint).account()
    assert len(account.charges) == 1
    stated = card(run, account)["public_inputs"]["pretrained"]
    assert {key: stated[key] for key in ("origin", "licence") if key in stated} == ({} if began == "unknown" else known)


def test_a_settings_file_may_name_them(
    address: str, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["weights", "get", tiny], monkeypatch) == 0
    Path("settings.toml").write_text(f'pretrained = "{tiny}"\nepsilon = 3.0\nmodel = "vit-tiny"\npart = "head"\n')
    assert call(["train", "digits", "--config", "settings.toml", "--dry-run"], monkeypatch) == 0
    assert "vit-tiny.safetensors" in capsys.readouterr().out


def test_a_file_with_the_name_is_a_path_as_before(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(tiny).write_bytes(_published(6))
    assert call([*TRAIN, "--pretrained", tiny, "--dry-run"], monkeypatch) == 0


def test_weights_that_were_changed_on_the_disk_are_refused(
    address: str, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["weights", "get", tiny], monkeypatch) == 0
    find(tiny).write_bytes(_published(6))
    for words in (RELEASE, [*TRAIN, "--pretrained", tiny]):
        assert call([*words, "--out", "made"], monkeypatch) == 3
        assert "is not the file that was verified" in capsys.readouterr().err
    assert not Path("made").exists()


def test_pixels_still_take_no_weights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(
        ["release", "digits", "--epsilon", "1", "--encoder", "pixels", "--weights", "x", "--dry-run"], monkeypatch
    )
