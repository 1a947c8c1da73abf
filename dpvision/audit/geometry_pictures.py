"""Plots of the geometry of a loss: spectrum and gradient plane. The same numbers give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpvision.audit.gradient_plane import Cloud, Concentration
from dpvision.audit.hessian import Curvature

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WARNING = "NOT FOR RELEASE: computed from private data without noise"
FIRST, SECOND, RED = "#0b6e4f", "#c05621", "#b00020"


def plot_spectrum(curvature: Curvature, *, private: bool) -> bytes:
    """The largest eigenvalues with their error bars as SVG, and the trace as its title."""
    with _figure((5.6, 3.6), private=private) as (figure, file):
        axes = figure.subplots()
        eigenvalues = curvature.eigenvalues
        places = range(1, len(eigenvalues.values) + 1)
        axes.bar(places, eigenvalues.values, yerr=eigenvalues.errors, color=FIRST, ecolor="#222222", capsize=3)
        axes.axhline(0, color="#888888", linewidth=0.6)
        axes.set_xticks(list(places))
        axes.set_xlabel("largest eigenvalues of the Hessian of the loss")
        axes.set_ylabel("eigenvalue")
        axes.set_title(f"trace {curvature.trace.value:.4g} ± {curvature.trace.error:.2g}", fontsize=9)
    return file.getvalue()


def plot_plane(plane: Concentration, names: tuple[str, str], *, private: bool) -> bytes:
    """Both groups as SVG: on the left the directions of gradients in the unit disc, on the right their full length."""
    with _figure((8.4, 4.2), private=private) as (figure, file):
        left, right = figure.subplots(1, 2)
        for axes, normalised in ((left, True), (right, False)):
            for cloud, name, colour in zip((plane.first, plane.second), names, (FIRST, SECOND), strict=True):
                _scatter(axes, cloud, colour, label=_printable(name), normalised=normalised)
            axes.axhline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
            axes.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
            axes.set_xlabel("along the first mean gradient")
            axes.legend(fontsize=8)
        from matplotlib.patches import Circle

        left.add_patch(Circle((0, 0), 1, fill=False, color="#bbbbbb", linewidth=0.8))
        left.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", ylabel="orthogonal, towards the second")
        left.set_title(
            f"directions; mean cosine within {plane.first.within:.2f}, {plane.second.within:.2f}, "
            f"between {plane.between:.2f}",
            fontsize=9,
        )
        right.set_title("gradients at full length; crosses: the means", fontsize=9)
    return file.getvalue()


def _scatter(axes: Axes, cloud: Cloud, colour: str, *, label: str, normalised: bool) -> None:
    points = cloud.directions if normalised else cloud.points
    axes.scatter(points[:, 0].tolist(), points[:, 1].tolist(), s=8, alpha=0.5, color=colour, label=label)
    if not normalised:
        axes.plot(*cloud.mean, "x", color=colour, markersize=9, markeredgewidth=2.5)


def _printable(name: str) -> str:
    """A name from outside in characters of any font; a leading _ would hide it from the legend."""
    ascii_name = name.encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in ascii_name[:40]).lstrip("_") or "?"


@contextmanager
def _figure(size: tuple[float, float], *, private: bool) -> Iterator[tuple[Figure, io.BytesIO]]:
    """A figure with matplotlib's own defaults, whatever the user has set, written without date or random names."""
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
