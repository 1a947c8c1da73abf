"""The command line: verbs to functions. Imports are inside the verbs, so that help and plan load no torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from dpvision import __version__
from dpvision.errors import ConfigError, DPVisionError

app = App(
    name="dpvision",
    version=__version__,
    help="Differentially private image learning: private images in, a classifier and its proof out.",
    help_epilogue="Example: `dpvision train digits --epsilon 3 --out runs/first`, then open runs/first/report.html.\n\n"
    "Exit codes: 0 done, 2 usage, 3 data, 4 refused for privacy, 5 a rank was lost, 130 interrupted. "
    "Tracebacks: `--debug`.",
    help_format="markdown",
)
data_app = App(name="data", help="Prepare data sets.")
app.command(data_app)

Data = Annotated[str, Parameter(help="digits, an .npz, an image folder, a .csv or a packed store")]
Out = Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the run, new or empty")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="print one JSON object")]
Classes = Annotated[str | None, Parameter(help="declare the classes: a number, or names with commas between")]
Size = Annotated[int | None, Parameter(help="resize images to this many pixels a side")]
Channels = Annotated[int | None, Parameter(help="declare the channels: 1 for gray, 3 for colour")]
ClipStyle = Literal["flat", "automatic", "per-layer"]
SkipBroken = Annotated[bool | None, Parameter(negative="", help="leave out images that can not be read")]


@app.command
def plan(
    *,
    n: int,
    batch: int | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float = 1e-5,
    confirm: Annotated[bool, Parameter(negative="", help="let dp-accounting confirm it (one second more)")] = False,
    scale_down: Annotated[float | None, Parameter(help="also a rehearsal for public data, this much smaller")] = None,
    json: Json = False,
) -> None:
    """Noise from epsilon, or epsilon from noise; touches no data.

    Give all but one of batch, steps, epsilon and sigma and the missing one is solved for. Never over the target.

    Example: `dpvision plan --n 50000 --batch 4096 --steps 875 --epsilon 1 --delta 1e-5 --json`

    Parameters
    ----------
    n
        Number of training images (or persons), a public number.
    batch
        Expected batch size; by default half of n, at most 4096.
    steps
        Number of steps; by default 30 expected passes, 50 below 5,000 units.
    """
    from dpvision import console
    from dpvision.plan import plan as solve
    from dpvision.plan import scaled_down

    answer = solve(n=n, batch=batch, steps=steps, epsilon=epsilon, sigma=sigma, delta=delta, confirm=confirm)
    if scale_down is not None:
        answer["rehearsal"] = scaled_down(answer, scale_down)
    if json:
        console.as_json(answer)
        return
    rough, rehearsal = answer.pop("approximate"), answer.pop("rehearsal", None)
    rows = {k.replace("_", " "): f"{v:.6g}" if isinstance(v, float) else f"{v}" for k, v in answer.items()}
    console.table(
        {**rows, "approximate": f"central limit: epsilon {rough['epsilon']:.4g}, mu {rough['mu']:.4g} (no bound)"}
    )
    if rehearsal is not None:
        console.table(
            {k.replace("_", " "): f"{v:.6g}" if isinstance(v, float) else f"{v}" for k, v in rehearsal.items()},
            title="rehearsal",
        )


@app.command
def check(source: Data, /, *, classes: Classes = None, size: Size = None, json: Json = False) -> None:
    """Count, and list broken files. For your eyes: what it prints is not private.

    Example: `dpvision check digits`
    """
    from dpvision import console
    from dpvision.data import check as look

    findings = look(source, classes=_classes(classes), size=size)
    (console.as_json if json else console.show_findings)(console.findings_json(findings))
    if findings.broken or findings.problems:
        sys.exit(3)


@app.command
def train(
    source: Data,
    /,
    *,
    out: Out = Path("runs/latest"),
    epsilon: Annotated[float | None, Parameter(help="how much may be told; 1 is strong, 8 is weak")] = None,
    delta: Annotated[float | None, Parameter(help="chance that it is more; 1e-5, below 1/n")] = None,
    recipe: Annotated[str, Parameter(help="see `dpvision recipes`")] = "default",
    config: Annotated[Path | None, Parameter(help="TOML file of settings; flags win over it")] = None,
    model: Annotated[str | None, Parameter(help="such as wrn-16-4 or scatter-linear; by default by n")] = None,
    part: Annotated[Literal["all", "head", "bias"] | None, Parameter(help="what is trained of the model")] = None,
    pretrained: Annotated[Path | None, Parameter(help="public weights to start from, a .safetensors file")] = None,
    unit: Annotated[Literal["image", "person"] | None, Parameter(help="whom the guarantee protects")] = None,
    n: Annotated[int | None, Parameter(help="declare the public number of units")] = None,
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    batch: Annotated[int | None, Parameter(help="expected batch; half of n, at most 4096")] = None,
    steps: Annotated[int | None, Parameter(help="by default 30 expected passes, 50 below 5,000 units")] = None,
    sigma: Annotated[float | None, Parameter(help="noise multiplier; by default what epsilon needs")] = None,
    lr: Annotated[float | None, Parameter(help="learning rate")] = None,
    momentum: float | None = None,
    clip: Annotated[float | None, Parameter(help="bound on one unit's gradient")] = None,
    clip_style: Annotated[ClipStyle | None, Parameter(help="scale down, normalise, or clip each layer")] = None,
    ema: Annotated[float | None, Parameter(help="decay of the running average of the weights")] = None,
    release: Annotated[Literal["ema", "last"] | None, Parameter(help="which weights; chosen before training")] = None,
    seed: Annotated[int | None, Parameter(help="initial weights only; noise never has a seed")] = None,
    physical: Annotated[int | None, Parameter(help="images worked on at a time: memory against speed")] = None,
    augment: Annotated[str | None, Parameter(help="what is done to views: crop,flip,cutout,jitter,autoaugment")] = None,
    k_base: Annotated[int | None, Parameter(help="views of an image itself")] = None,
    k_self: Annotated[int | None, Parameter(help="mixtures of two of its other views")] = None,
    k_diff: Annotated[int | None, Parameter(help="public images beside it, from --synthetic")] = None,
    mix_alpha: Annotated[float | None, Parameter(help="shares of a mixture are Beta(alpha, alpha)")] = None,
    synthetic: Annotated[str | None, Parameter(help="public images of the same classes: .npz, folder, csv")] = None,
    checkpoint_every: Annotated[int | None, Parameter(help="steps between saved states")] = None,
    study: Annotated[
        bool | None, Parameter(negative="", help="look at gradients before clipping, for you alone")
    ] = None,
    budget: Annotated[
        float | None, Parameter(help="the data set's epsilon over all runs, if this is its first")
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", help="print the plan and stop; nothing is written or charged")
    ] = False,
) -> None:
    """Train a classifier privately.

    The data set's ledger is charged before training starts. What is not given is computed from public numbers. Several
    processes train together by `torchrun --nproc-per-node 2 -m dpvision train ...`.

    Example: `dpvision train digits --epsilon 3 --out runs/first`
    """
    flags = {
        "epsilon": epsilon,
        "delta": delta,
        "model": model,
        "part": part,
        "pretrained": None if pretrained is None else os.path.abspath(pretrained),
        "unit": unit,
        "n": n,
        "classes": _classes(classes),
        "size": size,
        "channels": channels,
        "skip_broken": skip_broken,
        "batch": batch,
        "steps": steps,
        "sigma": sigma,
        "lr": lr,
        "momentum": momentum,
        "clip": clip,
        "clip_style": clip_style,
        "ema": ema,
        "release": release,
        "seed": seed,
        "physical": physical,
        "augment": None if augment is None else [word.strip() for word in augment.split(",") if word.strip()],
        "k_base": k_base,
        "k_self": k_self,
        "k_diff": k_diff,
        "mix_alpha": mix_alpha,
        "synthetic": synthetic if synthetic in (None, "digits") else os.path.abspath(synthetic),
        "checkpoint_every": checkpoint_every,
        "study": study,
        "budget": budget,
    }
    from dpvision.config import merged, read_toml
    from dpvision.recipes import recipe as named
    from dpvision.runs import require_free

    settings, stated = named(recipe), {} if config is None else read_toml(config)
    settings = merged(settings, stated, source=str(config))
    if epsilon is None and "epsilon" not in stated:
        raise ConfigError(
            "--epsilon is missing: how much may be told about any one image or person is a decision, so it has no "
            "default. Usual: 1 for a strong guarantee, 3 for a sound one, 8 for a weak one."
        )
    settings = merged(settings, _given(flags), source="command line")
    if not dry_run:
        require_free(out)

    from dpvision import console, distributed
    from dpvision.prepare import prepare
    from dpvision.train import begin

    distributed.start()
    prepared = prepare(source, settings)
    if distributed.rank() == 0:
        console.show_training(prepared)
    if dry_run:
        if distributed.rank() == 0:
            console.say("dry run: nothing was written, nothing was charged.")
        return
    _train_on(begin(prepared, out, test_key=os.environ.get("DPVISION_TEST_KEY") or None), prepared)


@app.command
def resume(
    run: Path,
    /,
    *,
    lr: float | None = None,
    momentum: float | None = None,
    clip: float | None = None,
    clip_style: ClipStyle | None = None,
    ema: float | None = None,
    release: Literal["ema", "last"] | None = None,
    batch: int | None = None,
    steps: int | None = None,
    sigma: float | None = None,
    physical: int | None = None,
    checkpoint_every: int | None = None,
) -> None:
    """Go on with a run that was stopped, to the same weights bit by bit.

    A changed setting starts a branch: fresh noise, and the rest of the steps are charged to the ledger again.

    Example: `dpvision resume runs/first`
    """
    from dpvision import console, distributed
    from dpvision.runs import Run
    from dpvision.train import reopen

    flags = {
        "lr": lr,
        "momentum": momentum,
        "clip": clip,
        "clip_style": clip_style,
        "ema": ema,
        "release": release,
        "batch": batch,
        "steps": steps,
        "sigma": sigma,
        "physical": physical,
        "checkpoint_every": checkpoint_every,
    }
    folder = Run(Path(os.path.abspath(run)))
    folder.config()  # a clear error if this is no run
    distributed.start()
    if distributed.rank() == 0:
        console.note_other_ranks(folder.facts(), distributed.ranks())
    _train_on(folder, reopen(folder, _given(flags)))


@app.command(name="eval")
def evaluate(
    run: Path,
    source: Data,
    /,
    *,
    split: Literal["test", "val", "train"] = "test",
    size: Size = None,
    json: Json = False,
) -> None:
    """Accuracy of a released model on a data set. For your eyes: the figure is not private.

    Example: `dpvision eval runs/first digits`
    """
    from dpvision import console
    from dpvision.inference import evaluate as measure

    result = measure(run, source, split=split, size=size)
    if json:
        console.as_json(result)
    else:
        console.say(
            f"accuracy {result['accuracy']:.2%} on {result['images']:,} images of {split}; mean over the classes "
            f"{result['balanced_accuracy']:.2%}; always answering {result['majority_class']!r} would give "
            f"{result['majority_share']:.2%}"
        )
        rows = [[k, f"{v['images']:,}", f"{v['recall']:.1%}"] for k, v in result["classes"].items()]
        console.grid(["class", "images", "found"], rows)


@app.command
def predict(
    run: Path,
    images: Annotated[Path, Parameter(help="an image, a folder of images, or an .npz")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="CSV file; by default the terminal")] = None,
) -> None:
    """Classify images with a released model: file, class, probability.

    Example: `dpvision predict runs/first photos/ --out guesses.csv`
    """
    from dpvision import console
    from dpvision.inference import predict as guess

    with console.counting_bar("predicting") as progress:
        text = guess(run, images, progress=progress)
    if out is None:
        console.say(text.rstrip("\n"))
    else:
        from dpvision import atomic

        atomic.write(out, text, mode=0o644)
        console.say(f"wrote {out}")


@app.command
def ledger(
    source: Data,
    /,
    *,
    set_budget: Annotated[float | None, Parameter(help="the data set's epsilon over all runs")] = None,
    delta: Annotated[float | None, Parameter(help="with --set-budget: the delta it is counted at")] = None,
    classes: Classes = None,
    size: Size = None,
    skip_broken: SkipBroken = None,
    json: Json = False,
) -> None:
    """What was spent on a data set, by all runs, and what is left.

    Example: `dpvision ledger digits`
    """
    from dpvision import console
    from dpvision.data import fingerprint, load
    from dpvision.privacy.events import Budget
    from dpvision.privacy.ledger import ledger_of
    from dpvision.report.charges import lines

    options: dict[str, Any] = {"classes": _classes(classes), "size": size, "skip_broken": bool(skip_broken)}
    book = ledger_of(fingerprint(load(source, **options).train))
    if set_budget is not None:
        new = Budget(set_budget, delta or (book.account().budget.delta if book.exists() else 1e-5))
        account = book.set_budget(new) if book.exists() else book.open(new)
    elif not book.exists():
        console.say(f"no run was ever charged to this data; its ledger would be {book.path}")
        return
    else:
        account = book.account()
    console.show_account(account, lines(account), file=book.path, json=json)


@app.command
def report(run: Path, /) -> None:
    """Write card.md, card.json and report.html of a run anew.

    Example: `dpvision report runs/first`
    """
    from dpvision import console
    from dpvision.runs import Run

    folder = Run(Path(os.path.abspath(run)))
    folder.config()
    for path in _write_report(folder):
        console.say(f"wrote {path}")


@app.command
def study(
    *folders: Annotated[Path, Parameter(help="runs that were trained with --study")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="SVG file; not to be released")] = Path("gradients.svg"),
) -> None:
    """Draw how large gradients were before clipping, run beside run. For your eyes: nothing of it is private.

    Example: `dpvision study runs/self-aug runs/dp-mix --out gradients.svg`
    """
    from dpvision import console
    from dpvision.runs import Run
    from dpvision.study import plot

    if not folders:
        raise ConfigError("study needs at least one run that was trained with --study.")
    for name, deviation in plot([Run(Path(os.path.abspath(f))) for f in folders], out).items():
        console.say(f"{name}: deviation over the weights {deviation:.4g}")
    console.say(f"wrote {out} (for your eyes only)")


@app.command
def recipes(
    action: Annotated[Literal["list", "show", "copy"], Parameter(help="what to do")] = "list",
    name: str | None = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="with copy: the TOML file to write")] = None,
) -> None:
    """List recipes, show one, or copy one to a TOML file to change.

    Example: `dpvision recipes show small-cnn`
    """
    import inspect

    from dpvision import atomic, console
    from dpvision.config import write_toml
    from dpvision.recipes import RECIPES
    from dpvision.recipes import recipe as named

    if action == "list":
        console.grid(["recipe", "what"], [[k, (f.__doc__ or "").split("\n")[0]] for k, f in RECIPES.items()])
        return
    if name is None:
        raise ConfigError(f"recipes {action} needs the name of a recipe. `dpvision recipes` lists them.")
    text = write_toml(named(name))
    if action == "show":
        console.say(inspect.getdoc(RECIPES[name]) or "")
        console.say()
        console.say(text.rstrip())
    else:
        target = out or Path(f"{name}.toml")
        if target.exists():
            raise ConfigError(f"{target}: exists already. Fix: another --out.")
        atomic.write(target, text, mode=0o644)
        console.say(f"wrote {target}; use it with `dpvision train DATA --config {target}`")


@app.command
def synth(
    *,
    model: Annotated[str, Parameter(help="folder of a text-to-image pipeline (diffusers), or its name on the hub")],
    classes: Annotated[str, Parameter(help="names with commas between")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="image folder, for `train --synthetic`")],
    prompts: Annotated[str, Parameter(help="what is asked for; {class} is the class")] = "a photo of a {class}",
    count: Annotated[int, Parameter(help="images of each class")] = 1000,
    size: Annotated[int, Parameter(help="pixels a side")] = 32,
    steps: Annotated[int, Parameter(help="steps of the sampler")] = 25,
    guidance: float = 7.5,
    seed: int = 0,
) -> None:
    """Images from words, by a public text-to-image model. Nothing private is looked at.

    Example: `dpvision synth --model sd-turbo/ --classes cat,dog --prompts "a photo of a {class}" --out synthetic`
    """
    from dpvision import console
    from dpvision.synthesis.prompts import sample

    names = [name.strip() for name in classes.split(",") if name.strip()]
    with console.counting_bar("synthesising") as progress:
        sample(
            model,
            out,
            classes=names,
            prompt=prompts,
            count=count,
            size=size,
            steps=steps,
            guidance=guidance,
            seed=seed,
            progress=progress,
        )
    console.say(f"wrote {out}; use it with `dpvision train DATA --recipe dp-mix-diff --synthetic {out}`")


@data_app.command
def pack(
    source: Data,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the store, new")],
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
) -> None:
    """Pack a data set into a memory-mapped store, for data larger than memory.

    Example: `dpvision data pack photos/ --out photos.pack`
    """
    from dpvision import console
    from dpvision.data import pack as pack_into

    with console.counting_bar("packing") as progress:
        made = pack_into(
            source,
            out,
            classes=_classes(classes),
            size=size,
            channels=channels,
            skip_broken=bool(skip_broken),
            progress=progress,
        )
    console.say(f"wrote {made}; use it wherever a data set is asked for")


def main() -> None:
    """Run one verb; errors become one message and an exit code."""
    debug = "--debug" in sys.argv[1:]
    words = [w for w in sys.argv[1:] if w != "--debug"]
    try:
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as exc:
        _fail(str(exc), 2, debug=debug)
    except DPVisionError as exc:
        _fail(str(exc), exc.exit_code, debug=debug)
    except KeyboardInterrupt:
        _fail("interrupted.", 130, debug=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as exc:
        _fail(f"{exc.filename or 'the file system'}: {exc.strerror or exc}.", 3, debug=debug)


def _train_on(run: Any, prepared: Any) -> None:
    from dpvision import console, distributed
    from dpvision.train import proceed

    alone, first = distributed.ranks() == 1, distributed.rank() == 0
    with console.counting_bar("features") as progress:
        prepared.warm(progress)
    with console.stoppable() as stop, console.training_bar(prepared.config.epsilon, shown=first) as watch:
        outcome = proceed(run, prepared, watch=watch, stop=stop)
    if not outcome.complete:
        if first:
            launch = "dpvision" if alone else f"torchrun --nproc-per-node {distributed.ranks()} -m dpvision"
            console.say(f"stopped; every step is charged and saved. Go on with: {launch} resume {run.folder}")
        sys.exit(130)
    if not first:
        return
    from dpvision.report import card, sentence

    paths = _write_report(run)
    console.say(f"trained in {outcome.seconds:.1f} s" if outcome.seconds else "the run is finished already")
    if outcome.accuracy is not None:
        most = console.majority(prepared.data.test, prepared.data.classes)
        which = f"{prepared.config.release} weights, a choice made before training"
        console.say(f"test accuracy {outcome.accuracy:.2%} ({which}){most}")
    console.say(sentence(card(run, None)))
    console.say(f"run folder {run.folder}: {', '.join(p.name for p in paths)}, weights.safetensors")


def _write_report(run: Any) -> list[Path]:
    from dpvision.privacy.ledger import ledger_of
    from dpvision.report import write

    book = ledger_of(run.facts()["fingerprint"])
    return write(run, book.account() if book.exists() else None)


def _classes(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else [part.strip() for part in text.split(",")]


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in flags.items() if v is not None}


def _fail(message: str, code: int, *, debug: bool) -> None:
    if debug:
        raise
    if "WORLD_SIZE" not in os.environ:
        print(f"dpvision: {message}", file=sys.stderr)
    elif _first_to_tell():
        print(f"dpvision (rank {os.environ.get('RANK', '0')}): {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _first_to_tell() -> bool:
    """Of several ranks that stop, one tells why."""
    from dpvision import distributed

    return distributed.first_to_tell()
