"""Private trainings on real data, three of each, with the mean and the spread of the test accuracy."""

from __future__ import annotations

from benchmarks.results import Figure, device_options, main
from benchmarks.trainings import Case, figures, table, trained

# De et al.'s way with networks, batches and views that fit a laptop.
SMALL_WRN = {"model": "wrn-10-1", "batch": 1024, "steps": 80, "k_base": 2, "ema": 0.95}
SMALL_RESNET = {"model": "resnet-9-small", "batch": 512, "steps": 120, "k_base": 2, "lr": 4.0, "ema": 0.95}


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case("mnist", "scatter-linear", least=0.985, seeds=1)]
    return [
        *(Case("mnist", "scatter-linear", e, least={3.0: 0.985}.get(e)) for e in (1.0, 2.0, 3.0)),
        *(Case("fashion_mnist", "scatter-linear", e, least={3.0: 0.89}.get(e)) for e in (1.0, 2.0, 3.0)),
        Case("cifar10", "scatter-linear", least=0.665),
        Case("cifar10", "scatter-cnn", least=0.69),
        Case("cifar10", "self-aug", settings=tuple(SMALL_WRN.items()), name="wrn-10-1"),
        Case("dermamnist", "self-aug", settings=tuple(SMALL_RESNET.items()), name="resnet-9-small"),
    ]


class Trainings:
    """All cases, one after the other."""

    def measure(self, quick: bool) -> list[Figure]:
        self.measured = trained(cases(quick), keep=not quick)
        return figures(self.measured)

    def table(self) -> str:
        return table(self.measured)


if __name__ == "__main__":
    trainings = Trainings()
    main(
        "train",
        trainings.measure,
        about="Test accuracy of the released weights (their average, chosen before training) at delta 1e-5, epsilon by "
        "PLD. Each training is a line of trainings.jsonl; one that is there with the same settings is not repeated.",
        below=trainings.table,
        more=device_options(),
    )
