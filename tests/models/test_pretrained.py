"""Public weights that fit are loaded; others are refused by name, and the model is unchanged."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpvision.errors import DataError
from dpvision.models import build, load_public

SHAPE = (1, 8, 8)


def _model(classes: int = 10, seed: int = 0) -> nn.Module:
    return build("vit-tiny", SHAPE, classes=classes, seed=seed)


def _state(**options: int) -> dict[str, Tensor]:
    model = _model(**options)
    with torch.no_grad():
        model.head.weight.normal_()
    return {n: t.clone() for n, t in model.state_dict().items()}


def _same(model: nn.Module, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(t, state[n]) for n, t in model.state_dict().items())


def test_all_tensors_are_loaded_and_the_digest_is_of_the_file(tmp_path: Path) -> None:
    state, model, path = _state(seed=1), _model(), tmp_path / "w.safetensors"
    save_file({**state, "mask_token": torch.zeros(1, 64)}, path)
    digest = load_public(model, path)
    assert _same(model, state) and digest == hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(tmp_path: Path, kind: torch.dtype) -> None:
    state, model = _state(seed=1), _model()
    save_file({n: t.to(kind) for n, t in state.items()}, tmp_path / "w.safetensors")
    load_public(model, str(tmp_path / "w.safetensors"))
    assert _same(model, {n: t.to(kind).float() for n, t in state.items()})


@pytest.mark.parametrize("change", ["no head", "no bias", "other classes"])
def test_the_head_may_be_missing_or_another(tmp_path: Path, change: str) -> None:
    state, model = _state(seed=1, classes=3 if change == "other classes" else 10), _model()
    drop = {"no head": ("head.weight", "head.bias"), "no bias": ("head.bias",), "other classes": ()}[change]
    save_file({n: t for n, t in state.items() if n not in drop}, tmp_path / "w.safetensors")
    load_public(model, tmp_path / "w.safetensors")
    own = _model().state_dict()
    assert _same(model, {**state, "head.weight": own["head.weight"], "head.bias": own["head.bias"]})


def _without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {n: t for n, t in state.items() if n != name}


def _with(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {**state, name: tensor}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without("norm.weight"), "'norm.weight' of the model is missing"),
        (_with("blocks.2.norm1.weight", torch.zeros(64)), "'blocks.2.norm1.weight' .* is not in the model"),
        (_with("pos_embed", torch.zeros(1, 6, 64)), r"'pos_embed' is \(1, 6, 64\); in the model it is \(1, 5, 64\)"),
        (_with("norm.bias", torch.zeros(1, 64)), "'norm.bias' is"),  # would broadcast
        (_with("head.weight", torch.zeros(10, 32)), "'head.weight' is"),
        (_with("norm.bias", torch.zeros(64, dtype=torch.int64)), "int64; in the model it is torch.float32"),
        (_with("norm.bias", torch.full((64,), float("nan"))), "not finite"),
        (lambda state: {}, "is missing"),
    ],
)
def test_other_tensors_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], reason: str
) -> None:
    model, path = _model(), tmp_path / "w.safetensors"
    save_file(change(_state(seed=1)), path)
    with pytest.raises(DataError, match=reason) as caught:
        load_public(model, path)
    assert str(caught.value).startswith(str(path)) and "Fix: " in str(caught.value)
    assert _same(model, _model().state_dict())


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, str]]:
        return Path.write_text, (Path("pickle-was-run"), "yes")  # type: ignore[return-value]


def _header(table: object, body: bytes = b"") -> bytes:
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + body


def _hostile(sound: bytes) -> dict[str, bytes]:
    entry = {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}
    return {
        "empty": b"",
        "seven bytes": sound[:7],
        "header cut": sound[:100],
        "cut": sound[:-1],
        "longer": sound + b"\0",
        "huge header": (1 << 62).to_bytes(8, "little") + sound[8:],
        "negative header": b"\xff" * 8 + sound[8:],
        "no json": (4).to_bytes(8, "little") + b"\xff\xfe\x00{",
        "not a table": _header([1, 2]),
        "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
        "huge shape": _header({"norm.bias": {**entry, "shape": [1 << 62, 1 << 62]}}, bytes(256)),
        "outside": _header({"norm.bias": {**entry, "data_offsets": [0, 1 << 40]}}, bytes(256)),
        "backwards": _header({"norm.bias": {**entry, "data_offsets": [256, 0]}}, bytes(256)),
        "overlap": _header({"norm.bias": entry, "norm.weight": entry}, bytes(256)),
        "unknown kind": _header({"norm.bias": {**entry, "dtype": "F3"}}, bytes(256)),
        "a pickle": pickle.dumps({"norm.bias": _Bomb()}),
        "a zip": b"PK\x03\x04" + bytes(500),
    }


@pytest.mark.parametrize("case", sorted(_hostile(b"")))
def test_hostile_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    path, model = tmp_path / "w.safetensors", _model()
    save_file(_state(seed=1), path)
    path.write_bytes(_hostile(path.read_bytes())[case])
    with pytest.raises(DataError, match=r"not a valid safetensors file.*Fix: ") as caught:
        load_public(model, path)
    assert str(caught.value).startswith(str(path))
    assert _same(model, _model().state_dict()) and not Path("pickle-was-run").exists()


def test_missing_and_too_large_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataError, match=r"no such file.*Fix: "):
            load_public(_model(), path)
    large = tmp_path / "large.safetensors"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on disk; reading it would take all memory
    with pytest.raises(DataError, match=r"weights of this model \(it has .* bytes, more than the"):
        load_public(_model(), large)


def test_counters_of_a_published_network_are_loaded_unchanged(tmp_path: Path) -> None:
    """A frozen BatchNorm, as nearly every published network has, counts its batches in whole numbers."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    state = {**model.state_dict(), "1.num_batches_tracked": torch.tensor(7), "1.running_mean": torch.full((4,), 0.5)}
    save_file(state, tmp_path / "public.safetensors")
    load_public(model, tmp_path / "public.safetensors")
    assert model.state_dict()["1.num_batches_tracked"] == 7 and bool(
        (model.state_dict()["1.running_mean"] == 0.5).all()
    )
