"""What people can call today: verbs with their options, recipes, networks, estimators and documented names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "surface.json"
API = HERE.parents[1] / "docs" / "api.md"


def verbs(app: Any, before: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Verb -> its options as they are typed."""
    results: dict[str, list[str]] = {}
    for name in app:
        if name.startswith("-"):
            continue
        words, command = (*before, name), app[name]
        if command.default_command is None:
            results |= verbs(command, words)
            continue
        options = {flag for argument in command.assemble_argument_collection() for flag in argument.names}
        results[" ".join(words)] = sorted(
            flag for flag in options if flag.startswith("--") and not flag.startswith("--no-")
        )
    return results


def documented() -> list[str]:
    """Names in the tables of docs/api.md, without the module they are in."""
    rows = [line.split("|")[1] for line in API.read_text().splitlines() if line.startswith("| `")]
    return sorted({name.rsplit(".", 1)[-1] for row in rows for name in re.findall(r"`([\w.]+)`", row)})


def surface() -> dict[str, Any]:
    import inspect

    import dpvision
    import dpvision.cli  # every verb
    from dpvision.cli.app import app

    names = {name: getattr(dpvision, name) for name in dpvision.__all__}
    estimators = {n: c for n, c in names.items() if hasattr(c, "fit")}
    return {
        "verbs": verbs(app),
        "recipes": _recipes(),
        "names": sorted(names),
        "estimators": {n: sorted(inspect.signature(c).parameters) for n, c in estimators.items()},
        "documented": documented(),
    }


def _recipes() -> list[str]:
    from dpvision.settings import recipes

    return sorted([*recipes.RECIPES, *recipes.RELEASES])


if __name__ == "__main__":
    KEPT.write_text(json.dumps(surface(), indent=1) + "\n")
