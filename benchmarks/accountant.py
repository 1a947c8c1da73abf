"""The accountants: known values, agreement, and speed of the quick one against dp-accounting in the same run."""

from __future__ import annotations

import statistics
import time

from benchmarks.results import Figure, main
from dpvision.core import accountant
from dpvision.core.events import Budget, PoissonGaussian
from dpvision.settings import calibrate, quick

RATE, DELTA = 4096 / 50_000, 1e-5
TABLE = [
    (875, 9.3, 0.978),
    (1125, 5.6, 1.987),
    (1593, 4.7, 2.952),
    (1687, 3.8, 3.921),
    (1843, 2.9, 5.746),
    (2468, 2.6, 7.843),
]


def measure(_quick: bool) -> list[Figure]:
    figures, speed = [], {"quick": [], "dp-accounting": []}
    accountant.epsilon(PoissonGaussian(0.5, 1.0, 1), DELTA)  # imports
    for steps, sigma, expected in TABLE:
        event = PoissonGaussian(RATE, sigma, steps)
        truth, low = accountant.epsilon(event, DELTA), quick.lower_bound(event, DELTA)
        figures.append(
            Figure(f"epsilon at T {steps}, sigma {sigma}", truth, max(low, expected * 0.995), expected * 1.005)
        )
    for i in range(15):  # interleaved, each time another sigma, so that no cache helps
        event = PoissonGaussian(RATE, 5.0 + i / 100, 1000)
        for name, by in (("quick", quick), ("dp-accounting", accountant)):
            start = time.perf_counter()
            by.epsilon(event, DELTA)
            speed[name].append(time.perf_counter() - start)
    ratio = statistics.median(speed["dp-accounting"]) / statistics.median(speed["quick"])
    figures.append(Figure("quick accountant, times faster than dp-accounting", ratio, 2.0))
    start = time.perf_counter()
    sigma = calibrate.sigma(Budget(1.0, DELTA), rate=RATE, steps=875)
    figures += [
        Figure("seconds to calibrate sigma for (1, T 875)", time.perf_counter() - start, high=2.0, unit="s"),
        Figure("that sigma", sigma, 9.11, 9.15),
        Figure("its epsilon", accountant.epsilon(PoissonGaussian(RATE, sigma, 875), DELTA), 0.99, 1.0),
    ]
    return figures


if __name__ == "__main__":
    main("accountant", measure, about="Epsilon at rate 4096/50000 and delta 1e-5, and how fast it is found.")
