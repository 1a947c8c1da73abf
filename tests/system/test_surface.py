"""Whatever people could call stays: surface.json is the list, made before the package was laid out by zones.

A name that is withdrawn on purpose is taken out of the list, with an entry in LOG.md; `python -m tests.system.surface`
writes the list again after something was added.
"""

from __future__ import annotations

import importlib
import json
import re

import pytest

from tests.system.surface import API, KEPT, surface

BEFORE = json.loads(KEPT.read_text())
NOW = surface()


@pytest.mark.parametrize("kind", ["recipes", "names", "documented"])
def test_every_name_is_still_there(kind: str) -> None:
    assert set(BEFORE[kind]) <= set(NOW[kind])


@pytest.mark.parametrize("kind", ["verbs", "estimators"])
def test_every_verb_and_estimator_takes_what_it_took(kind: str) -> None:
    missing = {name: sorted(set(before) - set(NOW[kind].get(name, ()))) for name, before in BEFORE[kind].items()}
    assert set(BEFORE[kind]) <= set(NOW[kind])
    assert not {name: options for name, options in missing.items() if options}


@pytest.mark.parametrize("place", re.findall(r"^::: ([\w.]+)$", API.read_text(), re.MULTILINE))
def test_documented_places_exist(place: str) -> None:
    module, name = place.rsplit(".", 1)
    assert getattr(importlib.import_module(module), name) is not None
