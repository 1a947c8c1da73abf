"""What would help next, after a training run: by curves that were measured on public data sets.

A line follows from the card and from the measured figures alone, so the advice reveals nothing that the card does not
state. Of the accuracy of the run, only whether it is at most ENOUGH is used: above it, there is nothing to advise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from dpvision.released.evaluation import KNOWN, results

# The curve of a recipe on a public data set that stands for colour images, and for grey ones.
CURVES = {3: ("cifar10", "patches"), 1: ("fashionmnist", "scatter-linear")}
# CIFAR-10 at epsilon 1: a linear classifier on the features of DINOv2 ViT-S/14, and the best without a public network.
WITH_NETWORK, WITHOUT_NETWORK = 0.9575, 0.7026
ENOUGH = 0.98  # a test accuracy on the card above which no advice is given
ONE_MORE = 2.0  # times as many units, or as much epsilon


def advise(card: Mapping[str, Any]) -> list[str]:
    """Return a line for each of: more units or another epsilon; a public network."""
    config = card["config"]
    n, epsilon, unit = config.get("n"), config.get("epsilon"), str(config.get("unit", "image"))
    if card["status"] != "private" or not n or not epsilon or config.get("head") is not None:
        return []
    if ((card.get("accuracy") or {}).get("released_test_accuracy") or 0.0) > ENOUGH:
        return []
    shape = card["public_facts"]["image_shape"]["value"]
    lines = [_more_units(int(n), float(epsilon), channels=int(shape[0]), unit=unit)]
    if not config.get("pretrained") and config.get("k_diff", 0) == 0:
        lines.append(
            f"A public network: on CIFAR-10 at epsilon 1, a linear classifier on the features of DINOv2 reached "
            f"{WITH_NETWORK:.1%}, and the best recipe without one {WITHOUT_NETWORK:.1%}. `dpvision weights get "
            "dinov2-vits14`, and the recipe auto uses it, if your images resemble photographs."
        )
    return lines


def _more_units(n: int, epsilon: float, *, channels: int, unit: str) -> str:
    data, recipe = CURVES[channels]
    known, curve = KNOWN[data], {r.epsilon * KNOWN[data].n: r.accuracy for r in results(data)[recipe]}
    product = n * epsilon
    above, below = gain(curve, product, ONE_MORE), gain(curve, product, 1 / ONE_MORE)
    start = (
        f"More {unit}s, or a larger epsilon: the noise of an average depends on n times epsilon, which is "
        f"{product:,.0f} here. On {known.name} with recipe {recipe}, "
    )
    if above is None and below is None:
        least, most = min(curve), max(curve)
        which, end = ("smallest", least) if product < least else ("largest", most)
        above, below = gain(curve, end, ONE_MORE), gain(curve, end, 1 / ONE_MORE)
        start += f"the {which} product measured is {end:,.0f}; there, "
    parts = [] if above is None else [f"twice as many gave {above:.1f} points more"]
    parts += [] if below is None else [f"half as many {-below:.1f} points less"]
    return f"{start}{', '.join(parts)}."


def gain(curve: Mapping[float, float], product: float, factor: float) -> float | None:
    """Return the points between `product` and `factor` times as much; None outside of what was measured."""
    one, other = _at(curve, product), _at(curve, product * factor)
    return None if one is None or other is None else 100 * (other - one)


def _at(curve: Mapping[float, float], product: float) -> float | None:
    """Return the accuracy by linear interpolation in the logarithm of n times epsilon."""
    points = sorted(curve.items())
    for (low, a), (high, b) in pairwise(points):
        if low * (1 - 1e-9) <= product <= high * (1 + 1e-9):
            return a + (b - a) * math.log(product / low) / math.log(high / low)
    return None
