"""Small releases of scikit-learn's digits: pixels, few directions, few random images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpvision.private.features import public_map
from dpvision.private.statistics.baselines.kernels import Hermite, Merf
from dpvision.private.statistics.baselines.synthesis import METHODS
from dpvision.private.statistics.release import make, prepare
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import Release, with_changes

RANK = 20
IMAGES = 200  # random images behind a map
# Published methods whose networks are fitted to the noisy sums in a few steps: for tests of all but their accuracy.
FEW_STEPS = METHODS | {"merf": partial(Merf, steps=20), "hermite": partial(Hermite, steps=20)}


def small(recipe: str, **values: Any) -> Release:
    """The recipe at epsilon 8, with features that take no time."""
    features = {} if release_recipe(recipe).encoder == "pixels" else {"encoder": "pixels", "rank": RANK}
    rows = {"rows": 600} if recipe == "moments" else {}
    return with_changes(release_recipe(recipe), {"epsilon": 8.0, **features, **rows, **values})


def made(out: Path, settings: Release, *, source: str = "digits", **named: Any) -> dict[str, Any]:
    return make(prepare(source, settings), out, **named)


@contextmanager
def sharing(maps: Path, home: Path) -> Iterator[None]:
    """A new home folder that shares maps and features, which nothing here depends on, with all tests."""
    home.mkdir(parents=True, exist_ok=True)
    for name in ("priors", "features"):
        (maps / name).mkdir(exist_ok=True)
        (home / name).symlink_to(maps / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPVISION_HOME", str(home))
        patch.setattr(public_map, "IMAGES", IMAGES)
        yield


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
