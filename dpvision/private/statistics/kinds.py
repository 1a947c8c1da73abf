"""What each kind of release does to rows: a new one is a file with a mechanism, named here and in settings/release.py.

moments     moments.py: one noisy sum, and rows that are drawn from it
mixtures    mixtures.py: rows that are noisy means of a few records
others      baselines/: synthetic rows by published methods
"""

from __future__ import annotations

from collections.abc import Callable

from dpvision.core.rows import Rows
from dpvision.private.statistics import mixtures, moments
from dpvision.private.statistics.baselines import synthesis
from dpvision.private.statistics.mechanism import Mechanism
from dpvision.settings.release import Release

MECHANISMS: dict[str, Callable[[Rows, Release], Mechanism]] = {
    "moments": moments.of_settings,
    "mixtures": mixtures.of_settings,
    "merf": synthesis.of_settings,
    "hermite": synthesis.of_settings,
    "p3gm": synthesis.of_settings,
}


def mechanism_of(rows: Rows, config: Release) -> Mechanism:
    """What complete settings do to rows."""
    return MECHANISMS[config.kind](rows, config)
