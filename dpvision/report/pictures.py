"""The curves of the page: epsilon over steps, test accuracy, and the best attack there is.

No name that others chose is drawn: every word in a picture is ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpvision.privacy.events import Event
from dpvision.privacy.rounding import upper
from dpvision.report import attack, svg
from dpvision.report.figures import percent, upper_percent
from dpvision.report.metrics import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

# Inches of 72 points: about as wide as a phone shows it, so that text keeps its size there.
_SIZE = (4.6, 3.2)
_NAMES = {"ema": "moving average", "last": "last weights"}


def epsilon_over_steps(points: list[Point], *, budget: float) -> str | None:
    """What the training had told by each step, under what it may tell in all."""
    if not points:
        return None
    with svg.style("epsilon"):
        figure, axes = _axes("step", "epsilon so far")
        steps, spent = [0, *(p.step for p in points)], [0.0, *(p.epsilon for p in points)]
        axes.axhline(budget, color=svg.SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"asked for: {budget:g}", (0, budget), (4, -5), textcoords="offset points", va="top", color=svg.SOFT
        )
        axes.plot(steps, spent, color=svg.FIRST)
        axes.plot(steps[-1:], spent[-1:], "o", color=svg.FIRST, clip_on=False)
        axes.set_xlim(0, steps[-1])
        axes.set_ylim(0, 1.08 * max(budget, *spent))
        end = f"epsilon {upper(spent[-1])} at step {steps[-1]}"
        return svg.inline(figure, label=f"Curve of epsilon over steps, from 0 to {end}; {budget:g} was asked for.")


def accuracy(points: list[Point], *, released: str, over_epsilon: bool) -> str | None:
    """Test accuracy of both sets of weights, over epsilon or, where there is none to speak of, over steps."""
    points = [p for p in points if p.ema is not None and p.last is not None]
    if not points:
        return None
    with svg.style("accuracy"):
        figure, axes = _axes("epsilon so far" if over_epsilon else "step", "test accuracy")
        at = [p.epsilon if over_epsilon else p.step for p in points]
        for name, colour, dashes in (("ema", svg.FIRST, "-"), ("last", svg.SECOND, (0, (4, 2)))):
            share = [float(getattr(p, name)) for p in points]
            mark = name == released
            label = _NAMES[name] + (", released" if mark else "")
            axes.plot(
                at, share, color=colour, linestyle=dashes, label=label, marker="o" if mark else None, markevery=[-1],
                clip_on=False, zorder=3 if mark else 2,
            )  # fmt: skip
        axes.set_xlim(0, at[-1])
        low = min(min(p.ema or 0.0, p.last or 0.0) for p in points)
        axes.set_ylim(max(0.0, np.floor(10 * low - 0.5) / 10), 1.0)
        axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f}%")
        axes.legend(loc="lower right")
        ends = f"moving average {percent(points[-1].ema or 0.0)}, last weights {percent(points[-1].last or 0.0)}"
        over = "epsilon" if over_epsilon else "steps"
        return svg.inline(
            figure, label=f"Curves of test accuracy over {over}. At the end: {ends}. Released: {_NAMES[released]}."
        )


def attack_success(event: Event) -> str:
    """The most that any membership test finds, against what it wrongly reports; a guess lies on the diagonal."""
    with svg.style("attack"):
        figure, axes = _axes("wrongly reported outside", "found inside, at most")
        rates = np.logspace(-4, 0, 120)
        bound = attack.most_true_positives(event, rates.tolist())
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.fill_between(rates, rates, bound, color=svg.FIRST, alpha=0.12, linewidth=0)
        axes.plot(rates, bound, color=svg.FIRST, label="best test")
        axes.plot([1e-4, 1], [1e-4, 1], color=svg.SOFT, linewidth=1, linestyle=(0, (4, 3)), label="a guess")
        stated = attack.FALSE_POSITIVE_RATES
        most = attack.most_true_positives(event, stated)
        axes.plot(stated, most, "o", color=svg.FIRST, clip_on=False)
        axes.set_xlim(1e-4, 1)
        axes.set_ylim(1e-4, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(_fixed([1e-4, 1e-3, 1e-2, 1e-1, 1]))
            axis.set_minor_locator(_fixed([]))
            axis.set_major_formatter(lambda x, _: f"{100 * x:g}%")
        axes.legend(loc="lower right")
        said = "; ".join(f"{100 * f:g}% outside, {upper_percent(t)} inside" for f, t in zip(stated, most, strict=True))
        return svg.inline(figure, label=f"Curve of the best membership test, above the diagonal of a guess: {said}.")


def _axes(across: str, up: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _fixed(places: list[float]) -> Locator:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(places)
