"""A release from data to folder: charged before noise, whole or not there, the same bits after a crash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from dpvision.core import accountant, noise
from dpvision.core import files as atomic
from dpvision.core.account import Account
from dpvision.core.events import ClassScheduled, Gaussian, PoissonGaussian, from_json, to_json
from dpvision.data import load
from dpvision.errors import BudgetSpent, ConfigError, PrivacyError
from dpvision.private.statistics import release
from dpvision.private.statistics.release import Encoded, PreparedRelease, make, prepare
from dpvision.private.training.prepare import prepare as prepare_training
from dpvision.released import report
from dpvision.released.folder import read_arrays, read_rows
from dpvision.settings.recipes import RELEASES
from dpvision.settings.recipes import recipe as training_recipe
from dpvision.storage.home import count_threads, ledger_of
from tests.private.statistics.releases.small import files, made, small

pytestmark = pytest.mark.usefixtures("small_home", "few_steps")
TRUE = np.bincount(load("digits").train.labels)


def _account(prepared: PreparedRelease) -> Account:
    return ledger_of(prepared.fingerprint).account()


@pytest.mark.parametrize("recipe", RELEASES)
def test_what_is_charged_is_on_the_card(recipe: str, tmp_path: Path) -> None:
    prepared = prepare("digits", small(recipe, epsilon=2.0))
    facts = make(prepared, tmp_path / "out")
    (charge,) = _account(prepared).charges
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["events"] == [to_json(charge.event)] and from_json(card["events"][0]) == prepared.event()
    assert charge.private and card["status"] == "private" and card["run"] == charge.run
    assert card["guarantee"]["epsilon"] == accountant.epsilon(charge.event, 1e-5) <= 2.0
    features, labels = read_rows(tmp_path / "out")
    assert features.shape == (prepared.config.rows, prepared.config.rank or 64)
    assert len(labels) == prepared.config.rows and np.isfinite(features).all()
    assert card["accuracy"] == facts["accuracy"]


@pytest.mark.parametrize("recipe", ["moments", "class-schedule", "neuromix-hs", "dp-merf", "dp-hp", "p3gm"])
def test_the_charge_is_on_the_disk_before_there_is_noise(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare("digits", small(recipe))
    assert not ledger_of(prepared.fingerprint).exists()

    def killed(*_: Any, **__: Any) -> np.ndarray:
        (charge,) = _account(prepared).charges
        assert charge.event == prepared.event()
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "add_noise", killed)
    with pytest.raises(KeyboardInterrupt):
        make(prepared, tmp_path / "out")
    assert len(_account(prepared).charges) == 1
    assert not [p for p in tmp_path.iterdir() if p.name != "home"], "not even a part"


def test_who_is_over_budget_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "a", small("moments", epsilon=2.0, budget=3.0))
    monkeypatch.setattr(noise, "add_noise", lambda *_, **__: pytest.fail("noise without a charge"))
    prepared = prepare("digits", small("class-schedule", epsilon=2.5))
    with pytest.raises(BudgetSpent):
        make(prepared, tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "home"]
    assert len(_account(prepared).charges) == 1


def test_releases_and_trainings_share_one_account(tmp_path: Path) -> None:
    prepared = prepare("digits", small("moments", budget=20.0))
    make(prepared, tmp_path / "a")
    made(tmp_path / "b", small("class-schedule"))
    training = prepare_training("digits", replace(training_recipe("linear"), epsilon=1.0))
    assert training.fingerprint == prepared.fingerprint
    account = ledger_of(training.fingerprint).account()
    kinds = [type(charge.event) for charge in account.charges]
    assert kinds == [Gaussian, ClassScheduled]
    assert 8 < account.spent() <= 16
    card = json.loads((tmp_path / "b" / "card.json").read_text())
    assert card["data_set"]["epsilon_spent"] == account.spent() and card["data_set"]["charges"] == 2


@pytest.mark.parametrize("recipe", ["moments", "neuromix", "dp-merf", "p3gm"])
def test_after_a_crash_the_same_bits_come_and_nothing_is_charged_again(
    recipe: str, tmp_path: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare("digits", small(recipe, budget=100.0))
    lost: dict[str, bytes] = {}

    def crash(folder: Path, *_: Any) -> None:
        lost.update(files(folder))
        raise RuntimeError("power")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power"):
        patch.setattr(report, "write_release", crash)
        make(prepared, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home"]
    (key,) = (small_home / "keys").glob("*.key")
    assert key.stat().st_mode & 0o077 == 0
    facts = made(tmp_path / "out", prepared.config)
    assert "schema.json" in lost and "rows-00000.safetensors" in lost
    result = files(tmp_path / "out")
    assert {name: result[name] for name in lost} == lost
    (charge,) = _account(prepared).charges
    assert facts["run"] == charge.run
    assert not list((small_home / "keys").glob("*.key")), "the key is destroyed once the folder is whole"

    for number, other in enumerate(
        (prepared.config, replace(prepared.config, seed=5), replace(prepared.config, balance=2.0, share=0.3))
    ):
        make(replace(prepared, config=other), tmp_path / f"again {number}")
        assert len(_account(prepared).charges) == 2 + number
        again = files(tmp_path / f"again {number}")
        assert again["rows-00000.safetensors"] != result["rows-00000.safetensors"], "fresh noise"


@pytest.mark.parametrize("recipe", ["moments", "p3gm"])
def test_after_a_crash_it_is_made_with_the_threads_that_it_began_with(
    recipe: str, tmp_path: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other numbers of threads round sums differently: under the same noise, that would show."""
    prepared, add, seen = prepare("digits", small(recipe)), noise.add_noise, list[dict[str, int]]()
    began = {"torch": torch.get_num_threads(), "blas": 3}

    def crash(*_: Any, **__: Any) -> None:
        seen.append(count_threads())
        raise KeyboardInterrupt

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(count_threads())
        return add(*given, **named)

    with threadpool_limits(3, user_api="blas"), monkeypatch.context() as patch:
        patch.setattr(noise, "add_noise", crash)
        with pytest.raises(KeyboardInterrupt):
            make(prepared, tmp_path / "out")
    (record,) = (small_home / "keys").glob("*.threads")
    monkeypatch.setattr(noise, "add_noise", watched)
    with threadpool_limits(1, user_api="blas"):
        record.rename(tmp_path / "record")
        with pytest.raises(PrivacyError, match=r"not recorded, .* Fix: start again"):
            make(prepared, tmp_path / "out")
        assert len(seen) == 1, "no noise"
        (tmp_path / "record").rename(record)
        make(prepared, tmp_path / "out")
        assert count_threads()["blas"] == 1, "as before, afterwards"
    assert len(seen) > 1 and all(threads == began for threads in seen)
    assert not record.exists() and len(_account(prepared).charges) == 1


def test_after_a_crash_other_settings_do_not_find_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare("digits", small("moments", budget=100.0))

    def crash(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(report, "write_release", crash)
    for config, out in (
        (prepared.config, "a"),
        (replace(prepared.config, share=0.3), "a"),
        (replace(prepared.config, seed=1), "a"),
        (prepared.config, "b"),
    ):
        with pytest.raises(RuntimeError):
            make(replace(prepared, config=config), tmp_path / out)
    charges = _account(prepared).charges
    assert len(charges) == 4 and len({charge.id for charge in charges}) == 4


def test_a_fixed_key_left_by_a_crash_is_not_taken_for_a_secret_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare("digits", small("moments", budget=100.0))

    def crash(*_: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(report, "write_release", crash)
        make(prepared, tmp_path / "out", test_key="known")
    card = make(prepared, tmp_path / "out")
    assert card["status"] == "private"
    assert [charge.private for charge in _account(prepared).charges] == [False, True]


def test_a_fixed_key_gives_the_same_bits(tmp_path: Path) -> None:
    settings = small("neuromix", rows=60)
    for name in "ab":
        made(tmp_path / name, settings, test_key="known")
    one, two = files(tmp_path / "a"), files(tmp_path / "b")
    assert one["rows-00000.safetensors"] == two["rows-00000.safetensors"]
    assert len(_account(prepare("digits", settings)).charges) == 1, "the same release"


def test_one_at_a_time_and_never_over_something(tmp_path: Path, small_home: Path) -> None:
    prepared = prepare("digits", small("moments"))
    place = small_home / "keys" / f"{release.name_of_key(prepared, tmp_path / 'out')}.lock"
    atomic.make_folder(place.parent)
    with atomic.locked(place), pytest.raises(ConfigError, match="another process is making this release"):
        make(prepared, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        make(prepared, tmp_path / "full")
    assert not ledger_of(prepared.fingerprint).exists(), "nothing is charged for a mistake"
    (tmp_path / "empty").mkdir()
    make(prepared, tmp_path / "empty")
    assert (tmp_path / "empty" / "card.json").exists()


def test_hierarchical_sampling_is_charged_per_class(tmp_path: Path) -> None:
    """At the rate inside the class, on the rows of the class: not at degree / n, as published."""
    prepared = prepare("digits", small("neuromix-hs", epsilon=1.0))
    made(tmp_path / "out", prepared.config)
    (charge,) = _account(prepared).charges
    config = prepared.config
    assert isinstance(charge.event, ClassScheduled) and config.degree and config.n and config.rows
    assert min(charge.event.rates) > 2 * config.degree / config.n
    published = PoissonGaussian(config.degree / config.n, prepared.sigma, config.rows)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["guarantee"]["epsilon"] == accountant.epsilon(charge.event, 1e-5)
    assert accountant.epsilon(published, 1e-5) < 0.7 * card["guarantee"]["epsilon"]
    assert "per class" in card["account_of_a_record"]


def test_declared_counts_are_told_as_declared_and_others_with_noise(tmp_path: Path) -> None:
    declared = (143,) * 9 + (150,)
    made(tmp_path / "a", small("moments", class_counts=declared, budget=100.0))
    got = read_arrays(tmp_path / "a" / "moments.safetensors")
    assert np.array_equal(got["counts"], declared) and got["noise_of_counts"] == 0
    made(tmp_path / "b", small("moments"))
    got = read_arrays(tmp_path / "b" / "moments.safetensors")
    assert got["noise_of_counts"] > 1 and not np.isin(got["counts"], TRUE).any()
    assert np.abs(got["counts"] - TRUE).max() < 6 * got["noise_of_counts"]


def test_the_number_of_rows_is_the_public_one(tmp_path: Path) -> None:
    """Whatever is in the data: with 50 images less, or with n declared."""
    data = load("digits")
    arrays = {f"train_{k}": getattr(data.train, k) for k in ("images", "labels")}
    np.savez(tmp_path / "some.npz", **{k: np.asarray(v)[50:] for k, v in arrays.items()})
    for recipe in ("neuromix", "class-schedule", "moments"):
        settings = small(recipe, n=1500, classes=10, budget=100.0)
        shapes = []
        for source in ("digits", str(tmp_path / "some.npz")):
            out = tmp_path / f"{recipe} {len(shapes)} {len(source)}"
            made(out, settings, source=source)
            shapes.append((read_rows(out)[0].shape, sorted(files(out))))
        assert shapes[0] == shapes[1]


def test_rows_made_once_serve_several_releases(tmp_path: Path) -> None:
    prepared = prepare("digits", small("moments", budget=100.0))
    encoded = Encoded(prepared)
    assert np.linalg.norm(encoded.rows.x.astype(np.float64), axis=1).max() <= 1
    make(prepared, tmp_path / "a", encoded=encoded, test_key="k")
    make(prepared, tmp_path / "b", test_key="k")
    assert files(tmp_path / "a")["rows-00000.safetensors"] == files(tmp_path / "b")["rows-00000.safetensors"]


@pytest.mark.parametrize(
    ("recipe", "floor"),
    [("moments", 0.80), ("class-schedule", 0.77), ("neuromix", 0.75), ("neuromix-hs", 0.78), ("dpmix", 0.84)],
)
def test_digits_can_be_learned_from_it(recipe: str, floor: float, tmp_path: Path) -> None:
    """At epsilon 8. Floors are some points below the least of ten keys."""
    result = made(tmp_path / "out", small(recipe), test_key="accuracy")["accuracy"]
    assert max(result.values()) > floor


def test_rows_of_other_data_or_features_are_not_released(tmp_path: Path) -> None:
    """Else the account of one data set would be charged for another."""
    prepared = prepare("digits", small("moments", budget=100.0))
    data = load("digits")
    np.savez(tmp_path / "some.npz", train_images=data.train.images[50:], train_labels=data.train.labels[50:])
    for source, settings in (
        (str(tmp_path / "some.npz"), small("moments", classes=10, budget=100.0)),
        ("digits", small("moments", rank=7, budget=100.0)),
    ):
        with pytest.raises(PrivacyError, match="not come from the data and features"):
            make(prepared, tmp_path / "out", encoded=Encoded(prepare(source, settings)))
    assert not ledger_of(prepared.fingerprint).exists() and not (tmp_path / "out").exists()


def test_rows_depend_on_everything_that_they_are_computed_with(tmp_path: Path) -> None:
    """Else rows with one share for each image would be released under a charge by persons."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)

    def of_data(images: np.ndarray, *, persons: int = 6, classes: int = 3) -> PreparedRelease:
        arrays = {"images": images, "labels": np.arange(12) % 3, "persons": np.arange(12) % persons}
        np.savez(tmp_path / "data.npz", **{f"train_{name}": values for name, values in arrays.items()})
        return prepare(str(tmp_path / "data.npz"), small("moments", n=12, classes=classes))

    usual = of_data(pixels)

    def with_settings(**changes: Any) -> tuple[Any, ...]:
        return replace(usual, config=replace(usual.config, **changes)).of_rows

    weights = [tmp_path / "one", tmp_path / "two"]
    for file in weights:
        file.write_text(file.name)
    others = [
        *(of_data(images).of_rows for images in (pixels[::-1], np.tile(pixels, 2))),
        *(of_data(pixels, **changes).of_rows for changes in ({"persons": 12}, {"classes": 4})),
        *(with_settings(weights=str(file)) for file in weights),
        *(with_settings(**{k: v}) for k, v in {"unit": "person", "encoder": "small", "rank": 5}.items()),
        *(with_settings(rank=0, bound=bound) for bound in (None, 2.0)),
    ]
    assert len({usual.of_rows, *others}) == 1 + len(others)
    assert with_settings(epsilon=2.0, delta=1e-6, sigma=3.0, rows=30) == usual.of_rows, "they serve several releases"


def test_a_key_that_outlived_its_release_is_destroyed(
    tmp_path: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the folder's name and the key's end: whoever has both could take the noise away."""
    prepared = prepare("digits", small("moments"))
    with monkeypatch.context() as patch:
        patch.setattr(release.Key, "destroy", lambda place: None)
        make(prepared, tmp_path / "out")
    assert list((small_home / "keys").glob("*.key"))
    with pytest.raises(ConfigError, match="already exists"):
        make(prepared, tmp_path / "out")
    assert not list((small_home / "keys").glob("*.key"))


def test_a_second_process_that_comes_too_late_is_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one finished while this one made features."""
    prepared = prepare("digits", small("moments", budget=100.0))
    real = release.Encoded

    def slow(*arguments: Any) -> Encoded:
        monkeypatch.setattr(release, "Encoded", real)
        make(prepared, tmp_path / "out")
        return real(*arguments)

    monkeypatch.setattr(release, "Encoded", slow)
    with pytest.raises(ConfigError, match="already exists"):
        make(prepared, tmp_path / "out")
    assert len(_account(prepared).charges) == 1


def test_another_budget_than_the_account_has_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a", small("moments", budget=100.0))
    with pytest.raises(ConfigError, match="has a budget of epsilon 100"):
        made(tmp_path / "b", small("moments", budget=3.0))


def test_what_can_not_be_scaled_is_refused_before_the_charge(tmp_path: Path) -> None:
    """And before features are made, which may take hours."""
    for settings, message in (
        (small("neuromix", balance=1e9), "balance"),
        (small("neuromix", alpha=1e-9), "alpha"),
        (small("moments", share=2.0), "share"),
    ):
        prepared = prepare("digits", settings)
        with pytest.raises(ConfigError, match=message):
            release.require_possible(prepared, tmp_path / "out")
        assert not ledger_of(prepared.fingerprint).exists()


def test_every_file_of_rows_says_whether_its_noise_is_secret(tmp_path: Path) -> None:
    from safetensors import safe_open

    for name, key in (("secret", None), ("fixed", "known")):
        made(tmp_path / name, small("moments", budget=100.0), test_key=key)
        schema = json.loads((tmp_path / name / "schema.json").read_text())
        results = {schema["status"]}
        assert schema["status_means"].startswith("may be released" if key is None else "must not be released")
        for path in ("rows-00000.safetensors", "moments.safetensors"):
            with safe_open(tmp_path / name / path, "np") as file:
                results.add(file.metadata()["status"])
        assert results == {"private" if key is None else "NOT PRIVATE"}


@pytest.mark.parametrize("out", ["file/out", "a" * 250])
def test_a_folder_that_can_not_be_made_costs_nothing(out: str, tmp_path: Path) -> None:
    """Neither below a file, nor by a name that leaves no room for the one it has until it is whole."""
    (tmp_path / "file").write_text("mine")
    prepared = prepare("digits", small("moments"))
    with pytest.raises((ConfigError, OSError), match=r"not a folder with write access|File name too long"):
        make(prepared, tmp_path / out)
    assert not ledger_of(prepared.fingerprint).exists()


def test_rows_of_one_public_class_have_its_number(tmp_path: Path) -> None:
    made(tmp_path / "out", small("class-schedule", rows=25))
    labels = read_rows(tmp_path / "out")[1]
    assert labels.dtype == np.int64 and np.array_equal(labels, np.arange(25) % 10), "each class in turn"
    assert "number of each row's class" in (tmp_path / "out" / "README.md").read_text()
