"""Learners trained by gradient descent on the generalised Kullback-Leibler loss: linear, and with one hidden layer.

As in NeuroMixGDP (Li et al. 2023): Adam with an initial learning rate of 0.001, divided by ten after 2/5, 3/5 and 4/5
of the epochs, 256 rows per step, no weight decay, and negative labels set to 0. The paper uses 200 epochs; 10 were
enough on mixtures of MNIST, where learning rates from 0.0001 to 0.01 gave accuracies within half a point of each other.
Noise in the features biases the weights towards zero. This is not corrected here; closed.py corrects it if the noise is
known.

Rows are standardised by their mean and a single scale for all features, so that one learning rate suits rows of any
scale; the returned weights apply to unstandardised rows. The same seed, rows, software and number of threads give the
same weights; torch's global generator is neither used nor advanced.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.released.learners.learner import Learner, LinearRule, blocks, require
from dpvision.released.moments import Floats, floor_counts

DECAYS, DECAY = (0.4, 0.6, 0.8), 0.1


class _Descent(Learner):
    """The settings and the training loop of both learners."""

    epochs: int
    rate: float
    batch: int
    weight_decay: float
    clamp: bool
    seed: int

    def _check(self) -> None:
        require("epochs", self.epochs, least=1, whole=True)
        require("batch", self.batch, least=1, whole=True)
        require("rate", self.rate, least=0, above=True)
        require("weight_decay", self.weight_decay, least=0)
        require("seed", self.seed, least=0, whole=True)

    def _descend(
        self,
        weights: list[Tensor],
        scores: Callable[[Tensor], Tensor],
        x: NDArray[np.float32],
        y: NDArray[np.float32],
        draws: torch.Generator,
    ) -> None:
        """Run Adam on `weights`, in place. Only one batch of rows is copied at a time."""
        mean, spread = centre_and_spread(x)
        rows, labels = torch.from_numpy(_writable(x)), torch.from_numpy(_writable(y))
        shift = torch.from_numpy(mean.astype(np.float32))
        for weight in weights:
            weight.requires_grad_(True)
        adam = torch.optim.Adam(weights, lr=self.rate, weight_decay=self.weight_decay, foreach=True)
        for epoch in range(self.epochs):
            decays = sum(epoch >= math.ceil(share * self.epochs) for share in DECAYS)
            adam.param_groups[0]["lr"] = self.rate * DECAY**decays
            for chosen in torch.randperm(len(rows), generator=draws).split(int(self.batch)):
                batch = rows.index_select(0, chosen).sub_(shift).div_(spread)
                target = labels.index_select(0, chosen)
                loss = generalised_kl(scores(batch), target.clamp(min=0) if self.clamp else target)
                adam.zero_grad()
                loss.backward()
                adam.step()
        first, bias = weights[0].detach().double(), weights[1].detach().double()
        weights[0] = first / spread  # for unstandardised rows
        weights[1] = bias - torch.from_numpy(mean) @ weights[0]


class LinearLearner(_Descent, LinearRule):
    """Softmax regression. The weights start at zero.

    If `balanced`, the logarithms of the shares of the classes are added to the scores in the loss, and left out of the
    result, which therefore treats the classes as equally frequent.
    """

    def __init__(
        self,
        *,
        classes: int | None = None,
        epochs: int = 20,
        rate: float = 1e-3,
        batch: int = 256,
        weight_decay: float = 0.0,
        clamp: bool = True,
        seed: int = 0,
        balanced: bool = False,
    ) -> None:
        self.classes, self.epochs, self.rate, self.batch = classes, epochs, rate, batch
        self.weight_decay, self.clamp, self.seed, self.balanced = weight_decay, clamp, seed, balanced

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        weights = [torch.zeros(x.shape[1], y.shape[1]), torch.zeros(y.shape[1])]
        draws = torch.Generator().manual_seed(int(self.seed))
        offset = _log_shares(y) if self.balanced else torch.zeros(y.shape[1])
        self._descend(weights, lambda rows: torch.addmm(weights[1] + offset, rows, weights[0]), x, y, draws)
        self.weight_, self.bias_ = (weight.detach().double().numpy() for weight in weights)


class NetworkLearner(_Descent):
    """One hidden layer of `hidden` ReLU units. The weights are initialised like those of torch's linear layers."""

    def __init__(
        self,
        *,
        classes: int | None = None,
        hidden: int = 256,
        epochs: int = 20,
        rate: float = 1e-3,
        batch: int = 256,
        weight_decay: float = 0.0,
        clamp: bool = True,
        seed: int = 0,
    ) -> None:
        self.classes, self.hidden, self.epochs, self.rate, self.batch = classes, hidden, epochs, rate, batch
        self.weight_decay, self.clamp, self.seed = weight_decay, clamp, seed

    def _check(self) -> None:
        require("hidden", self.hidden, least=1, whole=True)
        super()._check()

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        draws = torch.Generator().manual_seed(int(self.seed))
        sides = ((x.shape[1], int(self.hidden)), (int(self.hidden), y.shape[1]))
        weights = [w for inputs, outputs in sides for w in _first_weights(inputs, outputs, draws)]

        def scores(rows: Tensor) -> Tensor:
            hidden = torch.addmm(weights[1], rows, weights[0]).relu()
            return torch.addmm(weights[3], hidden, weights[2])

        self._descend(weights, scores, x, y, draws)
        self.weights_ = [weight.detach().double().numpy() for weight in weights]

    def _scores(self, x: NDArray[np.float32]) -> Floats:
        into, bias, out, last = self.weights_
        return np.asarray(np.maximum(x.astype(np.float64) @ into + bias, 0.0) @ out + last)


def _log_shares(y: NDArray[np.float32]) -> Tensor:
    """Return the logarithms of the shares of the classes, none of them below a minimum."""
    sizes = floor_counts(y.mean(axis=0, dtype=np.float64), n=1.0)
    return torch.from_numpy(np.log(sizes / sizes.sum())).float()


def generalised_kl(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean over rows of D(y || p), p = softmax(scores), for labels y of any sum (Li et al. 2023).

        D(y || p) = sum_k  y_k log(y_k / p_k) - y_k + p_k

    sum_k p_k = 1, so the gradient with respect to the scores is (sum_k y_k) p - y. If y_k <= 0, which noise can cause,
    y_k log y_k is taken to be 0: it does not depend on p.
    """
    log_p = torch.log_softmax(scores, dim=1)
    entropy = torch.xlogy(y.clamp(min=0), y.clamp(min=0))
    return (entropy - y * log_p - y + log_p.exp()).sum(dim=1).mean()


def centre_and_spread(x: NDArray[np.float32]) -> tuple[Floats, float]:
    """Return the mean row, and the root mean square of the centred rows over all features; 1 if that is 0."""
    mean = np.sum([part.sum(axis=0, dtype=np.float64) for part in blocks(x)], axis=0) / len(x)
    shift = mean.astype(np.float32)
    square = sum(float(np.square(part - shift).sum(dtype=np.float64)) for part in blocks(x)) / x.size
    return mean, math.sqrt(square) if square > 0 else 1.0


def _first_weights(inputs: int, outputs: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return weights and bias, uniform in [-b, b] with b = 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(inputs)
    return tuple((2 * torch.rand(*shape, generator=draws) - 1) * bound for shape in ((inputs, outputs), (outputs,)))  # type: ignore[return-value]


def _writable(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the array itself, or a copy if torch cannot share its memory."""
    return x if x.flags.writeable and x.flags.c_contiguous else np.array(x, order="C")
