"""Small GANs on a ring of Gaussians: how many of the modes do they make, by the number of samples they learn from?

Mode collapse is why few public images are better multiplied by a diffusion model than by a GAN (Park et al., Fig. 5).
One GAN proves nothing, since each collapses in its own way: for each number of samples, several play at once, each with
samples of its own. A mode is covered if at least 2% of the points drawn lie within three deviations of its centre;
an even share would be 12.5%.

    python examples/gan_ring.py            writes docs/gan_ring.png, about 2 minutes on one core
    python examples/gan_ring.py --quick    fewer GANs and steps, for a look
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODES, DEVIATION, SAMPLES = 8, 0.05, (50, 250, 2500)
LATENT, WIDTH, BATCH, RATE, BETAS = 8, 64, 64, 1e-3, (0.5, 0.999)


def centres() -> Tensor:
    angles = torch.arange(MODES) * (2 * math.pi / MODES)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def ring(games: int, count: int, rng: torch.Generator) -> Tensor:
    """(games, count, 2): a mode by chance, then a Gaussian around its centre."""
    modes = torch.randint(0, MODES, (games, count), generator=rng)
    return centres()[modes] + DEVIATION * torch.randn(games, count, 2, generator=rng)


def covered(points: Tensor) -> int:
    """How many modes have at least 2% of the points near them."""
    distance, nearest = torch.cdist(points, centres()).min(dim=1)
    counts = torch.bincount(nearest[distance < 3 * DEVIATION], minlength=MODES)
    return int((counts >= 0.02 * len(points)).sum())


class Networks(nn.Module):
    """As many networks as games, with two hidden layers each; none knows of the others."""

    def __init__(self, games: int, inputs: int, outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        sizes = [(inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, outputs)]
        self.weights = nn.ParameterList(torch.randn(games, *s, generator=rng) * (2 / s[0]) ** 0.5 for s in sizes)
        self.biases = nn.ParameterList(torch.zeros(games, 1, s[1]) for s in sizes)

    def forward(self, x: Tensor) -> Tensor:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, F.relu(x) if layer else x, weight)
        return x


def play(samples: Tensor, *, steps: int, rng: torch.Generator) -> Tensor:
    """Train a GAN on each set of samples (Goodfellow et al. 2014, non-saturating) and draw 1,000 points from each."""
    games, count, _ = samples.shape
    generator, discriminator = Networks(games, LATENT, 2, rng), Networks(games, 2, 1, rng)
    makes = torch.optim.Adam(generator.parameters(), lr=RATE, betas=BETAS)
    judges = torch.optim.Adam(discriminator.parameters(), lr=RATE, betas=BETAS)
    every = torch.arange(games).unsqueeze(1)
    for _ in range(steps):
        real = samples[every, torch.randint(0, count, (games, BATCH), generator=rng)]
        made = generator(torch.randn(games, BATCH, LATENT, generator=rng))
        # softplus(-x) = -log sigmoid(x); means over a batch, sums over the games
        truth, guess = discriminator(torch.cat([real, made.detach()], dim=1)).split(BATCH, dim=1)
        loss = (F.softplus(-truth) + F.softplus(guess)).mean(dim=1).sum()
        judges.zero_grad()
        loss.backward()
        judges.step()
        loss = F.softplus(-discriminator(made)).mean(dim=1).sum()
        makes.zero_grad()
        loss.backward()
        makes.step()
    with torch.no_grad():
        return generator(torch.randn(games, 1000, LATENT, generator=rng))


def draw(results: dict[int, tuple[Tensor, Tensor]], path: Path) -> None:
    """A panel for each number of samples: the GAN with the median of modes, its samples, and how all of them did."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(results), 4.4), layout="constrained")
    for axes, (count, (samples, points)) in zip(figure.subplots(1, len(results)), results.items(), strict=True):
        modes = [covered(cloud) for cloud in points]
        typical = sorted(range(len(modes)), key=modes.__getitem__)[len(modes) // 2]
        axes.scatter(*samples[typical][:500].T.tolist(), s=6, color="#bbbbbb", label="what it learned from")
        axes.scatter(*points[typical].T.tolist(), s=4, alpha=0.4, color="#0b6e4f", label="what it makes")
        axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
        axes.set_title(
            f"{count:,} samples: {modes[typical]} of {MODES} modes here\n{sum(modes) / len(modes):.1f} in the mean of "
            f"{len(modes)} GANs ({min(modes)} to {max(modes)})",
            fontsize=10,
        )
        axes.legend(fontsize=7, loc="upper right")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer GANs and steps, for a look")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "gan_ring.png")
    asked = parser.parse_args()
    games, steps = (3, 300) if asked.quick else (8, 6000)
    torch.set_num_threads(1)  # the matrices are too small to share
    results = {}
    for count in SAMPLES:
        rng = torch.Generator().manual_seed(count)
        samples = ring(games, count, rng)
        results[count] = samples, play(samples, steps=steps, rng=rng)
        modes = [covered(cloud) for cloud in results[count][1]]
        print(
            f"{count:>5,} samples: modes covered {sum(modes) / games:.1f} of {MODES} in the mean ({modes})", flush=True
        )
    draw(results, asked.out)
    print(f"wrote {asked.out}")


if __name__ == "__main__":
    main()
