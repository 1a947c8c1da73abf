"""plan: noise from epsilon, or epsilon from noise."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from dpvision.cli.app import Json, app

plan_app = App(name="plan")
app.command(plan_app)


@plan_app.default
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
    n: int,
    epsilon: float,
    classes: int = 10,
    recipe: Annotated[str, Parameter(help="see `dpvision recipes`; `release` itself has moments")] = "neuromix",
    rows: Annotated[int | None, Parameter(help="released rows; by default n, of moments 20,000 at least")] = None,
    degree: Annotated[float | None, Parameter(help="expected records in a mixture; by default the best")] = None,
    delta: float = 1e-5,
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
