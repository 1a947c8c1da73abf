"""What a release can be, by name: the settings of its own, and how many noisy sums every record is in.

`dpvision/private/statistics/kinds.py` has the same names, with what is done to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What settings have to know of one kind of release.

    own          settings that this kind has and some other has not
    releases     noisy sums that every record is in; 0 where a sampler decides who is in which row
    least_rows   rows where n is smaller and no number is given: rows that are drawn cost nothing
    """

    own: frozenset[str]
    releases: int = 1
    least_rows: int = 0


KINDS: dict[str, Kind] = {
    "moments": Kind(frozenset({"share", "counts_share", "class_counts"}), least_rows=20_000),
    "mixtures": Kind(
        frozenset({"sampling", "degree", "drawn", "balance", "alpha", "most_weight", "class_counts"}), releases=0
    ),
    "merf": Kind(frozenset({"counts_share"})),
    "hermite": Kind(frozenset({"counts_share"})),
    "p3gm": Kind(frozenset(), releases=2),
}
