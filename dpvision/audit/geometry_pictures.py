"""Pictures of the geometry of a loss: spectrum, gradient plane, learning dynamics. The same numbers, the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpvision.audit.dynamics import Point
from dpvision.audit.gradient_plane import Cloud, Concentration
from dpvision.audit.hessian import Curvature

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WARNING = "FOR THE OPERATOR'S EYES ONLY: computed from private data, without noise"
FIRST, SECOND, RED = "#0b6e4f", "#c05621", "#b00020"


def spectrum(found: Curvature, *, private: bool) -> bytes:
    """The largest eigenvalues, each with the error it may have, and the trace in words."""
    with _figure((5.6, 3.6), private=private) as (figure, file):
        axes = figure.subplots()
        values = found.eigenvalues
        places = range(1, len(values.values) + 1)
        axes.bar(places, values.values, yerr=values.errors, color=FIRST, ecolor="#222222", capsize=3)
        axes.axhline(0, color="#888888", linewidth=0.6)
        axes.set_xticks(list(places))
        axes.set_xlabel("largest eigenvalues of the loss's Hessian, in order")
        axes.set_ylabel("eigenvalue")
        axes.set_title(f"trace {found.trace.value:.4g} ± {found.trace.error:.2g}", fontsize=9)
    return file.getvalue()


def plane(found: Concentration, names: tuple[str, str], *, private: bool) -> bytes:
    """Left each image's direction in the unit disc, right its gradient as long as it is."""
    with _figure((8.4, 4.2), private=private) as (figure, file):
        left, right = figure.subplots(1, 2)
        for axes, normalised in ((left, True), (right, False)):
            for cloud, name, colour in zip((found.first, found.second), names, (FIRST, SECOND), strict=True):
                _draw(axes, cloud, colour, label=_plain(name), normalised=normalised)
            axes.axhline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
            axes.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
            axes.set_xlabel("along the first mean gradient")
            axes.legend(fontsize=8)
        from matplotlib.patches import Circle

        left.add_patch(Circle((0, 0), 1, fill=False, color="#bbbbbb", linewidth=0.8))
        left.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", ylabel="at right angles, to the second")
        left.set_title(
            f"directions; mean cosine within {found.first.within:.2f}, {found.second.within:.2f}, "
            f"between {found.between:.2f}",
            fontsize=9,
        )
        right.set_title("gradients as long as they are; crosses: the means", fontsize=9)
    return file.getvalue()


def dynamics(found: Mapping[str, Sequence[Point]], *, steps: Sequence[int], private: bool, clip: float = 1.0) -> bytes:
    """Accuracy, loss and norms of the mean gradient, a line for each data set."""
    panels = {
        "accuracy": "accuracy",
        "loss": "loss",
        "gradient": "norm of the mean gradient",
        "clipped": f"the same, each image clipped to {clip:g}",
    }
    with _figure((8.4, 6.2), private=private) as (figure, file):
        for axes, (field, title) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
            for name, points in found.items():
                axes.plot(steps, [getattr(point, field) for point in points], marker=".", label=_plain(name))
            axes.set(xlabel="step", title=title)
            axes.legend(fontsize=8)
    return file.getvalue()


def _draw(axes: Axes, cloud: Cloud, colour: str, *, label: str, normalised: bool) -> None:
    points = cloud.directions if normalised else cloud.points
    axes.scatter(points[:, 0].tolist(), points[:, 1].tolist(), s=8, alpha=0.5, color=colour, label=label)
    if not normalised:
        axes.plot(*cloud.mean, "x", color=colour, markersize=9, markeredgewidth=2.5)


def _plain(name: str) -> str:
    """A name that others chose, as it can be drawn with any font; a legend leaves out what starts with _."""
    shown = name.encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in shown[:40]).lstrip("_") or "?"


@contextmanager
def _figure(size: tuple[float, float], *, private: bool) -> Iterator[tuple[Figure, io.BytesIO]]:
    """matplotlib's own defaults, whatever the user has set; nothing that differs from one writing to the next."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "geometry", "svg.fonttype": "none", "text.parse_math": False})
        figure, file = Figure(figsize=size, layout="constrained"), io.BytesIO()
        if private:
            figure.suptitle(WARNING, color=RED, fontsize=9)
        yield figure, file
        figure.savefig(file, format="svg", metadata={"Date": None})
