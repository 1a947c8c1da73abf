"""The mean of the features in the first step, then the head: the noise that was charged, and nothing else moves."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.core.events import PoissonGaussian
from dpvision.errors import ConfigError, DataError
from dpvision.models import Featured, build, load_public, train_only
from dpvision.private.engine import ClippedSum
from dpvision.private.training import train
from dpvision.private.training.network import phases
from dpvision.private.training.state import State
from dpvision.public import dictionary
from dpvision.released.report import card, tables
from dpvision.settings.recipes import recipe
from dpvision.settings.training import Config, merge
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.system.docs.examples import call
from tests.system.runs.commands import run as command
from tests.system.runs.stopping import until

SETTINGS = Config(
    model="patches-256", part="centred-head", epsilon=8.0, full_batch=True, steps=6, lr=1.0, momentum=0.9, ema=0.5
)


@pytest.fixture(autouse=True)
def quick_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones, of fewer images."""
    monkeypatch.setattr(dictionary.DictionarySettings, "__init__", _with_fewer(dictionary.DictionarySettings.__init__))


def _with_fewer(init: Any) -> Any:
    return lambda self, model, shape, **rest: init(self, model, shape, **{"images": 40, "patches": 2000, **rest})


@pytest.fixture
def data(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = (rng.random((40, 12, 12, 3)) * 100 + 100 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "data.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return str(tmp_path / "data.npz")


def _begin(data: str, folder: Path, **changes: Any) -> tuple[run_folder.Run, train.Prepared]:
    prepared = train.prepare(data, replace(SETTINGS, **changes))
    return train.begin(prepared, folder), prepared


def _centre_and_head(
    run: run_folder.Run, prepared: train.Prepared, of: str = "weights"
) -> tuple[torch.Tensor, torch.Tensor]:
    vector = getattr(State.load(run.state, prepared.network.build()), of)
    return vector[:4608], vector[4608:]


@pytest.mark.parametrize(("clip", "style"), [(1.0, "flat"), (0.1, "flat"), (3.0, "flat"), (0.5, "automatic")])
def test_the_first_step_is_the_mean_with_the_noise_that_was_charged(
    clip: float, style: str, data: str, tmp_path: Path
) -> None:
    run, prepared = _begin(data, tmp_path / "run", clip=clip, clip_style=style)
    train.proceed(run, prepared, stop=until(1))
    centre, head = _centre_and_head(run, prepared)
    model = prepared.network.build()
    rows = prepared.network.load_or_compute_inputs(prepared.data.train, model)(slice(0, 40))
    error, sigma = centre - rows.mean(0), prepared.config.sigma or 0
    scale = max(1.0, clip) if style == "flat" else 1.0  # of the noise, where C is longer than a row
    assert error.std().item() == pytest.approx(scale * sigma / 40, rel=0.06)
    assert abs(error.mean().item()) < 5 * scale * sigma / 40 / 64
    assert not head.any()


def test_later_steps_leave_the_mean_as_it_is(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(1))
    first, _ = _centre_and_head(run, prepared)
    train.proceed(run, prepared)
    for of in ("weights", "ema"):
        last, head = _centre_and_head(run, prepared, of)
        assert torch.allclose(first, last, rtol=1e-5, atol=0) and bool(head.any())
    assert torch.equal(first, _centre_and_head(run, prepared)[0])


def test_one_event_and_one_charge(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared)
    charges = ledger_of(prepared.fingerprint).account().charges
    assert [c.event for c in charges] == [PoissonGaussian(1.0, prepared.config.sigma or 0, 6)]


@pytest.mark.parametrize("clip", [1.0, 0.1])
def test_one_image_moves_the_sum_by_the_clipping_norm_at_most(clip: float, data: str) -> None:
    prepared = train.prepare(data, replace(SETTINGS, clip=clip))
    rows = prepared.network.load_or_compute_inputs(prepared.data.train, prepared.network.build())(slice(0, 40))
    rows[3] *= 1e4
    rows[4, 0] = float("nan")
    for phase in phases(prepared.network):
        total = ClippedSum(phase.learner, phase.loss, clip=clip, one_view=True)
        labels = torch.arange(40) % 2
        whole = total(rows, labels, [1] * 40)
        for left_out in (0, 3, 4):
            others = [i for i in range(40) if i != left_out]
            moved = (whole - total(rows[others], labels[others], [1] * 39)).norm().item()
            assert moved <= clip * (1 + 1e-6) and (moved > 0) == (left_out != 4)


@pytest.mark.parametrize("where", [1, 2])
def test_stopping_around_the_switch_changes_no_bit(where: int, data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    shutil.copytree(run.folder, tmp_path / "copy")
    (key,) = (tmp_path / "home" / "keys").glob("*.key")
    secret = key.read_bytes()
    train.proceed(run, prepared)
    key.write_bytes(secret)
    copy = run_folder.Run(tmp_path / "copy")
    train.proceed(copy, train.reopen(copy), stop=until(where))
    train.proceed(copy, train.reopen(copy))
    assert run.weights.read_bytes() == copy.weights.read_bytes()
    assert len(ledger_of(prepared.fingerprint).account().charges) == 1


@pytest.mark.parametrize("rows", [[0, 1, 2], [5], [0, 2, 1, 3], [7, 6, 5], [3, 3], []])
def test_rows_come_in_the_order_asked_for(rows: list[int], data: str) -> None:
    prepared = train.prepare(data, SETTINGS)
    inputs = prepared.network.load_or_compute_inputs(prepared.data.train, prepared.network.build())
    assert torch.equal(inputs(np.array(rows, dtype=np.int64)), inputs(slice(0, 40))[rows])


def test_rows_less_their_mean_are_made_once_as_the_network_makes_them(data: str) -> None:
    prepared = train.prepare(data, SETTINGS)
    model = prepared.network.build()
    assert isinstance(model, Featured) and isinstance(model.rest, torch.nn.Sequential)
    inputs, centred = prepared.network.load_or_compute_inputs(prepared.data.train, model), model.rest[0]
    with torch.no_grad():
        centred.centre.copy_(torch.randn(4608) / 68)
        assert torch.allclose(inputs.through(centred)(slice(0, 40)), centred(inputs(slice(0, 40))), atol=1e-7)


def test_patches_bring_their_prior(data: str, tmp_path: Path) -> None:
    prepared = train.prepare(data, SETTINGS)
    assert prepared.config.prior == "patches" and prepared.config.model == "patches-256"
    assert replace(SETTINGS, model=None, prior="patches").complete(40).model == "patches-1024"
    assert prepared.public.names["prior"]["file"] == "patches-256 of dead-leaves-mixed, seed 0"
    assert prepared.config.pretrained is None
    path = Path(prepared.public.weights or "")
    assert path.parent.parent == tmp_path / "home" / "priors"
    loaded = build("patches-256", (3, 12, 12), classes=2, seed=0)
    assert load_public(loaded, path) == prepared.public.names["prior"]["digest"]
    mine = prepared.network.build().state_dict()
    assert all(torch.equal(t, mine[n]) for n, t in loaded.state_dict().items() if n.startswith("prefix."))


def test_the_plan_states_that_the_predicted_time_excludes_the_prior(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", data, "--epsilon", "8", "--recipe", "patches", "--model", "patches-256", "--dry-run"]
    for built in (r"was built in \d+ s and", "was built earlier and"):
        assert call(words, monkeypatch) == 0
        out = capsys.readouterr().out
        assert re.search(rf"time +about .* at its current load, not including the prior, which {built} is cached", out)
    assert call([*words[:4], "--model", "linear", "--dry-run"], monkeypatch) == 0
    assert "the prior" not in capsys.readouterr().out


def test_what_lies_where_the_dictionary_should_be_is_not_trusted(data: str, tmp_path: Path) -> None:
    """Weights of a private run there would lose their event, and damage would go unseen."""
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared)
    path = Path(prepared.public.weights or "")
    good = path.read_bytes()
    tensors, header = load_file(path), {k: v for k, v in safetensors.read(path).header.items() if k != "digest"}
    with_centre = {**tensors, "rest.0.centre": torch.ones(4608)}
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    for wrong in (
        run.weights.read_bytes(),
        flipped,
        safetensors.dump(with_centre, header),
        safetensors.dump(tensors, header | {"settings": "other"}),
        b"",
    ):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="Fix: remove the file"):
            train.prepare(data, SETTINGS)
    path.unlink()
    train.prepare(data, SETTINGS)
    assert path.read_bytes() == good


def test_a_second_training_learns_the_mean_anew(data: str, tmp_path: Path) -> None:
    """Also where the weights to start from have one."""
    run, prepared = _begin(data, tmp_path / "run", sigma=0.01, budget=1e9)
    train.proceed(run, prepared)
    again = train.prepare(data, replace(SETTINGS, pretrained=str(run.weights), sigma=0.01, budget=1e9))
    assert again.public.earlier_events and again.config.prior is None
    second = train.begin(again, tmp_path / "second")
    train.proceed(second, again, stop=until(1))
    rows = again.network.load_or_compute_inputs(again.data.train, again.network.build())(slice(0, 40))
    assert torch.allclose(_centre_and_head(second, again)[0], rows.mean(0), atol=2e-3)


def test_one_start_and_one_rate() -> None:
    with pytest.raises(ConfigError, match="starts from one of them"):
        replace(SETTINGS, prior="patches", pretrained="file")
    given = merge(recipe("patches"), {"pretrained": "file"}, source="test")
    assert given.prior is None and given.complete(100).model == "patches-1024"
    with pytest.raises(ConfigError, match="both set the learning rate"):
        merge(recipe("patches"), {"lr": 1.0, "final_noise": 0.5}, source="test")
    assert merge(recipe("patches"), {"batch": 10}, source="test").complete(100).batch == 10


def test_the_card_tells_of_the_mean_and_of_the_dictionary(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared)
    made = card(run, ledger_of(prepared.fingerprint).account())
    assert set(made["public_inputs"]) == {"prior"} and "pretrained" not in made["config"]
    start = "The initial weights are patches-256 of dead-leaves-mixed, seed 0: dpvision built them from random images"
    assert any(start in text for text in made["not_covered"])
    assert ("of these, for the mean of the features", "1, the first") in tables.overview(made)


def test_what_has_no_mean_is_refused(data: str) -> None:
    with pytest.raises(ConfigError, match="does not subtract the mean"):
        train.prepare(data, replace(SETTINGS, model="small-cnn"))
    with pytest.raises(ConfigError, match="the first computes the mean"):
        replace(SETTINGS, steps=1)
    with pytest.raises(ConfigError, match="the first computes the mean"):
        replace(SETTINGS, augment=("flip",))
    with pytest.raises(ConfigError, match="part is 'centre'"):
        replace(SETTINGS, part="centre")
    with pytest.raises(ConfigError, match="prior is 'leaves'"):
        replace(SETTINGS, prior="leaves")


def test_all_of_it_is_the_head(data: str) -> None:
    model = build("patches-256", (3, 12, 12), classes=2, seed=0)
    for part, names in (
        ("all", ["rest.1.weight"]),
        ("head", ["rest.1.weight"]),
        ("centre", ["rest.0.centre"]),
        ("centred-head", ["rest.0.centre", "rest.1.weight"]),
    ):
        train_only(model, part)
        assert [n for n, p in model.named_parameters() if p.requires_grad] == names


def test_the_released_weights_predict(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run", epsilon=50.0, steps=30)
    train.proceed(run, prepared)
    code, out, err = command("predict", run.folder, data, "--out", tmp_path / "found.csv", home=tmp_path / "home")
    assert code == 0, err + out
    content = [line.split(",")[1] for line in (tmp_path / "found.csv").read_text().splitlines()[1:]]
    model = prepared.network.build()
    load_public(model, run.weights)
    images = torch.from_numpy(np.load(data)["train_images"]).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        assert content == [str(k) for k in model(images).argmax(1).tolist()]


def test_the_rate_follows_from_the_noise() -> None:
    """With every public number it is what leaves 0.9 in a weight; a rate that is given wins."""
    for n, epsilon in ((50_000, 1.0), (7_007, 4.0)):
        config = replace(recipe("patches"), epsilon=epsilon).complete(n)
        noise = config.lr * (config.sigma or 0) / n  # of one step, which later ones repeat by momentum
        results = [noise * sum(0.8**later for later in range(41 - step)) for step in range(41)]
        assert 0.8 < np.sqrt(np.square(results).sum()) < 0.9
        assert config.final_noise is None and config.lr == config.complete(n).lr
    assert merge(recipe("patches"), {"lr": 5.0}, source="test").complete(50_000).lr == 5.0
