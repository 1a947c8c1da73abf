"""Hostile command lines for every verb there is: the verbs and their options are asked of the application itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin

from tests.system.fuzz.corpus import KINDS

WHOLE = (
    "-1",
    "0",
    "1",
    "2",
    "3",
    "5",
    "9" * 30,
    "9" * 5000,
    "2147483648",
    "9223372036854775808",
    "1e3",
    "٣",
    "²",
    "0x10",
    "nan",
    "",
)
NUMBERS = (
    "-1",
    "0",
    "0.5",
    "1",
    "3",
    "1e-9",
    "1e-320",
    "1e308",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "0x1p-3",
    "٣",
    "",
    "1,5",
)
WORDS = (
    "", " ", "x", "-", "--", "none", "digits", "linear", "small-cnn", "timm:x", "timm:../x", "wrn-10-1", "patches-64", "crop,flip",
    "crop,,x", "0,1", "a,b,c,d", "²", "4", "0", "dead-leaves", "../../outside/secret", "/dev/zero", "/dev/null", "/proc/self/mem",
    ".", "..", "~", "\udcff", "🙂", "a\nb", "%s", "{class}", "x" * 300, "x" * 5000, "__class__", "neuromix", "moments", "default",
)  # fmt: skip
CORPUS = "CORPUS"  # stands for its folder
# Enough work to see, and no more: the rest of a command line is drawn.
SMALL: dict[str, tuple[str, ...]] = {
    "train": ("--epsilon", "3", "--steps", "1", "--batch", "4"),
    "release": ("--epsilon", "1", "--encoder", "pixels", "--rank", "0", "--rows", "4"),
    "warm": ("--model", "linear", "--steps", "1", "--batch", "4", "--augment", "none"),
    "pretrain": ("--model", "wrn-10-1", "--process", "dead-leaves-mixed", "--size", "8", "--finer", "1", "--count", "2",
                 "--batch", "2", "--steps", "1", "--hidden", "16"),
    "synth fit": ("--size", "tiny", "--steps", "1", "--batch", "2"),
    "synth guide": ("--samples", "4", "--extractor-steps", "1", "--steps", "1", "--batch", "2", "--width", "8"),
    "synth sample": ("--count", "4", "--batch", "4", "--steps", "2"),
    "synth quality": ("--most", "8", "--no-cas"),
    "audit": ("--runs", "100"),
    "geometry": ("--most", "4", "--top", "1", "--probes", "1", "--private"),
    "export": ("--to", "safetensors"),
    "tune": ("--epsilon", "3", "--steps", "1", "--batch", "4", "--grid", "lr=1,2",
             "--trials", "2", "--score", f"{CORPUS}/drawn/images.npz"),
    "images": ("dead-leaves", "--count", "1", "--size", "8"),
    "data split": ("--public", "4"),
    "plan": ("--n", "1000", "--epsilon", "3"),
    "plan release": ("--n", "1000", "--epsilon", "3"),
}  # fmt: skip
# `synth words` loads a library that takes seconds, and may ask the net: tests/public/test_prompts.py has it.
LEFT_OUT = {"synth words"}
# It starts processes on purpose, which the guard takes for an escape.
LEFT_OUT_OPTIONS = {"--workers"}


@dataclass(frozen=True)
class Option:
    name: str
    kind: str
    required: bool
    choices: tuple[str, ...] = ()

    @property
    def positional(self) -> bool:
        return not self.name.startswith("-")


def verbs() -> dict[str, list[Option]]:
    """Every verb of the command line with its options."""
    from dpvision.cli.app import app

    return {name: options for name, options in sorted(_walk(app, ())) if name not in LEFT_OUT}


def _walk(app: Any, path: tuple[str, ...]) -> Iterator[tuple[str, list[Option]]]:
    for name in app:
        if name.startswith("-"):
            continue
        below = app[name]
        yield from _walk(below, (*path, name))
        if below.default_command is not None:
            result = below.assemble_argument_collection()
            yield " ".join((*path, name)), [_option(argument) for argument in result]


def _option(argument: Any) -> Option:
    inner = [argument.hint, *get_args(argument.hint)]  # of "Literal[...] | None" too
    choices = [choice for hint in inner if get_origin(hint) is Literal for choice in get_args(hint)]
    kind = str(getattr(argument.hint, "__name__", argument.hint))
    return Option(argument.names[0], kind, argument.required, tuple(map(str, choices)))


def command_line(rng: Random, verb: str, options: list[Option], *, corpus: Path, arena: Path) -> list[str]:
    """One command line: what is asked for comes from the corpus or is hostile, and a few options are drawn."""
    words = [*verb.split(" ")]
    words += [_value(rng, option, corpus, arena) for option in options if option.positional]
    words += [word.replace(CORPUS, str(corpus)) for word in SMALL.get(verb, ())]
    if rng.random() < 0.05:
        words = words[: rng.randrange(1, len(words) + 1)]
    named = [option for option in options if not option.positional and option.name not in LEFT_OUT_OPTIONS]
    if any(option.name == "--out" for option in named) and rng.random() < 0.9:
        suffix = {
            "synth sample": ".npz",
            "features": ".safetensors",
            "synth quality": ".json",
            "export": ".safetensors",
        }.get(verb, "")
        words += ["--out", str(arena / f"made{suffix}")]
    for option in rng.choices(named, k=rng.choice([0, 1, 1, 1, 2, 3])) if named else ():
        words.append(option.name)
        if option.kind != "bool" and "bool" not in option.kind:
            words.append(_value(rng, option, corpus, arena))
    if rng.random() < 0.05:
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
    if verb in ("train", "release") and rng.random() < 0.6:
        words.append("--dry-run")
    return words


def cut_short(verb: str, words: list[str]) -> bool:
    """Whether what keeps the work small was removed, or is given twice."""
    small = SMALL.get(verb, ())
    return any(words.count(word) != 1 for word in small if word.startswith("--"))


def _value(rng: Random, option: Option, corpus: Path, arena: Path) -> str:
    if option.choices and rng.random() < 0.8:
        return rng.choice(option.choices)
    if "int" in option.kind:
        return rng.choice(WHOLE if rng.random() < 0.4 else ("1", "2", "3", "4", "8"))
    if "float" in option.kind:
        return rng.choice(NUMBERS if rng.random() < 0.4 else ("0.1", "0.5", "1", "2"))
    if option.name == "--out":
        return rng.choice([str(arena / "made"), str(arena / "made.npz"), str(arena), str(arena / "x" / "y"), "x", ""])
    if ("Path" in option.kind or "str" in option.kind) and rng.random() < 0.85:
        kinds = _suiting(option.name) if rng.random() < 0.9 else KINDS
        name = rng.choice(kinds)
        if name in ("run", "stopped", "released", "mapped") and not (arena / name).exists():  # some verbs write into it
            shutil.copytree(corpus / name, arena / name)
        place = next((path for path in (arena / name, corpus / name) if path.exists()), corpus / name)
        return str(place / "table.csv" if name == "listed" else place)
    return rng.choice(WORDS)


def _suiting(name: str) -> tuple[str, ...]:
    match name.strip("-").lower():
        case "run" | "folders":
            return ("run", "run", "stopped")
        case "folder":
            return ("released", "mapped", "run")
        case "model":
            return ("edm",)
        case "guide":
            return ("guide",)
        case "weights" | "pretrained":
            return ("run", "warmed/weights.safetensors", "prior/weights.safetensors", "run/weights.safetensors")
        case "config":
            return ("settings/train.toml", "settings/release.toml")
        case _:
            return ("data.npz", "photos", "listed", "packed", "drawn/images.npz")
