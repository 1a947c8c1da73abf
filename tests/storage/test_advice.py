"""A refusal advises `dpvision resume` only for a run that it can continue."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpvision.errors import ConfigError, DataError
from dpvision.released.model import load_model
from dpvision.released.report import card
from dpvision.storage.run_folder import Run, require_free


def _run(folder: Path, facts: dict[str, Any] | None) -> Run:
    (folder / "operator").mkdir(parents=True)
    if facts is not None:
        (folder / "operator" / "run.json").write_text(json.dumps(facts))
    return Run(folder)


@pytest.mark.parametrize(
    ("facts", "resumable"),
    [
        ({"complete": False, "data": "digits"}, True),
        ({"complete": False, "data": "/nowhere/arrays"}, False),
        ({"complete": True, "data": "digits"}, False),
        ({"complete": False, "data": "digits", "tuning": {}}, False),
        ({"complete": False, "data": "digits", "trial_of": "1"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_resume_is_advised_only_where_it_works(facts: dict[str, Any] | None, resumable: bool, tmp_path: Path) -> None:
    run = _run(tmp_path / "run", facts)
    messages = []
    with pytest.raises(ConfigError, match="choose another --out") as error:
        require_free(run.folder)
    messages.append(str(error.value))
    with pytest.raises(DataError, match="no released model") as missing:
        load_model(run.folder)
    messages.append(str(missing.value))
    if facts is not None and not facts.get("complete"):
        with pytest.raises(ConfigError, match="nothing to report") as unfinished:
            card(run, None)
        messages.append(str(unfinished.value))
    assert [f"`dpvision resume {run.folder}`" in text for text in messages] == [resumable] * len(messages)
