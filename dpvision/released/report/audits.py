"""What audits of a run or a release found, from its audit.json: lower bounds beside the epsilon that is proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpvision.audit import audit_file
from dpvision.core import accountant
from dpvision.core.events import Event
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError
from dpvision.released.report.guarantee import delta_of
from dpvision.released.report.numbers import percent
from dpvision.settings.training import Config

SECTIONS = {
    "mechanism": "audit by canaries in this mechanism",
    "one_run": "audit by canaries in this very run",
}
# What a card states of each.
FIGURES = ("epsilon_at_least", "confidence", "canaries", "refuted")

# On a picture.
SHORT = {"mechanism": "canaries in this mechanism", "one_run": "canaries in this very run"}


def of_run(folder: Path, event: Event, config: Config) -> dict[str, dict[str, Any]]:
    """All of a run's audit.json, held against its own event and settings; nothing where no audit was made."""
    if not (folder / audit_file.FILE).exists():
        return {}
    if not (config.batch and config.n and config.steps and config.sigma):
        raise ConfigError("config.toml: batch, n, steps and sigma must be there; those of a finished run are.")
    # Where settings changed on the way, an audit's runs have the last ones in all steps: that claims less, or more.
    last = PoissonSampler(config.batch, config.n, config.steps).event(config.sigma)
    proved = accountant.epsilon(event, delta_of(event, config.delta))
    tested = accountant.epsilon(last, config.delta)
    return audit_file.read_and_judge(folder, proved=proved, tested=tested, delta=config.delta)


def of_release(folder: Path, event: Event, delta: float) -> dict[str, dict[str, Any]]:
    """The same of a release, which has one mechanism; no canaries are carried in it."""
    if not (folder / audit_file.FILE).exists():
        return {}
    proved = accountant.epsilon(event, delta)
    found = audit_file.read_and_judge(folder, proved=proved, tested=proved, delta=delta)
    return {name: told for name, told in found.items() if name == "mechanism"}


def on_card(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """What a card states of them, and no more; None where no audit was made."""
    stated = {name: {figure: found[name][figure] for figure in FIGURES} for name in SECTIONS if name in found}
    return stated or None


def rows(card: dict[str, Any]) -> list[tuple[str, ...]]:
    """For the table of figures."""
    found: list[tuple[str, ...]] = []
    canaries = card["config"].get("canaries", 0)
    if canaries:
        found.append(
            (
                "canaries in the training",
                f"{canaries:,} units that are no one's, each put in by a secret coin; not counted in the number of "
                f"{card['unit']}s; they cost some accuracy",
            )
        )
    for name, one in (card.get("audit") or {}).items():
        verdict = "REFUTED: more than the claim allows" if one["refuted"] else "not refuted"
        told = f"epsilon at least {one['epsilon_at_least']:.3f} with {percent(one['confidence'])} confidence"
        found.append((SECTIONS[name], f"{told}, {one['canaries']:,} canaries; {verdict}"))
    return found
