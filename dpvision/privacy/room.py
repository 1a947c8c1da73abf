"""Refuse before anything is made what the ledger would refuse later."""

from __future__ import annotations

from typing import Any, Protocol

from dpvision.errors import ConfigError
from dpvision.privacy.events import Budget, Event
from dpvision.privacy.ledger import ledger_of


class Planned(Protocol):
    """What is going to be charged: a training or a release that was prepared."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def config(self) -> Any:
        """With epsilon, delta, budget and, where it may be another than an image, unit."""

    def event(self) -> Event: ...


def require_room(planned: Planned) -> None:
    """The budget is as it was, and the event fits into it."""
    require_room_for(planned.event(), planned.fingerprint, planned.config)


def require_room_for(event: Event, fingerprint: str, config: Any) -> None:
    """The same for an event on the account of a data set, with the settings that it is asked for."""
    ledger = ledger_of(fingerprint)
    if config.budget and ledger.exists() and ledger.account().budget != Budget(config.budget, config.delta):
        now = ledger.account().budget
        raise ConfigError(
            f"--budget {config.budget:g} at delta {config.delta:g}: the data set has a budget of epsilon "
            f"{now.epsilon:g} at delta {now.delta:g} since its first run. Fix: leave --budget out, or change it with "
            f"`dpvision ledger DATA --set-budget {config.budget:g}`."
        )
    budget = Budget(config.budget or config.epsilon, config.delta)
    ledger.require_room(event, budget, unit=getattr(config, "unit", "image"))
