"""Settings of a release: mistakes are named, nothing is ignored in silence, and what is open comes from public numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpvision.core import accountant
from dpvision.core.events import ClassScheduled, Gaussian, PoissonGaussian
from dpvision.core.rows import Rows
from dpvision.errors import ConfigError
from dpvision.private.statistics.baselines.synthesis import Synthesis
from dpvision.private.statistics.release import MECHANISMS, mechanism_of
from dpvision.settings.recipes import RECIPES, RELEASES, recipe, release_recipe
from dpvision.settings.release import KINDS, Release, unused_settings, with_changes
from dpvision.settings.setting import check_values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": 10, "class_counts": (4, 5)}, "add up to 9, but n is 10"),
        ({"class_counts": ()}, "class_counts"),
        ({"class_counts": (5, -1)}, "class_counts"),
        ({"kind": "moment"}, "kind is 'moment'"),
        ({"sampling": "uniform"}, "sampling is 'uniform'"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": 5, "bound": 2.0}, "bound"),
        ({"rank": 0, "bound": 0.0}, "bound is 0"),
        ({"rows": 0}, "rows is 0"),
        ({"n": -3}, "n is -3"),
        ({"sigma": float("inf")}, "sigma is inf"),
        ({"degree": float("nan")}, "degree is nan"),
        ({"seed": -1}, "seed"),
        ({"budget": 0.0}, "budget"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Release(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"balence": 1.0}, "Did you mean 'balance'"),
        ({"counts-shar": 0.1}, "Did you mean 'counts_share'"),
        ({"rows": "many"}, "rows"),
        ({"rows": True}, "rows"),
        ({"class_counts": [1.5, 2]}, "class_counts"),
        ({"epsilon": float("nan")}, "epsilon"),
    ],
)
def test_unknown_settings_and_other_kinds_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_values(Release, values, source="a file")


@pytest.mark.parametrize("name", RELEASES)
def test_settings_that_would_change_nothing_are_refused(name: str) -> None:
    base = release_recipe(name)
    others = {"sampling": "poisson", "degree": 3.0, "drawn": 2.0, "balance": 1.0, "alpha": 0.5, "most_weight": 2.0}
    if base.kind not in ("moments", "mixtures"):
        others |= {"share": 0.4, "class_counts": (750, 750), "objective": "balanced"}
    if base.kind == "p3gm":
        others |= {"counts_share": 0.02}
    if base.kind == "mixtures":
        others = {"share": 0.4, "counts_share": 0.02, "most_weight": 2.0}
        others |= {} if base.sampling == "hierarchical" else {"drawn": 2.0}
        others |= {"balance": 2.0} if base.sampling == "class-schedule" else {}
    assert set(others) == unused_settings(base)
    for key, value in others.items():
        with pytest.raises(ConfigError, match=f"{key.replace('_', '-')}: recipe {name} does not use this setting"):
            with_changes(base, {key: value})
    if base.kind == "mixtures":
        assert (
            with_changes(base, {"alpha": 0.5, "most_weight": 2.0, "sampling": "hierarchical", "drawn": 2.0}).drawn
            == 2.0
        )


@pytest.mark.parametrize(
    ("settings", "n", "classes", "message"),
    [
        (Release(delta=0.01), 100, 10, "delta is 0.01 and n is 100"),
        (Release(delta=0.01, n=100), 50, 10, "delta is 0.01 and n is 100"),
        (Release(class_counts=(50, 50)), 100, 10, "2 numbers, but there are 10 classes"),
        (Release(), 1, 10, "at least 2"),
        (Release(kind="mixtures", degree=200.0), 100, 10, "degree"),
        (Release(epsilon=1000.0), 1500, 10, "epsilon 1000 at delta 1e-05 would allow a sigma of 0.05"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(settings: Release, n: int, classes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.complete(n, classes, channels=1)


@pytest.mark.parametrize("sampling", ["poisson", "class-schedule", "hierarchical"])
@pytest.mark.parametrize("sigma", [None, 0.05])
def test_a_delta_that_allows_no_noise_is_refused(sampling: str, sigma: float | None) -> None:
    """One row that a record is in with probability 8e-4, and delta 9e-4: delta alone covers that it is revealed.

    Where rows are of one class, 16e-4: that is half of it.
    """
    few = Release(kind="mixtures", sampling=sampling, rows=1, degree=0.8, delta=9e-4, drawn=2.0, sigma=sigma, seed=1)
    with pytest.raises(ConfigError, match=r"delta is 0\.0009.* probability 0\.00(08|16): .*Fix: .*--delta"):
        few.complete(1000, 2, channels=1)
    enough = replace(few, delta=1e-5, sigma=None).complete(1000, 2, channels=1)
    assert enough.sigma and enough.sigma > 0.25
    with pytest.raises(ConfigError, match=r"delta is 0\.0002"):
        replace(few, delta=2e-4).complete(1000, 2, channels=1)


def test_the_declared_number_counts_and_not_the_true_one() -> None:
    """So a release shows nothing of the true one: neither in its noise nor in its number of rows."""
    for name in ("moments", "class-schedule", "neuromix"):
        base = with_changes(release_recipe(name), {"n": 1500, "epsilon": 8.0})
        assert base.complete(1437, 10, channels=1) == base.complete(1499, 10, channels=1)
        counted = with_changes(release_recipe(name), {"class_counts": (150,) * 10, "epsilon": 8.0})
        assert counted.complete(1437, 10, channels=1).n == 1500
    assert Release().complete(1437, 10, 1).rows == 20_000
    assert Release().complete(50_000, 10, 1).rows == 50_000
    assert with_changes(release_recipe("neuromix"), {"sigma": 9.0}).complete(1437, 10, 1).rows == 1437
    assert [Release().complete(99, 2, c).encoder for c in (1, 3)] == ["scatter-linear", "patches-256"]


@pytest.mark.parametrize("name", RELEASES)
def test_the_event_of_each_recipe(name: str) -> None:
    """All of the budget is used, and no more."""
    whole = with_changes(release_recipe(name), {"epsilon": 8.0}).complete(1500, 10, channels=1)
    assert whole.sigma and whole.recipe == name
    event = whole.event(whole.sigma, 10)
    kinds = {
        **dict.fromkeys(("moments", "dp-merf", "dp-hp", "p3gm"), Gaussian),
        "class-schedule": ClassScheduled,
        "neuromix-hs": ClassScheduled,
        "neuromix-cifar100": ClassScheduled,
    }
    assert isinstance(event, kinds.get(name, PoissonGaussian))
    assert 7.9 < accountant.epsilon(event, whole.delta) <= 8.0


@pytest.mark.parametrize("name", RELEASES)
def test_every_kind_has_a_mechanism_that_does_its_event(name: str) -> None:
    assert MECHANISMS.keys() == KINDS.keys()
    whole = with_changes(release_recipe(name), {"epsilon": 8.0, "rank": 0}).complete(1500, 10, channels=1)
    made = mechanism_of(Rows.none(10), whole)
    result = made.method.releases if isinstance(made, Synthesis) else made.event(2.0)
    assert result == (whole.of_kind.releases if isinstance(made, Synthesis) else whole.event(2.0, 10))


def test_rates_of_declared_classes() -> None:
    """Each class's rows have as many of it: the rate of a small class is higher, and never above 1."""
    base = with_changes(release_recipe("class-schedule"), {"degree": 30.0, "class_counts": (60, 20, 300, 0)})
    whole = base.complete(380, 4, channels=1)
    assert whole.rates(4) == (0.5, 1.0, 0.1, 1.0)
    assert whole.sigma
    event = whole.event(whole.sigma, 4)
    assert isinstance(event, ClassScheduled) and max(event.rates) == 1.0


def test_recipes_of_one_verb_are_not_those_of_the_other() -> None:
    assert not RELEASES.keys() & RECIPES.keys()
    with pytest.raises(ConfigError, match="is for `dpvision train`"):
        release_recipe("linear")
    with pytest.raises(ConfigError, match="is for `dpvision release`"):
        recipe("neuromix")
    with pytest.raises(ConfigError, match="Did you mean 'neuromix-hs'"):
        release_recipe("neuromix-h")


def test_no_folder_of_the_operator_is_told() -> None:
    result = Release(encoder="resnet9", weights="/home/somebody/secret/w.safetensors").without_folders()
    assert result.weights == "w.safetensors"


@pytest.mark.parametrize(("n", "epsilon", "share"), [(1437, 1.0, 0.25), (1437, 8.0, 0.5), (60_000, 0.1, 0.5)])
def test_share_of_the_second_moment_follows_from_public_numbers(n: int, epsilon: float, share: float) -> None:
    moments = replace(release_recipe("moments"), epsilon=epsilon)
    assert moments.complete(n, 10, 1).share == share
    assert replace(moments, share=0.3).complete(n, 10, 1).share == 0.3
    assert replace(release_recipe("neuromix"), epsilon=epsilon).complete(n, 10, 1).share is None
