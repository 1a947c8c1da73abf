"""Plots of audits: ROC curves, the spectrum of a Hessian and the plane of gradients. Their bytes are reproducible."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dpvision.audit.gradient_plane import Cloud, Concentration
from dpvision.audit.hessian import Curvature
from dpvision.audit.membership import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WARNING = "NOT FOR RELEASE: computed from private data without noise"
FIRST, SECOND, RED = "#0b6e4f", "#c05621", "#b00020"


def plot_roc(curves: dict[str, Curve], *, allowed: tuple[Sequence[float], ArrayLike] | None, title: str) -> bytes:
    """Plot ROC curves as SVG; `allowed` is the upper bound on the curve of any attack, according to the claim.

    The axes are logarithmic, because the true positive rate at a very small false positive rate matters most.
    """
    with _figure((5.2, 4.6)) as (figure, file):
        axes, start = figure.subplots(), 1e-4
        if allowed is not None:
            rates, bound = np.asarray(allowed[0]), np.asarray(allowed[1])
            axes.fill_between(rates, start, bound, color="#cfe3f5", label="allowed by the claim")
            axes.plot(rates, bound, color="#2b6ca3", linewidth=1)
        for name, (false, true) in curves.items():
            axes.step(np.maximum(false, start), np.maximum(true, start), where="post", linewidth=1.4, label=name)
        axes.plot([start, 1], [start, 1], color="#888888", linestyle=":", linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(start, 1), ylim=(start, 1.05), title=title)
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(loc="lower right", fontsize=8)
    return file.getvalue()


def plot_spectrum(curvature: Curvature, *, private: bool) -> bytes:
    """Plot the largest eigenvalues with error bars as SVG; the title states the trace."""
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
    """Plot both groups as SVG: directions of gradients in the unit disc on the left, full gradients on the right."""
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
        right.set_title("gradients at full norm; crosses: the means", fontsize=9)
    return file.getvalue()


def _scatter(axes: Axes, cloud: Cloud, colour: str, *, label: str, normalised: bool) -> None:
    points = cloud.directions if normalised else cloud.points
    axes.scatter(points[:, 0].tolist(), points[:, 1].tolist(), s=8, alpha=0.5, color=colour, label=label)
    if not normalised:
        axes.plot(*cloud.mean, "x", color=colour, markersize=9, markeredgewidth=2.5)


def _printable(name: str) -> str:
    """Return a user-supplied name in printable ASCII, without a leading _, which would hide it in a legend."""
    ascii_name = name.encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in ascii_name[:40]).lstrip("_") or "?"


@contextmanager
def _figure(size: tuple[float, float], *, private: bool = False) -> Iterator[tuple[Figure, io.BytesIO]]:
    """Yield a figure in matplotlib's default style, not the user's; save it without a date or random ids."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "audit", "svg.fonttype": "none", "text.parse_math": False})
        figure, file = Figure(figsize=size, layout="constrained"), io.BytesIO()
        if private:
            figure.suptitle(WARNING, color=RED, fontsize=9)
        yield figure, file
        figure.savefig(file, format="svg", metadata={"Date": None})
