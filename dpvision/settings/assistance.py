"""Ways in which gradients of public images may assist a private step, by name; public/assist.py has each formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """What has to be known of a way before it runs."""

    title: str  # for the plan; {0} are the settings
    shaped_by: tuple[
        str, ...
    ] = ()  # public vectors that shape a contribution before it is clipped (core.clipping.Public)
    each_view: bool = False  # every view of a unit has weights of its own
    second_moment: bool = False  # the state keeps one


# A new way is a line here, and a function of the same name in public/assist.py.
WAYS: dict[str, Way] = {
    "none": Way("private gradients alone"),
    "weights": Way("weight multiplicity, radius {0.radius:g}", ("perturbations",), each_view=True),
    "dope": Way("DOPE-SGD: the public gradient is taken off before clipping, and put back", ("shift",)),
    "mirror": Way("mirror descent: less of the private and more of the public gradient with every step"),
    "adadps": Way(
        "AdaDPS: gradients are scaled by public second moments before clipping", ("scale",), second_moment=True
    ),
}
