"""The command-line application: groups of verbs, options that several verbs share, and error handling."""

from __future__ import annotations

import inspect
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from cyclopts import App, CycloptsError, Group, Parameter

from dpvision import __version__
from dpvision.errors import ConfigError, DataError, DPVisionError
from dpvision.settings.setting import GROUPS, REQUIRED, Setting, declared, read_toml, size_pair
from dpvision.settings.training import Config, merge

# The verbs in the order of `dpvision --help`.
VERBS = {
    "Use": ("train", "resume", "predict", "eval", "export", "release", "features"),
    "Data": ("check", "data", "ledger", "plan"),
    "Public data": ("images", "pretrain", "synth", "warm", "weights"),
    "Evidence": ("audit", "report", "evidence", "sign", "verify", "board", "tune", "geometry", "study", "recipes"),
    "Help": ("completion",),
}
_GROUPS = {name: Group(name, sort_key=place) for place, name in enumerate(VERBS)}
WELCOME = """\
dpvision trains image classifiers with differential privacy: you get a model and
a proven bound on what it reveals about any one image. To get started:

  dpvision check digits                                inspect a data set
  dpvision train digits --epsilon 3 --out runs/first   train a private classifier
  dpvision report runs/first                           regenerate its report

`digits` is a built-in data set. Use your own instead: a folder of images
(train/CLASS/x.png), or an .npz or .csv file. `dpvision --help` lists all
commands, and `dpvision train --help` shows the options of one.
"""
PANELS = {name: Group(name, sort_key=place) for place, name in enumerate(("Common", *GROUPS))}
# Options that most users need. Verbs with many options show these first, in this order, in a separate panel.
COMMON = (
    *("epsilon", "delta", "unit", "out", "recipe", "model", "encoder", "pretrained", "weights", "rows"),
    *("grid", "score", "trials", "batch", "steps", "lr", "config", "dry_run"),
)

app = App(
    name="dpvision",
    version=__version__,
    help="Train on private images, with a proven bound on what the result reveals about any one of them.",
    help_epilogue="Start with `dpvision train digits --epsilon 3 --out runs/first`, then open runs/first/report.html. "
    "`dpvision train --help` shows the options of a command.\n\n"
    "Exit codes: 0 success, 2 usage error, 3 unusable data, 4 refused to protect privacy, 5 worker process failed, "
    "130 interrupted. Add `--debug` to see tracebacks.",
    help_format="markdown",
    group_commands=_GROUPS["Help"],
    suppress_keyboard_interrupt=False,  # `main` reports it
)

Verb = TypeVar("Verb", bound=Callable[..., None])


def verb(function: Verb) -> Verb:
    """Register a function as a verb, in its group on the help page."""
    app.command(function, **_place(function.__name__))
    return function


def verb_with_parts(name: str, text: str | None = None) -> App:
    """Register a verb that has subcommands, such as `data pack`."""
    parent = App(help=text, group_commands="Commands", **_place(name))
    app.command(parent)
    return parent


def _place(name: str) -> dict[str, Any]:
    """Return a verb's name, its group and its position in the group. Verbs do not repeat the epilogue of the root."""
    name = {"evaluate": "eval"}.get(name, name)
    group = next(group for group, names in VERBS.items() if name in names)
    return {"name": name, "group": _GROUPS[group], "sort_key": VERBS[group].index(name), "help_epilogue": ""}


@verb
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell to print the script for.")], /
) -> None:
    """Print a shell completion script.

    To install it, save the output where your shell looks for completions: in bash,
    `~/.local/share/bash-completion/completions/dpvision`; in fish, `~/.config/fish/completions/dpvision.fish`; in zsh,
    a file named `_dpvision` in a folder of `$fpath`.

    Example: `dpvision completion bash`
    """
    print(app.generate_completion(shell=shell))


def option(panel: str, text: str, *, default: str | None = None, **more: Any) -> Parameter:
    """Describe an option: its panel, its help and, if the default in Python is None, the default to show."""
    usual: dict[str, Any] = {"group": PANELS[panel], "help": text, "negative": ""}
    return Parameter(**{**usual, **({} if default is None else {"show_default": default}), **more})


def flag(panel: str, text: str, **more: Any) -> Parameter:
    """Describe an option that takes no value and is off by default."""
    return option(panel, text, show_default=False, **more)


def like(of: Setting, **changes: Any) -> Parameter:
    """Describe an option by the declaration of a setting."""
    names = [f"--{of.name.replace('_', '-')}", *of.aliases]
    usual: dict[str, Any] = {"name": names, "negative": "", "group": PANELS[of.group], "help": of.help}
    return Parameter(**{**usual, **changes})


def _data_setting(name: str, **changes: Any) -> Parameter:
    of = declared(Config)[name]
    return like(of, show_default=False if of.default is False else of.default_text, **changes)


def _size_of(_: Any, tokens: Sequence[Any]) -> tuple[int, int] | None:
    return size_pair(tokens[0].value)


def existing(text: str, **more: Any) -> Parameter:
    """Describe a file or folder to read. Without it, a verb fails before it imports anything slow, such as torch."""
    return Parameter(help=text, validator=_require_existing, **more)


def _require_existing(_: Any, given: str | Path | tuple[Path, ...] | None) -> None:
    if given is None or "WORLD_SIZE" in os.environ:  # what only some ranks lack is reported after all ranks have met
        return
    for path in given if isinstance(given, tuple) else (given,):
        if str(path) != "digits" and not os.path.lexists(path):
            raise DataError(f"{path}: there is no such file or folder. Fix: check the path.")


DataSet = Annotated[
    str,
    existing(
        "`digits` (built in), a folder of images (CLASS/x.png or train/CLASS/x.png), an .npz, .csv or .parquet file, "
        "or a packed store."
    ),
]
PublicImages = Annotated[
    str, existing("PUBLIC images: `digits`, a folder (train/CLASS/x.png), an .npz or .csv file, or a packed store.")
]
Classes = Annotated[str | None, _data_setting("classes")]
Size = Annotated[tuple[int, int] | None, _data_setting("size", n_tokens=1, converter=_size_of, metavar="STR")]
TestShare = Annotated[float | None, _data_setting("test_share")]
Window = Annotated[str | None, _data_setting("window")]
Columns = Annotated[str | None, _data_setting("columns")]
Task = Annotated[str, _data_setting("task")]
GroupColumn = Annotated[str | None, _data_setting("group")]
Channels = Annotated[int | None, _data_setting("channels")]
SkipBroken = Annotated[bool | None, _data_setting("skip_broken")]
Json = Annotated[bool, flag("Output", "Print the result as one JSON object.", name="--json")]
RunFolder = Annotated[
    Path | None,
    option("Output", "Folder to write; it must be new.", name=["--out", "-o"], default="next free number in runs/"),
]
Recipe = Annotated[str, option("Model", declared(Config)["recipe"].help)]
SettingsFile = Annotated[
    Path | None, option("Model", "TOML file of settings; command-line options take precedence.", default="none")
]
NewAccount = Annotated[
    str | None,
    option(
        "Privacy",
        "If some of these images belong to an earlier data set, its privacy budget is charged too. To count this data "
        "set separately, give a reason, such as 'another hospital, nobody is in both'; it is printed on the card.",
        default="none",
    ),
]
DryRun = Annotated[bool, flag("Output", "Print the plan and exit: nothing is run or charged.")]
Plan = Annotated[
    bool,
    flag(
        "Privacy",
        "Add this run to the account's plan and exit. Runs that are all planned before the first one starts compose "
        "more tightly than runs chosen one after another.",
    ),
]
Consented = Annotated[
    bool,
    flag(
        "Data",
        "Use these images although they have a ledger, because their owners have since consented to publication.",
    ),
]
NO_TEST_SPLIT = (
    "there is no test split, so no accuracy will be reported. Fix: add --test-share 0.2, or name the split of each "
    "image (in a CSV file: a column `split` with train and test)."
)
CONSENT_FIX = "give only the public part, or add --consented if the owners of these images consented to publication"
Device = Annotated[
    str,
    option(
        "Optimisation",
        "Device to compute on: auto (an accelerator that passes a self-test, or else the CPU), cpu, cuda, cuda:1.",
    ),
]
DescribeDevice = Annotated[
    Path | None,
    option(
        "Optimisation",
        "TOML file that describes another device (see examples/devices): estimate the time on that device.",
        default="none",
    ),
]
EncoderWeights = Annotated[
    Path | None,
    option(
        "Model",
        "Public weights of a release's encoder, if it has any: a file, or a name of `dpvision weights list`.",
        default="those that `dpvision weights get` downloaded",
    ),
]
Resize = Annotated[int | None, option("Data", "Resize images to this number of pixels per side.", default="unchanged")]


def out_option(text: str, *, default: str | None = None) -> Parameter:
    """Describe the option --out."""
    return option("Output", text, name=["--out", "-o"], default=default)


def takes(
    kind: type, which: Callable[[Setting], bool] = lambda _: True, *, default: str | None = None, common: bool = True
) -> Callable[[Verb], Verb]:
    """Replace a verb's `**flags` by an option for each setting of `kind` for which `which` is true.

    The help page shows `default` for all of them if it is given, or else the effective default of each setting. With
    `common`, the options in COMMON come first.
    """
    settings = [of for of in declared(kind).values() if of.option and which(of)]

    def with_options(verb: Verb) -> Verb:
        hints = get_type_hints(verb, include_extras=True)
        own = [p for p in inspect.signature(verb).parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints |= {of.name: _typed_option(of, default or of.default_text) for of in settings}
        options = [inspect.Parameter(of.name, inspect.Parameter.KEYWORD_ONLY, default=None) for of in settings]
        options += (p for p in own if p.kind is p.KEYWORD_ONLY)
        if common:
            first = sorted((p for p in options if p.name in COMMON), key=lambda p: COMMON.index(p.name))
            options = [*first, *(p for p in options if p.name not in COMMON)]
            hints |= {p.name: Annotated[hints[p.name], Parameter(group=PANELS["Common"])] for p in first}
        parameters = [*(p for p in own if p.kind is not p.KEYWORD_ONLY), *options]
        verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        verb.__annotations__ = {p.name: hints[p.name] for p in parameters}
        return verb

    return with_options


def _typed_option(of: Setting, default: str) -> Any:
    """Return the type of a setting's option, annotated with its description."""
    if of.choices:
        hint: Any = Literal.__getitem__(tuple(of.choices))
    elif of.path:
        hint = Path
    elif of.from_text is not None:
        hint = str
    else:
        hint = int if of.pair else next(kind for kind in of.kinds if kind in (int, float, bool, str))
    if default == REQUIRED:
        return Annotated[hint | None, like(of, help=f"{of.help} Required, here or in --config.", show_default=False)]
    return Annotated[hint | None, like(of, show_default=False if hint is bool else default)]


def read(kind: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options as values of settings. Paths become absolute, so that `resume` can find them."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        of = declared(kind)[name]
        if value is None:
            continue
        if of.path:
            value = _found_weights(name, str(value)) or _absolute(str(value))
        elif of.from_text is not None:
            try:
                value = of.from_text(value)
            except ValueError as exc:
                raise ConfigError(f"--{name.replace('_', '-')} is {value[:100]!r}: {exc}.") from None
        values[name] = value
    return values


def read_settings_file(kind: type, path: Path | None) -> dict[str, Any]:
    """Return the settings in a TOML file; paths in it are relative to its folder."""
    if path is None:
        return {}
    values = read_toml(path)
    values.pop("chosen_by", None)  # the reason of an earlier choice, which this file may have changed
    for name in (name for name, of in declared(kind).items() if of.path and name in values):
        value = str(values[name])
        values[name] = _found_weights(name, value, folder=path.parent) or _absolute(value, folder=path.parent)
    return values


def training_settings(recipe: str, file: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return the settings of a training run: those of the recipe, overridden by the file and then by the options."""
    from dpvision.settings.recipes import recipe as named

    given, from_file = read(Config, flags), read_settings_file(Config, file)
    budget = {k: v for k, v in {**from_file, **given}.items() if k == "epsilon"}
    epsilon = merge(Config(), budget, source="epsilon").epsilon if budget else None  # some recipes depend on it
    settings = merge(named(recipe, epsilon=epsilon), from_file, source=str(file))
    require_epsilon(budget, whom="any one image or person")
    return merge(settings, given, source="command line")


def require_epsilon(*places: Iterable[str], whom: str) -> None:
    """Refuse a command without epsilon: it has no default."""
    if not any("epsilon" in place for place in places):
        raise ConfigError(
            f"--epsilon is missing: how much may be revealed about {whom} is your decision, so there is no default. "
            "Fix: use --epsilon 1 for a strong guarantee, 3 for a moderate one, or 8 for a weak one."
        )


def _found_weights(setting: str, value: str, *, folder: Path | None = None) -> str | None:
    """Return the file of public weights that are given by name; None for a path, or for another setting."""
    from dpvision.storage import weights

    if setting not in ("pretrained", "weights") or not weights.is_name(value) or ((folder or Path()) / value).exists():
        return None
    return str(weights.find(value))


def _absolute(source: str, *, folder: Path | None = None) -> str:
    return source if source == "digits" else os.path.abspath(os.path.join(folder or "", source))


def main() -> None:
    """Run one verb; report an error as one message and an exit code."""
    debug = "--debug" in sys.argv[1:]
    words = [w for w in sys.argv[1:] if w != "--debug"]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid text
    try:
        if words:
            app(words, exit_on_error=False, print_error=False)
        else:
            print(WELCOME, end="", flush=True)
    except CycloptsError as exc:
        _fail(str(exc), 2, debug=debug)
    except DPVisionError as exc:
        _fail(_name_data(str(exc), words), exc.exit_code, debug=debug)
    except KeyboardInterrupt:
        _fail("interrupted.", 130, debug=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as exc:
        _fail(f"{exc.filename or 'the file system'}: {exc.strerror or exc}.", 3, debug=debug)
    except (MemoryError, RuntimeError) as exc:
        if isinstance(exc, RuntimeError) and "DefaultCPUAllocator" not in str(exc):
            raise
        _fail(
            "out of memory. Fix: use a smaller batch, model or image size, or a machine with more memory.",
            3,
            debug=debug,
        )


def _name_data(message: str, words: list[str]) -> str:
    """Put the data set that was given in place of DATA in the commands that a message proposes."""
    if " DATA" not in message:
        return message
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    data = bound.arguments.get("data")
    return message.replace(" DATA", f" {shlex.quote(data)}") if isinstance(data, str) else message


def _fail(message: str, code: int, *, debug: bool) -> None:
    if debug:
        raise
    if "WORLD_SIZE" not in os.environ:
        print(f"dpvision: {message}", file=sys.stderr)
    elif _is_first_to_stop():
        print(f"dpvision (rank {os.environ.get('RANK', '0')}): {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _is_first_to_stop() -> bool:
    """Return whether this worker process is the first to stop; only that one reports the reason."""
    from dpvision.private.training import ranks

    return ranks.is_first_to_report()
