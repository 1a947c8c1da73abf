"""Hand-made files with a digest that fits get one clear error, whatever their header states."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpvision.errors import DataError
from dpvision.models import load_public
from dpvision.storage import safetensors

SOUND = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
CHANGES: dict[str, Any] = {
    "infinite": {"shape": [float("inf"), 3]},
    "negative": {"shape": [-2, -3]},
    "words": {"shape": ["2", "3"]},
    "half a byte": {"dtype": "F4"},
    "whole numbers": {"dtype": "I32"},
    "no kind": {"dtype": None},
    "far away": {"data_offsets": [0, 2**63]},
    "backwards": {"data_offsets": [8, 0]},
    "empty": {"shape": [0, 2**62], "data_offsets": [0, 0]},
}


def _written(path: Path, entry: str) -> Path:
    """A sealed file with one tensor "0.weight", whose entry is this JSON text."""
    body, ours = bytes(24), {"format": "dpvision-weights-1"}
    table = f'{{"0.weight": {entry}}}'
    try:
        covered = json.dumps([ours, json.loads(table)], sort_keys=True)
    except RecursionError:
        covered = ""
    ours["digest"] = hashlib.blake2b(covered.encode() + body, digest_size=20).hexdigest()
    head = f'{table[:-1]}, "__metadata__": {{"dpvision": {json.dumps(json.dumps(ours))}}}}}'.encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)
    return path


def test_a_sound_one_is_read(tmp_path: Path) -> None:
    """So the others are refused for what is wrong with them."""
    path = _written(tmp_path / "x.safetensors", json.dumps(SOUND))
    assert safetensors.load(path, {"0.weight": torch.zeros(2, 3)})[0]["0.weight"].shape == (2, 3)
    assert safetensors.read_header(path)["format"] == "dpvision-weights-1"


@pytest.mark.parametrize("change", CHANGES)
def test_impossible_tensors_are_refused(change: str, tmp_path: Path) -> None:
    path = _written(tmp_path / "x.safetensors", json.dumps({**SOUND, **CHANGES[change]}))
    with pytest.raises(DataError, match=r"x\.safetensors"):
        safetensors.load(path, {"0.weight": torch.zeros(2, 3)})
    with pytest.raises(DataError, match=r"x\.safetensors"):
        load_public(nn.Sequential(nn.Linear(3, 2, bias=False)), path)


def test_nesting_of_any_depth_is_refused(tmp_path: Path) -> None:
    """Somewhere below Python's limit a header can still be read and not be written again."""
    for depth in (*range(900, 1010), 100_000):
        entry = json.dumps(SOUND)[:-1] + ', "more": ' + "[" * depth + "]" * depth + "}"
        path = _written(tmp_path / "x.safetensors", entry)
        for read in (lambda path=path: safetensors.read(path), lambda path=path: safetensors.read_header(path)):
            try:
                read()
            except DataError:
                continue


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = _written(tmp_path / "x.safetensors", json.dumps(SOUND))
    with path.open("r+b") as file:
        file.truncate(safetensors.MAX_BYTES + 1)  # with a hole: it takes no room
    with pytest.raises(DataError, match="more than the 4,294,967,296 allowed"):
        safetensors.read(path)
