"""Mixed labels have the distribution of the sampler's own draws, and hierarchical ones stand out from noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.measures.labels import histogram, label_noise, mixed_labels, signal_to_noise
from dpvision.core.keys import Key
from dpvision.core.sampling import MixtureSampler, Poisson
from dpvision.errors import ConfigError
from dpvision.settings.release import hierarchical

COUNTS = (40, 60, 100)
SAMPLERS: list[MixtureSampler] = [
    Poisson(20, 200, 3000),
    hierarchical(3000, degree=20, n=200, classes=3, drawn=1.5, seed=1),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["poisson", "hierarchical"])
def test_as_if_every_coin_were_tossed(sampler: MixtureSampler) -> None:
    labels = np.repeat(np.arange(3), COUNTS)
    chosen = sampler.choose(labels, range(3000), Key.for_tests("labels").stream("coins", step=0, branch="a"))
    row = np.repeat(np.arange(3000), np.diff(chosen.starts))
    tossed = np.zeros((3000, 3))
    np.add.at(tossed, (row, labels[chosen.members]), 1 / 20)
    drawn = mixed_labels(sampler, COUNTS, degree=20, rng=np.random.default_rng(0))
    assert drawn.shape == (3000, 3)
    assert np.allclose(drawn.mean(0), tossed.mean(0), atol=0.03)
    assert np.allclose(drawn.std(0), tossed.std(0), rtol=0.08)
    if not isinstance(sampler, Poisson):
        assert not drawn[~sampler.table].any() and not tossed[~sampler.table].any()


def test_labels_collapse_with_poisson_sampling_only() -> None:
    n, k, rows, rng = 50_000, 10, 2000, np.random.default_rng(0)
    counts = [n // k] * k
    noise = label_noise(10.0, degree=1024)
    assert noise == pytest.approx(10 * math.sqrt(2) / 1024)
    poisson = mixed_labels(Poisson(1024, n, rows), counts, degree=1024, rng=rng)
    sampler = hierarchical(rows, degree=1024, n=n, classes=k, drawn=3, seed=0)
    classes = mixed_labels(sampler, counts, degree=1024, rng=rng)
    assert poisson.std() == pytest.approx(math.sqrt(0.1 / 1024), rel=0.05)
    assert signal_to_noise(poisson, noise) < 1 and signal_to_noise(classes, noise) > 10
    edges = np.linspace(-0.05, 0.45, 11)
    assert histogram(poisson, edges)[[2, 3]].sum() > 0.99, "all near 1 / K"
    shares = histogram(classes, edges)
    assert shares.sum() == pytest.approx(1) and shares[:2].sum() == pytest.approx(0.7, abs=0.02)
    assert shares[6:].sum() == pytest.approx(0.3, abs=0.02) and shares[3:5].sum() == 0
    assert histogram(np.array([-9.0, 9.0]), edges)[[0, -1]].tolist() == [0.5, 0.5]
    with pytest.raises(ConfigError, match="classes"):
        mixed_labels(sampler, [1, 2], degree=1, rng=rng)
