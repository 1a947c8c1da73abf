"""What a generative model makes of few points: two arms of a spiral, learned from 100, 250 and 2,500 of them.

The arms are dense near the origin and thin out. Few points are enough where it is dense; where it is thin the model
repeats what it saw or leaves it out, so the border between the classes that is learned from its samples is wrong there.
That is the risk of training on synthetic images alone, and why private images are needed in addition to them.

    python examples/spiral.py            writes docs/spiral.png, in two minutes or so
    python examples/spiral.py --quick    a fifth of the steps: to see that it runs, not what it shows
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.svm import SVC

from dpvision.public.diffusion import methods
from dpvision.public.diffusion.methods import heun, karras_sigmas
from examples.points import MLP, fit_points

TURNS, WIDTH = 1.5, 0.02
COUNTS = (100, 250, 2500)
SAMPLES, STEPS, SAMPLER_STEPS = 1000, 10_000, 20
THIN = 0.6  # of the largest radius: beyond it is a sixth of the points
DENSE = 0.3  # within it is half of them
COLOURS = ("#1f77b4", "#d62728")


def spiral(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two arms, r = angle with density falling in proportion to 1 - r, and their classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    r = 1 - np.sqrt(rng.random(count))
    angle = 2 * math.pi * TURNS * r + math.pi * labels
    points = r[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points + WIDTH * rng.standard_normal((count, 2)), labels


def drawn(points: np.ndarray, labels: np.ndarray, *, steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a diffusion model that saw these points only."""
    y, classes = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
    network = MLP(2, classes=2, width=64, blocks=2)
    mean = fit_points(
        network, lambda f, chosen: methods.edm_loss(f, y[chosen], classes[chosen]), count=len(y), steps=steps, seed=seed
    )
    noise = torch.randn(SAMPLES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    asked = torch.arange(SAMPLES) % 2
    with torch.no_grad():
        x = heun(partial(methods.edm_denoise, mean), noise, asked, sigmas=karras_sigmas(SAMPLER_STEPS))
    return x.numpy(), asked.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "spiral.png")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the layers are too small to share
    test = spiral(5000, seed=options.seed + 1)
    figure = Figure(figsize=(4 * len(COUNTS), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(COUNTS), height_ratios=(2, 1))
    true = _radius(test[0])
    thin = true > THIN
    print("          named right            share of samples")
    print(" points    all     thin           dense     thin")
    print(f"  truth                         {(true < DENSE).mean():6.1%}   {thin.mean():6.1%}")
    for column, count in enumerate(COUNTS):
        seen = spiral(count, seed=options.seed)
        made = drawn(*seen, steps=STEPS // 5 if options.quick else STEPS, seed=options.seed)
        border = SVC(kernel="rbf", C=1000).fit(*made)
        right, r = border.predict(test[0]) == test[1], _radius(made[0])
        shares = f"{(r < DENSE).mean():6.1%}   {(r > THIN).mean():6.1%}"
        print(f"{count:7,}  {right.mean():6.1%}  {right[thin].mean():6.1%}         {shares}", flush=True)
        axes[0, column].set_title(f"{count:,} points; where it is thin, {right[thin].mean():.1%} right", fontsize=10)
        show(axes[0, column], seen[0], made, border)
        show_density(axes[1, column], true, r)
    figure.savefig(options.out, dpi=110, metadata={"Software": None})
    print(f"wrote {options.out}")


def show(axes, seen: np.ndarray, made: tuple[np.ndarray, np.ndarray], border: SVC) -> None:  # type: ignore[no-untyped-def]
    """Samples by class over the side of the border that each place is on, and the points that were seen."""
    line = np.linspace(-1.1, 1.1, 200)
    x, y = np.meshgrid(line, line)
    side = border.decision_function(np.stack([x.ravel(), y.ravel()], axis=1)).reshape(x.shape) > 0
    axes.contourf(x, y, side, levels=[-0.5, 0.5, 1.5], colors=COLOURS, alpha=0.2)
    axes.scatter(*seen.T, s=1, color="black", alpha=0.4, linewidths=0)
    points, labels = made
    for label, colour in enumerate(COLOURS):
        axes.scatter(*points[labels == label].T, s=4, color=colour, linewidths=0)
    axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[], aspect="equal")


def show_density(axes, true: np.ndarray, made: np.ndarray) -> None:  # type: ignore[no-untyped-def]
    bins = np.linspace(0, 1.1, 34)
    axes.hist(true, bins, density=True, histtype="step", color="black", label="truth")
    axes.hist(made, bins, density=True, alpha=0.5, color="#2ca02c", label="samples")
    axes.set(xlabel="distance from the origin", ylabel="density", ylim=(0, 4))
    axes.legend(frameon=False)


def _radius(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points, axis=1)


if __name__ == "__main__":
    main()
