"""Eigenvalues and traces against matrices whose spectrum is known, and against exact Hessians of small networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dpvision.audit import hessian
from dpvision.audit.hessian import (
    Curvature,
    Eigenvalues,
    Product,
    Trace,
    curvature,
    estimate_trace,
    largest_eigenvalues,
)
from dpvision.errors import ConfigError, DataError
from dpvision.models import build
from dpvision.models.resnets import StandardisedConv2d
from dpvision.private.training.network import each_loss


def _matrix(spectrum: Sequence[float], seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(len(spectrum), len(spectrum), generator=rng, dtype=torch.float64))[0]
    return turned @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ turned.T


def _of(matrix: Tensor) -> Product:
    return lambda rows: rows @ matrix


SPECTRA = {
    "one repeated more often than requested": [5.0] * 9 + list(np.linspace(-3, 1, 291)),
    "a cluster at the top, a large negative end": [5.0, 5.0, 5.0, 4.999, 4.998, *np.linspace(-30, 4, 295)],
    "rank five": [1.0, 0.5, 0.1, 0.05, 0.01] + [0.0] * 200,
    "smaller than the basis": [3.0, 2.0, 1.0, -1.0, -2.0, -100.0],
    "the number requested": [3.0, 2.0, 1.0, -1.0, -2.0],
    "all negative": list(-np.linspace(1, 9, 100)),
    "zero": [0.0] * 50,
}


@pytest.mark.parametrize("name", SPECTRA)
def test_known_spectra(name: str) -> None:
    spectrum = SPECTRA[name]
    matrix = _matrix(spectrum)
    eigenvalues = largest_eigenvalues(_of(matrix), len(spectrum))
    assert eigenvalues.converged
    assert eigenvalues.values == pytest.approx(
        sorted(spectrum, reverse=True)[:5], rel=1e-4, abs=1e-4 * max(map(abs, spectrum))
    )
    assert torch.allclose(eigenvalues.vectors @ eigenvalues.vectors.T, torch.eye(5, dtype=torch.float64), atol=1e-10)
    for value, error, vector in zip(eigenvalues.values, eigenvalues.errors, eigenvalues.vectors, strict=True):
        assert float((matrix @ vector - value * vector).norm()) == pytest.approx(error, rel=1e-3, abs=1e-8)


def test_restarts_keep_the_accuracy() -> None:
    spectrum = list(np.linspace(0, 1, 600))
    eigenvalues = largest_eigenvalues(_of(_matrix(spectrum)), 600, top=2, tolerance=1e-5)
    assert eigenvalues.converged and eigenvalues.products > 3 * hessian.BLOCKS * 2, "several restarts"
    assert eigenvalues.values == pytest.approx(spectrum[-1:-3:-1], abs=1e-6)


def test_eigenvalues_that_have_not_converged_are_marked_and_bounded() -> None:
    spectrum = np.linspace(-1, 1, 400)
    matrix = _matrix(list(spectrum))
    eigenvalues = largest_eigenvalues(_of(matrix), 400, most=15)
    assert not eigenvalues.converged and eigenvalues.products == 15
    pairs = [*zip(eigenvalues.values, eigenvalues.errors, strict=True), (eigenvalues.lowest, eigenvalues.lowest_error)]
    for value, error in pairs:
        assert error > 1e-3 and np.abs(spectrum - value).min() <= error + 1e-12
    again = largest_eigenvalues(_of(matrix), 400, most=15)
    assert again.values == eigenvalues.values and torch.equal(again.vectors, eigenvalues.vectors)
    assert largest_eigenvalues(_of(matrix), 400, most=15, seed=1).values != eigenvalues.values


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="--top"):
        largest_eigenvalues(_of(torch.eye(3, dtype=torch.float64)), 3, top=4)
    with pytest.raises(DataError, match="not finite"):
        largest_eigenvalues(lambda rows: rows * math.nan, 10)
    with pytest.raises(ConfigError, match="2 probes"):
        estimate_trace(_of(torch.eye(3, dtype=torch.float64)), 3, probes=1)
    with pytest.raises(ConfigError, match="no trainable"):
        hessian.hessian(nn.Linear(2, 2).requires_grad_(False), each_loss, torch.zeros(1, 2), torch.zeros(1))


class Attention(nn.Module):
    """One head over the columns of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x.squeeze(1)).unsqueeze(1).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v).squeeze(1).mean(1))


def _convolutions() -> nn.Module:
    """The layers of a wide residual network, and one that is not trained."""
    layers = [StandardisedConv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3))
    model[3].requires_grad_(False)
    return model


def _case(model: nn.Module, *, images: int = 7, classes: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    return model, torch.randn(images, 1, 4, 4), torch.arange(images) % classes


NETWORKS = {
    "convolutions, some frozen": lambda: _case(_convolutions()),
    "attention": lambda: _case(Attention()),
    # At zero weights a linear classifier has each eigenvalue (classes - 1) times.
    "linear from zero": lambda: _case(build("linear", (1, 4, 4), classes=10, seed=0), images=30, classes=10),
}


def _exact(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """The full Hessian in float64, by torch."""
    model = model.double()
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parameters = [p.detach() for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]

    def mean(flat: Tensor) -> Tensor:
        pieces = [v.view_as(p) for v, p in zip(flat.split(sizes), parameters, strict=True)]
        outputs = functional_call(model, dict(zip(names, pieces, strict=True)), (images.double(),))
        return F.cross_entropy(outputs, targets)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.autograd.functional.hessian(mean, torch.cat([p.flatten() for p in parameters]))


@pytest.mark.parametrize("name", NETWORKS)
def test_curvature_of_networks_equals_that_of_the_exact_hessian(name: str) -> None:
    torch.manual_seed(1)
    model, images, targets = NETWORKS[name]()
    measured = curvature(model, each_loss, images, targets, probes=64)
    size = measured.weights
    rows = torch.randn(3, size, dtype=torch.float64)
    whole = hessian.hessian(model, each_loss, images, targets)(rows)
    in_parts = hessian.hessian(model, each_loss, images, targets, physical=3)(rows)
    exact = _exact(model, images, targets)  # last: the model becomes float64
    assert exact.shape == (size, size)
    assert torch.allclose(whole, rows @ exact, rtol=1e-4, atol=1e-5) and torch.allclose(in_parts, whole, atol=1e-5)
    values = torch.linalg.eigvalsh(exact)
    assert measured.eigenvalues.converged
    assert measured.eigenvalues.values == pytest.approx(values.flip(0)[:5].tolist(), rel=1e-3, abs=1e-5)
    assert measured.ratio == pytest.approx(float(values[-1] / values[-5]), rel=1e-3)
    assert abs(measured.trace.value - float(exact.trace())) <= 4 * measured.trace.error
    if name == "linear from zero":
        assert float(values[-1] - values[-9]) < 1e-9


def test_there_is_no_ratio_if_an_eigenvalue_is_not_positive() -> None:
    values = Eigenvalues((2.0, 0.5, -1.0), (0.0,) * 3, -1.0, 0.0, torch.zeros(3, 3), 3, True)
    assert Curvature(values, Trace(1.0, 0.1, 2), 3).ratio is None


def _estimates(matrix: Tensor, known: Eigenvalues | None, runs: int = 300) -> tuple[np.ndarray, np.ndarray]:
    traces = [estimate_trace(_of(matrix), len(matrix), probes=16, seed=seed, known=known) for seed in range(runs)]
    return np.array([t.value for t in traces]), np.array([t.error for t in traces])


def test_the_standard_error_of_the_trace_covers_as_often_as_stated() -> None:
    """Within two standard errors of 16 probes: 93.6% by Student's distribution."""
    spectrum = [40.0, 20.0, 10.0, *np.linspace(-1, 1, 57)]
    matrix = _matrix(spectrum)
    rough = largest_eigenvalues(_of(matrix), 60, top=3, most=6)
    assert not rough.converged, "any orthonormal vectors are valid"
    exact, plain = float(matrix.trace()), _estimates(matrix, None)
    deflated = _estimates(matrix, rough)
    for values, errors in (plain, deflated):
        assert 0.88 < (np.abs(values - exact) <= 2 * errors).mean() < 0.985
        assert abs(values.mean() - exact) < 4 * values.std() / math.sqrt(len(values)), "no bias"
        assert errors.mean() == pytest.approx(values.std(), rel=0.15)
    assert deflated[1].mean() < plain[1].mean() / 5
