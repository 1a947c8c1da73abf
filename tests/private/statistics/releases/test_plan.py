"""`plan release` answers from public numbers, with the theorem's degree and never above the target."""

from __future__ import annotations

import pytest

from dpvision.audit.hierarchical import compare_accounts, published_sigma
from dpvision.core.events import Budget
from dpvision.errors import ConfigError
from dpvision.settings.plan import plan_release
from dpvision.settings.recipes import RELEASES, release_recipe
from dpvision.settings.release import optimal_degree, with_changes

N = 4000


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize("recipe", RELEASES)
def test_epsilon_is_used_and_never_exceeded(recipe: str, epsilon: float) -> None:
    answer = plan_release(recipe, n=N, epsilon=epsilon, classes=10)
    assert 0.98 * epsilon < answer["epsilon"] <= epsilon
    whole = with_changes(release_recipe(recipe), {"epsilon": epsilon}).complete(N, 10, channels=1)
    assert answer["sigma"] == whole.sigma and answer["rows"] == whole.rows, "the same as that of a release"
    if not whole.is_sampled:
        assert "degree" not in answer
    elif recipe == "neuromix-cifar100":
        assert answer["degree"] == 64, "as published"
    elif recipe == "class-schedule":
        assert answer["degree"] == optimal_degree(N // 10, N // 10, budget=Budget(epsilon, 1e-5))
    else:
        assert answer["degree"] == optimal_degree(N, N, budget=Budget(epsilon, 1e-5))


def test_rows_and_degree_can_be_asked_for() -> None:
    answer = plan_release("neuromix", n=N, epsilon=1.0, classes=10, rows=100)
    assert answer["degree"] == optimal_degree(N, 100, budget=Budget(1.0, 1e-5)) and answer["rows"] == 100
    fixed = plan_release("neuromix", n=N, epsilon=1.0, classes=10, rows=100, degree=5.0)
    assert fixed["degree"] == 5.0 and fixed["sigma"] < answer["sigma"]
    with pytest.raises(ConfigError, match="degree: recipe moments does not use this setting"):
        plan_release("moments", n=N, epsilon=1.0, classes=10, degree=5.0)
    with pytest.raises(ConfigError, match="delta"):
        plan_release("moments", n=N, epsilon=1.0, classes=10, delta=0.01)


@pytest.mark.parametrize("recipe", ["neuromix", "neuromix-hs", "dpmix"])
def test_the_papers_noise_tells_more_than_it_says(recipe: str) -> None:
    whole = with_changes(release_recipe(recipe), {"epsilon": 1.0}).complete(N, 10, channels=1)
    assert whole.sigma and published_sigma(whole) < whole.sigma
    result = compare_accounts(whole, 10)
    truly = float(result["its true privacy"].removeprefix("epsilon "))
    assert truly > (2.0 if recipe == "neuromix-hs" else 1.0), "hierarchical sampling most of all"
    assert "epsilon 1 at delta 1e-05" in result["requested"]


@pytest.mark.parametrize("recipe", ["moments", "class-schedule", "dp-merf", "dp-hp", "p3gm"])
def test_what_is_not_of_that_paper_has_no_papers_account(recipe: str) -> None:
    with pytest.raises(ConfigError, match="no published account to compare with"):
        compare_accounts(release_recipe(recipe).complete(N, 10, channels=1), 10)
