"""The results page of the documentation, generated from RESULTS.md: `python -m benchmarks.page` writes docs/results.md.

`figures()` is also what the tests compare every measured number in README.md and docs/ with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.results import RESULTS

PAGE = RESULTS.parents[1] / "docs" / "results.md"
DATA = {
    "digits": "digits (1,437 images)",
    "mnist": "MNIST (60,000)",
    "fashion_mnist": "Fashion-MNIST (60,000)",
    "cifar10": "CIFAR-10 (50,000)",
    "dermamnist": "DermaMNIST (7,007)",
}
NAMES = {
    "self-aug, as long": "self-aug with 8 views (same time as dp-mix-self)",
    "warmsyn": "warm-up on 2,000 public images and EDM samples",
    "warmsyn augmented": "the same, with crops and flips",
    "warm": "warm-up on 2,000 public images",
    "cold": "wrn-10-1 from random weights",
    "+ sam": "warm-up with SAM",
    "+ weight multiplicity": "warm-up with SAM, then weight multiplicity",
    "dope": "warm-up with SAM, then DOPE-SGD",
    "mirror": "warm-up with SAM, then mirror descent",
    "adadps": "warm-up with SAM, then AdaDPS",
    "wrn-10-1, cold": "wrn-10-1 from random weights, 60 steps",
    "wrn-10-1, Phase III only": "wrn-10-1 from random-image weights (DP-RandP phases I and III)",
    "wrn-10-1, all phases": "wrn-10-1, DP-RandP phases I to III",
    "wrn-10-1": "wrn-10-1, 2 views, 80 steps",
    "moments, rows": "moments; classifier trained on the released rows",
    "moments, moments": "moments; classifier computed from the released moments",
    "private head": "no release: private linear head on the same features",
}
SECTIONS = {
    "train": "Networks and scattering features",
    "priors": "Priors from random images",
    "mix": "DP-Mix, small networks, 4 views (K_BASE 4, K_SELF 4, K_DIFF 2)",
    "public": "A little public data (epsilon 2, wrn-10-1, 40 steps)",
}

Table = list[list[str]]


def sections() -> dict[str, str]:
    """The text of each benchmark's section in RESULTS.md, by name."""
    parts = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def tables(text: str) -> Iterator[Table]:
    """The Markdown tables of a text, as rows of cells with the header first."""
    for block in re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def figures() -> dict[str, float]:
    """Every measured figure as 'benchmark: figure', with the value that RESULTS.md has for it."""
    values = {}
    for benchmark, text in sections().items():
        for header, *rows in tables(text):
            if header[0] == "figure":
                values |= {f"{benchmark}: {name}": float(value.split()[0]) for name, value, *_ in rows}
    return values


def page() -> str:
    """The text of docs/results.md."""
    every, values = sections(), figures()
    lines = [
        "# Results",
        "",
        "This page is generated from [benchmarks/RESULTS.md](../benchmarks/RESULTS.md) by `python -m benchmarks.page`.",
        "RESULTS.md also has the limits, dates, machines and commands of every figure.",
        "",
        "All accuracies are on the test split, at delta 1e-5, with epsilon from privacy loss distributions.",
        "Each line is the mean of several trainings on two CPU cores. Hyper-parameters of `scatter-linear` and",
        "`patches` were chosen on training images of CIFAR-10 and validation images of DermaMNIST; no epsilon",
        "accounts for that choice. Minutes cover the training itself, not reading images or computing features.",
        "",
        "## Accuracy at equal privacy",
        "",
        "`python -m benchmarks.board`: all tasks at once, next to goals and to what papers publish. A release of ours",
        "is of features; those of the papers named in its line are of images.",
        "",
        *_markdown(next(t for t in tables(every["board"]) if t[0][0] == "task")),
        "",
        "## Classifiers",
    ]
    for name, title in SECTIONS.items():
        header = ["data", "recipe", "epsilon", "accuracy", "worst", "runs", "minutes"]
        measured = [row for table in tables(every[name]) if table[0][0].startswith("data,") for row in table[1:]]
        rows = [_training(name, row, values) for row in measured]
        lines += ["", f"### {title}", "", f"`python -m benchmarks.{name}`", "", *_markdown([header, *rows])]
    lines += ["", "### Default settings at epsilon 3", "", "`python -m benchmarks.first_learner`", ""]
    first = {
        "digits": "digits, mean test accuracy",
        "mnist": "mnist, linear",
        "dermamnist": "dermamnist, linear",
    }
    rows = [[DATA[k], "linear", f"{values[f'first_learner: {name}']:.1%}"] for k, name in first.items()]
    rows.append([DATA["dermamnist"], "small-cnn", f"{values['first_learner: dermamnist, small-cnn']:.1%}"])
    lines += [*_markdown([["data", "model", "accuracy"], *rows]), "", "## Released data sets", ""]
    lines += ["`python -m benchmarks.release`: accuracy of a classifier that saw only what was released. CIFAR-10 uses"]
    lines += ["features of DINOv2 ViT-S/14, MNIST scattering features, `dpmix` pixels.", ""]
    released = next(t for t in tables(every["release"]) if t[0][0] == "release")
    header = ["data", "recipe", "epsilon", "accuracy", "worst", "runs"]
    rows = [
        [*_split(title), _mean(values, "release", title, runs), _short(worst), runs]
        for title, runs, *_, worst in released[1:]
    ]
    lines += _markdown([header, *rows])
    lines += ["", "## Speed of the engine", "", "`python -m benchmarks.engine`: images per second relative to ordinary"]
    lines += [
        "training of the same network on the same images, and to the fastest of Opacus' modes and torch.func.",
        "",
    ]
    lines += _markdown([["network", "views K", "threads", "/ ordinary", "/ fastest peer"], *_engine(values)])
    lines += ["", "## Limits", "", "Every benchmark states limits for its figures and fails when one is missed.", ""]
    counts = [[f"`{name}`", *_reached(text)] for name, text in every.items()]
    lines += _markdown([["benchmark", "figures with a limit", "missed"], *counts])
    return "\n".join(lines) + "\n"


def _split(title: str) -> list[str]:
    """Data, recipe and epsilon of a title such as 'cifar10, patches, epsilon 1'."""
    data, rest = title.split(", ", 1)
    recipe, epsilon = rest.rsplit(", epsilon ", 1)
    return [DATA[data], NAMES.get(recipe, f"`{recipe}`"), epsilon]


def _short(percent: str) -> str:
    return f"{float(percent.rstrip('%')):.1f}%"


def _mean(values: dict[str, float], benchmark: str, title: str, runs: str) -> str:
    return f"{values[f'{benchmark}: {title}: mean of {runs}']:.1%}"


def _training(benchmark: str, row: list[str], values: dict[str, float]) -> list[str]:
    title, runs, _, _, worst, _, _, minutes, _ = row
    return [*_split(title), _mean(values, benchmark, title, runs), _short(worst), runs, minutes]


def _engine(values: dict[str, float]) -> Iterator[list[str]]:
    for name, value in values.items():
        match = re.fullmatch(r"engine: (\S+), K=(\d+), (\d) threads?: speed / plain training", name)
        if match:
            peer = values.get(name.replace("plain training", "fastest peer"))
            yield [*match.groups(), f"{value:.2f}", "" if peer is None else f"{peer:.2f}"]


def _reached(text: str) -> list[str]:
    rows = [row for table in tables(text) if table[0][0] == "figure" for row in table[1:] if row[2] != "reported"]
    return [str(len(rows)), str(sum("no" in row[3] for row in rows))]


def _markdown(rows: Table) -> list[str]:
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *rest]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
