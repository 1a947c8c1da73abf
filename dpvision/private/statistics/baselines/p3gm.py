"""P3GM (Takagi et al. 2021, arXiv 2006.12101) in a simple form: principal components, a mixture among them, and back.

    1. V, the first `latent` eigenvectors of sum_i vec(x_i x_i^T) + noise        private principal components
    2. a mixture of Gaussians for each class, of z_i = V^T x_i                     mixture.py
    3. x = V z, or x = V z + f(z) with a network f by DP-SGD                       decoder.py

Formal guarantee: |x| <= 1, so |vec(x x^T)| = |x|^2 <= 1, the sensitivity of the first sum; V has orthonormal columns,
so |z| <= |x| <= 1 (and it is measured again). All sums are releases of one event, Gaussian(sigma, releases), each made
from earlier noisy results. With `repeats` r, the sums of 1. and 2. are released r times each and averaged, which gives
each as much of the budget as r steps of the network have.

What is simpler than published: components are those of x x^T about zero, not about the mean; every class has its own
mixture, instead of labels beside the features; the mixture's rounds start from one Gaussian for each class; the network
adds to the linear map V instead of replacing it, is trained on the points z themselves without a variance of the
encoder, and by all rows in each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core.rows import AT_A_TIME, SHORTER, BoundedSum, Floats, Rows, lengths
from dpvision.errors import ConfigError
from dpvision.private.statistics.baselines.decoder import Descent, fit_decoder
from dpvision.private.statistics.baselines.generator import require_positive, require_whole
from dpvision.private.statistics.baselines.mixture import component_moments, from_moments
from dpvision.private.statistics.logistic import Noisy
from dpvision.private.statistics.second_moment import second_moment, to_matrix, to_vector


def projected(rows: Rows, basis: Floats) -> tuple[Rows, NDArray[np.float32]]:
    """z = V^T x, of length at most 1, and x - V z; of a row that is in no sum both stay zero."""
    z = np.zeros((len(rows.x), basis.shape[1]), dtype=np.float32)
    missed = np.zeros_like(rows.x)
    for start in range(0, len(rows.x), AT_A_TIME):
        count = min(AT_A_TIME, len(rows.x) - start)
        x = np.zeros((AT_A_TIME, rows.width))  # always as many: a product rounds alike whatever is beside
        x[:count] = rows.x[start : start + count]
        part = x @ basis
        part = (part / np.maximum(1.0, lengths(part)) * SHORTER).astype(np.float32)
        z[start : start + count] = part[:count]
        missed[start : start + count] = (x - part.astype(np.float64) @ basis.T)[:count]
    return Rows(z, rows.labels, rows.classes), missed


@dataclass(frozen=True)
class P3GM:
    """`components` of each class are fitted in `rounds`; with one, the first moments are all that is needed.

    `shared` gives all components one covariance. The network has `steps` releases; without them the decoder is V alone.
    """

    title: ClassVar[str] = "P3GM, in a simple form"
    rows_are: ClassVar[str] = (
        "drawn by public coins from a noisy Gaussian for each class, among noisy principal components"
    )
    latent: int = 20
    components: int = 1
    rounds: int = 0
    shared: bool = False
    repeats: int = 1
    steps: int = 0
    rate: float = 3e-3
    clip: float = 0.5
    hidden: int = 100
    nonnegative: bool = False

    def __post_init__(self) -> None:
        require_whole(0, rounds=self.rounds, steps=self.steps)
        require_whole(latent=self.latent, components=self.components, repeats=self.repeats, hidden=self.hidden)
        require_positive(rate=self.rate, clip=self.clip)
        if (self.components > 1) != (self.rounds > 0):
            raise ConfigError("components and rounds: more than one component needs rounds, and one needs none.")

    @property
    def releases(self) -> int:
        return self.repeats * (2 + self.rounds) + self.steps

    def check(self, *, width: int) -> None:
        if self.latent > width:
            raise ConfigError(f"latent is {self.latent}, but a row has {width} features.")

    def make(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        def averaged(bounded: BoundedSum) -> Floats:
            return np.asarray(sum(noisy(bounded) for _ in range(self.repeats)) / self.repeats)

        xx = to_matrix(averaged(BoundedSum(to_vector(second_moment(rows)), 1.0)), rows.width)
        basis = np.linalg.eigh(xx)[1][:, -self.latent :]
        latent, missed = projected(rows, basis)

        mixture = None
        for round in range(1 + self.rounds):
            asked = component_moments(latent, mixture)
            noise = sigma * asked.sensitivity / self.repeats**0.5
            mixture = from_moments(
                averaged(asked), width=self.latent, classes=rows.classes, n=n, noise=noise, shared=self.shared
            )
            if self.components > 1 and round == 0:
                mixture = mixture.split(self.components)
        assert mixture is not None
        z, labels = mixture.draw(count, np.random.default_rng([seed, 3]))
        x = z @ basis.T
        if self.steps:
            descent = Descent(self.steps, self.rate, self.clip, self.hidden)
            network = fit_decoder(latent, missed, descent, n=n, noisy=noisy, seed=seed)
            with torch.no_grad():
                x = x + network(torch.from_numpy(z.astype(np.float32))).double().numpy()
        x = np.maximum(x, 0.0) if self.nonnegative else x
        return (x / np.maximum(1.0, lengths(x))).astype(np.float32), labels
