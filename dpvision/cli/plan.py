"""plan: noise from epsilon, or epsilon from noise."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from dpvision.cli.app import Json, app
from dpvision.cli.options import PANELS, like
from dpvision.settings.release import Release
from dpvision.settings.setting import declared
from dpvision.settings.training import Config

_TRAINING, _RELEASE = declared(Config), declared(Release)

plan_app = App(name="plan")
app.command(plan_app)


@plan_app.default
def plan(
    *,
    n: Annotated[int, like(_TRAINING["n"])],
    batch: Annotated[int | None, like(_TRAINING["batch"], show_default=_TRAINING["batch"].default_text)] = None,
    steps: Annotated[int | None, like(_TRAINING["steps"], show_default=_TRAINING["steps"].default_text)] = None,
    epsilon: Annotated[float | None, like(_TRAINING["epsilon"])] = None,
    sigma: Annotated[float | None, like(_TRAINING["sigma"])] = None,
    delta: Annotated[float, like(_TRAINING["delta"])] = 1e-5,
    confirm: Annotated[
        bool,
        Parameter(
            negative="",
            group=PANELS["Output"],
            show_default=False,
            help="Confirm the answer with dp-accounting (one second more).",
        ),
    ] = False,
    scale_down: Annotated[
        float | None,
        Parameter(group=PANELS["Output"], help="Also plan a rehearsal on public data, smaller by this factor."),
    ] = None,
    json: Json = False,
) -> None:
    """Noise from epsilon, or epsilon from noise; touches no data.

    Give all but one of batch, steps, epsilon and sigma and the missing one is solved for. Never over the target.

    Example: `dpvision plan --n 50000 --batch 4096 --steps 875 --epsilon 1 --delta 1e-5 --json`
    """
    from dpvision.cli import screen
    from dpvision.settings.plan import plan as solve
    from dpvision.settings.plan import scaled_down

    answer = solve(n=n, batch=batch, steps=steps, epsilon=epsilon, sigma=sigma, delta=delta, confirm=confirm)
    if scale_down is not None:
        answer["rehearsal"] = scaled_down(answer, scale_down)
    if json:
        screen.as_json(answer)
        return
    rough, rehearsal = answer.pop("approximate"), answer.pop("rehearsal", None)
    rows = {k.replace("_", " "): f"{v:.6g}" if isinstance(v, float) else f"{v}" for k, v in answer.items()}
    screen.table(
        {**rows, "approximate": f"central limit: epsilon {rough['epsilon']:.4g}, mu {rough['mu']:.4g} (no bound)"}
    )
    if rehearsal is not None:
        screen.table(
            {k.replace("_", " "): f"{v:.6g}" if isinstance(v, float) else f"{v}" for k, v in rehearsal.items()},
            title="rehearsal",
        )


@plan_app.command
def release(
    *,
    n: Annotated[int, like(_RELEASE["n"])],
    epsilon: Annotated[float, like(_RELEASE["epsilon"])],
    classes: Annotated[int, Parameter(group=PANELS["Data"], help="Number of classes.")] = 10,
    recipe: Annotated[
        str, like(_RELEASE["recipe"], help=f"{_RELEASE['recipe'].help} The default of `dpvision release` is moments.")
    ] = "neuromix",
    rows: Annotated[int | None, like(_RELEASE["rows"], show_default=_RELEASE["rows"].default_text)] = None,
    degree: Annotated[float | None, like(_RELEASE["degree"], show_default=_RELEASE["degree"].default_text)] = None,
    delta: Annotated[float, like(_RELEASE["delta"])] = 1e-5,
    json: Json = False,
) -> None:
    """The best degree of a mixture and the noise of a release; touches no data.

    Example: `dpvision plan release --n 60000 --epsilon 1 --classes 10`
    """
    from dpvision.cli import screen
    from dpvision.settings.plan import plan_release

    answer = plan_release(recipe, n=n, epsilon=epsilon, classes=classes, rows=rows, degree=degree, delta=delta)
    if json:
        screen.as_json(answer)
    else:
        screen.table({k.replace("_", " "): f"{v:.6g}" if isinstance(v, float) else f"{v}" for k, v in answer.items()})
