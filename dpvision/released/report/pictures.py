"""Pictures of the pages: the best possible attack, epsilon and accuracy over steps, calibration, audits, the board.

User-supplied names are never drawn: all text in a picture is fixed. A matplotlib figure becomes an inline SVG that uses
the fonts and colours of the page, light or dark: figures are drawn in placeholder colours, each of which becomes a CSS
variable of the page. Dates, random ids and the addresses of other hosts are left out, so the same run gives the same
bytes.
"""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvision.core.events import Event, PoissonGaussian, parts
from dpvision.released.evaluation import Point, Result
from dpvision.released.report.guarantee import FALSE_POSITIVE_RATES
from dpvision.released.report.tables import percent, upper_percent
from dpvision.settings import meaning, quick
from dpvision.settings.figures import lower, upper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

INK, SOFT, LINE, FIRST, SECOND, THIRD, SHEET = (f"#{str(i) * 6}" for i in range(1, 8))
_VARIABLES = {INK: "ink", SOFT: "soft", LINE: "line", FIRST: "first", SECOND: "second", THIRD: "third", SHEET: "sheet"}
# Inches of 72 points: about the width of a phone, so that text keeps its size there.
_SIZE = (4.6, 3.2)
_NAMES = {"ema": "moving average", "last": "last weights"}


@dataclass(frozen=True)
class Group:
    """Runs of the same settings, as one point of the board."""

    number: int
    epsilon: float
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean test accuracy."""
        return mean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """The standard deviation of the test accuracies; None for one run."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None


def epsilon_by_length(event: Event, delta: float, *, target: float, phases: list[dict[str, Any]]) -> str | None:
    """Draw epsilon against the number of planned steps; return None for a run of several branches."""
    whole = parts(event)
    if len(whole) != 1 or not isinstance(whole[0], PoissonGaussian):
        return None
    lengths = sorted({max(1, round(whole[0].steps * i / 10)) for i in range(1, 11)})
    with _style("epsilon"):
        figure, axes = _axes("planned steps", "epsilon")
        steps = [0, *lengths]
        spent = [0.0, *(quick.epsilon(replace(whole[0], steps=n), delta) for n in lengths)]
        if not all(map(math.isfinite, spent)):
            return None
        axes.axhline(target, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(f"target: {target:g}", (0, target), (4, -5), textcoords="offset points", va="top", color=SOFT)
        axes.plot(steps, spent, color=FIRST)
        axes.plot(steps[-1:], spent[-1:], "o", color=FIRST, clip_on=False)
        axes.set_xlim(0, steps[-1])
        axes.set_ylim(0, 1.08 * max(target, *spent))
        done = 0
        for phase in [p for p in phases if p["steps"]][:-1]:
            done += phase["steps"]
            axes.axvline(done, color=SOFT, linewidth=1, linestyle=(0, (1, 2)))
        end = f"epsilon {upper(spent[-1])} with {steps[-1]} steps"
        return _inline(figure, label=f"Curve of epsilon by planned steps, from 0 to {end}; the target is {target:g}.")


def trade_off(epsilon: float, accuracy: float | None, *, results: dict[str, list[Result]]) -> str | None:
    """Draw accuracy against epsilon: this run, and results of dpvision on the same data, by recipe."""
    if accuracy is None or not results:
        return None
    with _style("trade-off"):
        figure, axes = _axes("epsilon", "test accuracy")
        for (recipe, line), colour, mark in zip(results.items(), (SECOND, THIRD, SOFT), ("s", "^", "D"), strict=False):
            points = [r.epsilon for r in line], [r.accuracy for r in line]
            axes.plot(*points, color=colour, marker=mark, markersize=6, linewidth=1, label=recipe, zorder=3)
        axes.plot(
            epsilon, accuracy, "o", color=FIRST, markersize=13, markerfacecolor="none", markeredgewidth=2.5,
            linewidth=0, label="this run", zorder=4,
        )  # fmt: skip
        measured = [r for line in results.values() for r in line]
        axes.set_xlim(0, 1.06 * max(epsilon, *(r.epsilon for r in measured)))
        reached = [accuracy, *(r.accuracy for r in measured)]
        axes.set_ylim(*_range(min(reached), max(reached)))
        axes.yaxis.set_major_formatter(_percent)
        axes.legend(loc="lower right")
        values = [f"this run reached {percent(accuracy)} at epsilon {upper(epsilon)}"]
        values += [
            f"{recipe} {', '.join(f'{percent(r.accuracy)} at {r.epsilon:g}' for r in line)}"
            for recipe, line in results.items()
        ]
        return _inline(figure, label=f"Test accuracy against epsilon: {'; '.join(values)}.")


def calibration(bins: list[dict[str, Any]], *, error: float) -> str:
    """Draw accuracy by confidence, and below it the number of images in each bin."""
    from matplotlib.figure import Figure

    with _style("calibration"):
        figure = Figure(figsize=(_SIZE[0], 4.0), layout="constrained")
        upper_part, lower_part = figure.subplots(2, 1, sharex=True, height_ratios=(3.4, 1))
        width = 1 / len(bins)
        middle = [(i + 0.5) * width for i in range(len(bins))]
        filled = [(m, b) for m, b in zip(middle, bins, strict=True) if b["images"]]
        upper_part.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), label="perfect calibration")
        upper_part.bar(
            [m for m, _ in filled], [b["accuracy"] for _, b in filled], width=0.86 * width, color=FIRST, alpha=0.35,
            linewidth=0,
        )  # fmt: skip
        upper_part.plot(
            [b["confidence"] for _, b in filled], [b["accuracy"] for _, b in filled], color=FIRST, marker="o",
            markersize=4, linewidth=1.5, label="this model", clip_on=False,
        )  # fmt: skip
        upper_part.set_ylim(0, 1)
        upper_part.set_ylabel("accuracy")
        upper_part.yaxis.set_major_formatter(_percent)
        upper_part.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        lower_part.bar(middle, [b["images"] for b in bins], width=0.86 * width, color=SECOND, linewidth=0)
        lower_part.set_ylabel("images")
        lower_part.set_xlabel("confidence")
        lower_part.set_xlim(0, 1)
        lower_part.xaxis.set_major_formatter(_percent)
        lower_part.yaxis.set_major_locator(_few())
        values = "; ".join(
            f"confidence {100 * b['confidence']:.0f}%, accuracy {100 * b['accuracy']:.0f}%, {b['images']} images"
            for _, b in filled
        )
        label = f"Reliability diagram. Expected calibration error {percent(error)}. {values}."
        return _inline(figure, label=label)


def audit(audits: dict[str, dict[str, Any]], names: dict[str, str], *, epsilon: float) -> str:
    """Draw the lower bound of each audit on its own line, next to the proven epsilon."""
    from matplotlib.figure import Figure

    with _style("audit"):
        figure = Figure(figsize=(_SIZE[0], 1.0 + 0.75 * len(audits)), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel("epsilon")
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        most = 1.12 * max(epsilon, *(result["epsilon_at_least"] for result in audits.values()))
        axes.axvline(epsilon, color=FIRST, linewidth=2)
        for row, (name, result) in enumerate(reversed(audits.items())):
            shown = result["epsilon_at_least"]
            axes.plot([min(shown, epsilon), epsilon], [row, row], color=FIRST, linewidth=7, alpha=0.18)
            axes.plot([0, shown], [row, row], color=SECOND, linewidth=7, solid_capstyle="butt")
            axes.plot([shown], [row], "o", color=SECOND, markersize=8)
            axes.annotate(
                f"{names[name]}: at least {lower(shown)}", (0, row), (0, 11), textcoords="offset points", color=INK
            )
        axes.annotate(
            f"proven: at most {upper(epsilon)}", (epsilon, len(audits) - 0.38), (-5, 0), textcoords="offset points",
            ha="right", va="center", color=FIRST,
        )  # fmt: skip
        axes.set_xlim(0, most)
        axes.set_ylim(-0.5, len(audits) - 0.15)
        axes.set_yticks([])
        values = "; ".join(f"{names[n]}: epsilon at least {lower(x['epsilon_at_least'])}" for n, x in audits.items())
        return _inline(figure, label=f"Lower bounds of audits, up to the proven epsilon {upper(epsilon)}. {values}.")


def accuracy(points: list[Point], *, released: str) -> str | None:
    """Draw the test accuracy of both sets of weights over steps."""
    points = [p for p in points if p.ema is not None and p.last is not None]
    if not points:
        return None
    with _style("accuracy"):
        figure, axes = _axes("step", "test accuracy")
        steps = [p.step for p in points]
        for name, colour, dashes in (("ema", FIRST, "-"), ("last", SECOND, (0, (4, 2)))):
            share = [float(getattr(p, name)) for p in points]
            mark = name == released
            label = _NAMES[name] + (", released" if mark else "")
            axes.plot(
                steps, share, color=colour, linestyle=dashes, label=label, marker="o" if mark else None, markevery=[-1],
                clip_on=False, zorder=3 if mark else 2,
            )  # fmt: skip
        axes.set_xlim(0, steps[-1])
        low = min(min(p.ema or 0.0, p.last or 0.0) for p in points)
        axes.set_ylim(max(0.0, np.floor(10 * low - 0.5) / 10), 1.0)
        axes.yaxis.set_major_formatter(_percent)
        axes.legend(loc="lower right")
        ends = f"moving average {percent(points[-1].ema or 0.0)}, last weights {percent(points[-1].last or 0.0)}"
        return _inline(
            figure, label=f"Curves of test accuracy over steps. At the end: {ends}. Released: {_NAMES[released]}."
        )


def attack_success(event: Event) -> str:
    """Draw the bound on membership tests: members found against non-members wrongly reported."""
    with _style("attack"):
        figure, axes = _axes("non-members wrongly reported", "members found, at most")
        rates = np.logspace(-4, 0, 120)
        bound = meaning.attack_success(event, rates.tolist())
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.fill_between(rates, rates, bound, color=FIRST, alpha=0.12, linewidth=0)
        axes.plot(rates, bound, color=FIRST, label="bound on every test")
        axes.plot([1e-4, 1], [1e-4, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), label="guessing")
        stated = FALSE_POSITIVE_RATES
        most = meaning.attack_success(event, stated)
        axes.plot(stated, most, "o", color=FIRST, clip_on=False)
        axes.set_xlim(1e-4, 1)
        axes.set_ylim(1e-4, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(_ticks_at([1e-4, 1e-3, 1e-2, 1e-1, 1]))
            axis.set_minor_locator(_ticks_at([]))
            axis.set_major_formatter(lambda x, _: f"{100 * x:g}%")
        axes.legend(loc="lower right")
        values = "; ".join(f"{upper_percent(t)} at {100 * f:g}%" for f, t in zip(stated, most, strict=True))
        label = f"Bound on the share of members found, against non-members wrongly reported: {values}."
        return _inline(figure, label=label)


def board(groups: list[Group]) -> str:
    """Draw numbered groups of runs, each with the standard deviation of its accuracies."""
    with _style("board"):
        figure, axes = _axes("epsilon", "test accuracy")
        for group in groups:
            axes.errorbar(
                group.epsilon, group.mean, yerr=group.spread, fmt="o", color=FIRST, markersize=7, capsize=4,
                elinewidth=1.5,
            )  # fmt: skip
            axes.annotate(
                str(group.number), (group.epsilon, group.mean), (8 if group.number % 2 else -8, 4), color=INK,
                textcoords="offset points", ha="left" if group.number % 2 else "right",
            )  # fmt: skip
        axes.set_xlim(0, 1.12 * max(g.epsilon for g in groups))
        ends = [g.mean + s * (g.spread or 0.0) for g in groups for s in (-1, 1)]
        axes.set_ylim(*_range(max(0.0, min(ends)), min(1.0, max(ends))))
        axes.yaxis.set_major_formatter(_percent)
        values = "; ".join(
            f"group {g.number}, {percent(g.mean)} at {upper(g.epsilon)}"
            + ("" if g.spread is None else f", deviation {100 * g.spread:.1f} points of {len(g.accuracies)} runs")
            for g in groups
        )
        return _inline(figure, label=f"Test accuracy against epsilon: {values}.")


def _axes(across: str, up: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _percent(share: float, _: float) -> str:
    return f"{round(100 * share, 1):g}%"


def _range(low: float, high: float) -> tuple[float, float]:
    """Return the limits of an axis of shares: whole tenths, with a margin."""
    low = max(0.0, np.floor(10 * (low - 0.04)) / 10)
    return low, min(1.0, max(low + 0.2, np.ceil(10 * (high + 0.02)) / 10))


def _few() -> Locator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3, integer=True)


def _ticks_at(places: list[float]) -> Locator:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(places)


@contextmanager
def _style(name: str) -> Iterator[None]:
    """Use matplotlib's defaults and the style of the page, not the user's; `name` makes ids in a picture unique."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": name,
                "svg.fonttype": "none",  # text is not converted to outlines
                "text.parse_math": False,
                "font.size": 10,
                "axes.labelsize": 10,
                "text.color": INK,
                "axes.labelcolor": SOFT,
                "axes.edgecolor": LINE,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": LINE,
                "grid.linewidth": 0.6,
                "xtick.color": LINE,
                "ytick.color": LINE,
                "xtick.labelcolor": SOFT,
                "ytick.labelcolor": SOFT,
                "xtick.major.size": 3,
                "ytick.major.size": 0,
                "xtick.minor.visible": False,
                "ytick.minor.visible": False,
                "lines.linewidth": 2,
                "legend.frameon": False,
                "legend.fontsize": 9.5,
            }
        )
        yield


def _inline(figure: Figure, *, label: str) -> str:
    """Return the figure as an <svg> element with `label` as its text alternative."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(file.getvalue())  # drawn above, so the XML is trusted
    _clean(root)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-label": label})
    text = ET.tostring(root, encoding="unicode", short_empty_elements=False)
    return re.sub(r">\s+<", "><", text)


def _clean(root: ET.Element) -> None:
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style", "title"):
                parent.remove(child)
    used = set(re.findall(r"#([\w-]+)", " ".join(v for e in root.iter() for v in e.attrib.values())))
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): _apply_theme(value) for key, value in element.attrib.items()}
        if element.get("id") not in used:
            element.attrib.pop("id", None)


def _local(name: str) -> str:
    """Return a name without its namespace, which SVG inside HTML does not need."""
    return name.rpartition("}")[2]


def _apply_theme(value: str) -> str:
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, f"var(--{variable})")
    # The font of the page, at the size of the figure.
    value = re.sub(r"font: (?:[\w-]+ )*?([\d.]+)px [^;]*", r"font-size: \1px", value)
    return re.sub(r"font-family: [^;]*;? ?", "", value)
