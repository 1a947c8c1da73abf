"""One account for one data set: a copy of spent data is charged where its images are, or counted apart for a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from dpvision.core.events import Budget, Gaussian
from dpvision.core.ledger import Ledger
from dpvision.data import load, pack
from dpvision.errors import BudgetSpent, ConfigError, LedgerMismatch, PrivacyError
from dpvision.estimators import PrivateImageClassifier
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import choose, read_accounts
from dpvision.private.training import train, tune
from dpvision.released import report
from dpvision.settings.training import Config
from dpvision.storage.home import ledger_of
from tests.one_thread import one_thread  # noqa: F401
from tests.system.runs.commands import run as command

SETTINGS = Config(epsilon=3.0, budget=4.0, model="linear", steps=4, full_batch=True, n=300, classes=10)
COPY = replace(SETTINGS, budget=None)
SCHEMA = json.loads((resources("dpvision.released.report") / "card.schema.json").read_text("utf-8"))


def digits(rows: slice) -> dict[str, np.ndarray]:
    loaded = load("digits").train
    return {"train_images": loaded.images[rows], "train_labels": loaded.labels[rows]}


def write(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def spend(source: str, folder: Path, config: Config = SETTINGS, **given: Any) -> dict[str, Any]:
    """Train, and return the card."""
    prepared = train.prepare(source, config)
    accounts = choose(prepared.fingerprint, prepared.sketch, **given)
    run = train.begin(prepared, folder, accounts=accounts)
    train.proceed(run, prepared)
    account = read_accounts(run.facts()).first.account()
    report.write(run, account)
    card = json.loads((folder / "card.json").read_text())
    jsonschema.validate(card, SCHEMA)
    return card


def ledgers(home: Path) -> list[Ledger]:
    paths = sorted((home / "ledgers").glob("*.jsonl"))
    return [Ledger(path.parent, json.loads(path.read_text().splitlines()[0])["fingerprint"]) for path in paths]


def one_pixel(folder: Path) -> str:
    arrays = digits(slice(0, 300))
    arrays["train_images"][0, 3, 3] ^= 1
    return write(folder / "copy.npz", **arrays)


def as_float(folder: Path) -> str:
    arrays = digits(slice(0, 300))
    return write(folder / "copy.npz", **{**arrays, "train_images": (arrays["train_images"] / 255).astype(np.float32)})


def as_rgb(folder: Path) -> str:
    arrays = digits(slice(0, 300))
    images = np.repeat(arrays["train_images"].reshape(-1, 8, 8, 1), 3, axis=3)
    return write(folder / "copy.npz", **{**arrays, "train_images": images})


def edited_originals(folder: Path) -> str:
    """The digests in a packed store say that all its images were others before they were resized."""
    source = folder / "listed"
    (source / "images").mkdir(parents=True)
    from PIL import Image

    lines, arrays = ["path,label"], digits(slice(0, 300))
    for number, (image, label) in enumerate(zip(*arrays.values(), strict=True)):
        Image.fromarray(image.reshape(8, 8)).save(source / "images" / f"{number}.png")
        lines.append(f"images/{number}.png,{label}")
    (source / "table.csv").write_text("\n".join(lines) + "\n")
    store = pack(source / "table.csv", folder / "store")
    edited = np.load(store / "train_originals.npy") ^ 255
    np.save(store / "train_originals.npy", edited)
    return str(store)


def an_extension(folder: Path) -> str:
    return write(folder / "copy.npz", **digits(slice(0, 400)))


def mostly_others(folder: Path) -> str:
    """3% of its images, and 10% of the account's."""
    return write(folder / "copy.npz", **digits(slice(270, 1270)))


COPIES: list[Callable[[Path], str]] = [one_pixel, as_float, as_rgb, edited_originals, an_extension, mostly_others]


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.__name__)
def test_a_copy_of_spent_data_has_no_budget_of_its_own(
    copy: Callable[[Path], str], tmp_path: Path, own_home: Path
) -> None:
    spend(write(tmp_path / "data.npz", **digits(slice(0, 300))), tmp_path / "first")
    (own,) = ledgers(own_home)
    with pytest.raises(
        BudgetSpent, match=r"so it must be charged too, and it refuses.*ledger ITS_DATA --set-budget \d.*--new-account"
    ):
        spend(source := copy(tmp_path), tmp_path / "second", COPY)
    assert len(ledgers(own_home)) == 1 and len(own.account().charges) == 1
    card = spend(source, tmp_path / "third", replace(COPY, epsilon=0.3))
    (account,) = (result.account() for result in ledgers(own_home))
    assert len(account.charges) == 2 and card["data_set"]["account"] == account.id
    assert [(result["account"], result["charged"]) for result in card["overlapping_accounts"]] == [(account.id, True)]
    assert f"account {account.id}" in (tmp_path / "third" / "card.md").read_text()
    assert f"account {account.id}" in (tmp_path / "third" / "report.html").read_text()


def test_other_images_open_an_account_of_their_own(tmp_path: Path, own_home: Path) -> None:
    spend(write(tmp_path / "data.npz", **digits(slice(0, 300))), tmp_path / "first")
    card = spend(write(tmp_path / "other.npz", **digits(slice(300, 600))), tmp_path / "second")
    assert len(ledgers(own_home)) == 2 and card["overlapping_accounts"] == [] and card["new_account"] is None


def halves_and_whole(folder: Path) -> tuple[str, str, str]:
    cuts = {"left": slice(0, 150), "right": slice(150, 300), "whole": slice(0, 300)}
    return tuple(write(folder / f"{name}.npz", **digits(rows)) for name, rows in cuts.items())  # type: ignore[return-value]


def test_all_accounts_are_charged_or_none(tmp_path: Path, own_home: Path) -> None:
    """The right half has spent more than the left one: the whole is refused by it, and the left is not charged."""
    left, right, whole = halves_and_whole(tmp_path)
    spend(left, tmp_path / "1", replace(SETTINGS, epsilon=0.5))
    spend(right, tmp_path / "2", replace(SETTINGS, epsilon=3.8))
    with pytest.raises(BudgetSpent):
        spend(whole, tmp_path / "3", replace(COPY, epsilon=2.0))
    assert [len(result.account().charges) for result in ledgers(own_home)] == [1, 1]
    card = spend(whole, tmp_path / "3", replace(COPY, epsilon=0.1))
    assert [len(result.account().charges) for result in ledgers(own_home)] == [2, 2]
    assert {result["share"] for result in card["overlapping_accounts"]} == {"50% to 90%"}
    first, second = (result.account().charges[1] for result in ledgers(own_home))
    assert (first.id, first.run, first.event) == (second.id, second.run, second.event)


def test_a_budget_that_is_stated_is_that_of_the_first_account(tmp_path: Path, own_home: Path) -> None:
    left, _, whole = halves_and_whole(tmp_path)
    spend(whole, tmp_path / "1", replace(SETTINGS, epsilon=0.3, budget=4.0))
    spend(left, tmp_path / "2", replace(SETTINGS, epsilon=0.3, budget=2.0), new_account="a trial")
    spend(whole, tmp_path / "3", replace(SETTINGS, epsilon=0.3, budget=4.0))
    assert sorted(len(result.account().charges) for result in ledgers(own_home)) == [2, 2]


def test_a_resumed_branch_is_refused_before_any_account_is_charged(tmp_path: Path, own_home: Path) -> None:
    left, right, whole = halves_and_whole(tmp_path)
    spend(left, tmp_path / "1", replace(SETTINGS, epsilon=0.1))
    spend(right, tmp_path / "2", replace(SETTINGS, epsilon=0.1))
    prepared = train.prepare(whole, replace(COPY, epsilon=0.5))
    run = train.begin(prepared, tmp_path / "3")
    train.proceed(run, prepared, stop=lambda: True)
    full, (other,) = read_accounts(run.facts()).first, read_accounts(run.facts()).others
    assert len(full.account().charges) == len(other.account().charges) == 2
    full.spend(Gaussian(1.5), id="x", run="y")  # the last one that would be charged
    changed = train.reopen(run, {"sigma": 2.67})
    with pytest.raises(BudgetSpent):
        train.proceed(run, changed)
    assert len(full.account().charges) == 3 and len(other.account().charges) == 2
    train.proceed(run, train.reopen(run))
    assert len(full.account().charges) == 3 and len(other.account().charges) == 2, "the same branch is paid for once"


def test_a_crash_between_two_charges_counts_too_much_and_never_too_little(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right, whole = halves_and_whole(tmp_path)
    for number, source in enumerate((left, right)):
        spend(source, tmp_path / str(number), replace(SETTINGS, epsilon=0.5))
    prepared = train.prepare(whole, replace(COPY, epsilon=0.5))
    run, stepped, spent = train.begin(prepared, tmp_path / "run"), [], []
    original = Ledger.spend

    def crash(self: Ledger, *given: Any, **more: Any) -> Any:
        if spent:
            raise KeyboardInterrupt
        spent.append(self)
        return original(self, *given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "spend", crash)
        patch.setattr("dpvision.private.training.private_sum.PrivateSum.step", lambda *_: stepped.append(1))
        train.proceed(run, prepared)
    assert not stepped and sorted(len(result.account().charges) for result in ledgers(own_home)) == [1, 2]
    train.proceed(run, prepared)
    assert [len(result.account().charges) for result in ledgers(own_home)] == [2, 2]


def test_accounts_that_appear_after_a_run_began_are_charged_for_its_next_branch(tmp_path: Path, own_home: Path) -> None:
    """So are those that were removed from run.json; but what was charged before is not charged again."""
    left, _, whole = halves_and_whole(tmp_path)
    prepared = train.prepare(whole, replace(SETTINGS, epsilon=0.5))
    run = train.begin(prepared, tmp_path / "whole")
    train.proceed(run, prepared, stop=lambda: True)
    spend(left, tmp_path / "left", replace(SETTINGS, epsilon=0.5), new_account="a trial")
    train.proceed(run, train.reopen(run), stop=lambda: True)
    other = ledger_of(train.prepare(left, COPY).fingerprint)
    assert len(other.account().charges) == 1, "the branch was charged before the other account was there"
    train.proceed(run, train.reopen(run, {"lr": 0.5}))
    assert len(other.account().charges) == len(ledger_of(prepared.fingerprint).account().charges) == 2
    card = report.card(run, ledger_of(prepared.fingerprint).account())
    assert [result["charged"] for result in card["overlapping_accounts"]] == [True]

    copy = train.prepare(one_pixel(tmp_path), replace(COPY, epsilon=0.1))
    run = train.begin(copy, tmp_path / "copy")
    run.write_facts({key: value for key, value in run.facts().items() if key != "accounts"})
    train.proceed(run, copy)
    assert len(ledger_of(prepared.fingerprint).account().charges) == 3


def test_a_reason_counts_images_apart_and_is_seen_everywhere(tmp_path: Path, own_home: Path) -> None:
    data, reason = write(tmp_path / "data.npz", **digits(slice(0, 300))), "consent for a second study, ethics 12/3"
    spend(data, tmp_path / "first")
    (old,) = ledgers(own_home)
    card = spend(one_pixel(tmp_path), tmp_path / "second", new_account=reason)
    (new,) = (result for result in ledgers(own_home) if result.fingerprint != old.fingerprint)
    assert len(old.account().charges) == 1 and [c.new_account for c in new.account().charges] == [reason]
    assert reason in new.path.read_text() and reason in (tmp_path / "second" / "ledger.jsonl").read_text()
    assert card["new_account"] == reason
    assert card["overlapping_accounts"] == [
        {"account": old.account().id, "share": "more than 90%", "share_of_account": "more than 90%", "charged": False}
    ]
    assert any("counted separately" in line for line in card["not_covered"])
    for name in ("card.md", "report.html"):
        assert "ethics 12/3" in (tmp_path / "second" / name).read_text()
    with pytest.raises(BudgetSpent):  # without the reason, both are charged
        spend(one_pixel(tmp_path), tmp_path / "third", COPY)


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 301])
def test_a_reason_is_words_on_one_line(reason: str) -> None:
    with pytest.raises(ConfigError, match="--new-account needs a reason"):
        choose("ab" * 32, overlap.NOTHING, new_account=reason)


def test_accounts_of_persons_and_of_images_do_not_mix(tmp_path: Path) -> None:
    source = write(tmp_path / "data.npz", **digits(slice(0, 300)), train_persons=np.arange(300) // 2)
    spend(source, tmp_path / "first", replace(SETTINGS, unit="person", n=150))
    with pytest.raises(PrivacyError, match="protects persons"):
        spend(one_pixel(tmp_path), tmp_path / "second", replace(COPY, epsilon=0.5))


def test_accounts_of_earlier_versions_are_charged(tmp_path: Path, own_home: Path) -> None:
    """Their digests are a text file; their runs do not list accounts."""
    from dpvision.data import identify
    from dpvision.public.provenance import pixel_digests

    source = write(tmp_path / "data.npz", **digits(slice(0, 300)))
    prepared = train.prepare(source, SETTINGS)
    run = train.begin(prepared, tmp_path / "first")
    run.write_facts({key: value for key, value in run.facts().items() if key != "accounts"})
    train.proceed(run, prepared)
    assert report.card(run, ledger_of(prepared.fingerprint).account())["overlapping_accounts"] == []
    (own,) = ledgers(own_home)
    own.images_path.unlink()
    split = prepared.data.train
    members = sorted({d.hex()[:24] for d in (*identify(split)[2], *pixel_digests(split.images))})
    own.path.with_suffix(".sketch").write_text("\n".join([own.fingerprint, *members]) + "\n")
    with pytest.raises(BudgetSpent, match="about 100% of these images"):
        spend(as_float(tmp_path), tmp_path / "second", COPY)


def test_a_tuning_is_charged_to_every_account(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpvision.private.training import stopping

    left, right, whole = halves_and_whole(tmp_path)
    for number, source in enumerate((left, right)):
        spend(source, tmp_path / str(number), replace(SETTINGS, epsilon=0.3, budget=40.0))
    public = write(tmp_path / "public.npz", **digits(slice(300, 400)))
    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: 2)
    # After a first result, a tuning may give up little of delta, and counts as the Gaussian that dominates it.
    settings = replace(COPY, epsilon=2.0, delta=4e-7, size=(8, 8), channels=1)
    prepared = tune.prepare(whole, settings, {"lr": [0.01, 4.0]}, score=public, trials=3.0)
    run = tune.proceed(prepared, tmp_path / "tuned")
    assert [c.event == prepared.event for result in ledgers(own_home) for c in result.account().charges] == [
        False,
        True,
    ] * 2
    card = report.card(run, read_accounts(run.facts()).first.account())
    assert [result["charged"] for result in card["overlapping_accounts"]] == [True, True]


def test_fits_and_trainings_share_accounts(tmp_path: Path, own_home: Path) -> None:
    arrays = digits(slice(0, 300))
    spend(write(tmp_path / "data.npz", **arrays), tmp_path / "first")
    fit = PrivateImageClassifier(epsilon=3.0, model="linear", steps=4, settings={"full_batch": True}, classes=10, n=300)
    changed = np.repeat(arrays["train_images"].reshape(-1, 8, 8, 1), 3, axis=3)
    with pytest.warns(match="is charged to account"), pytest.raises(BudgetSpent):
        fit.fit(changed, arrays["train_labels"])
    assert len(ledgers(own_home)) == 1


@pytest.mark.parametrize("verb", ["train", "release"])
def test_the_command_line_charges_refuses_and_counts_apart(verb: str, tmp_path: Path) -> None:
    home, small = tmp_path / "home", ["--epsilon", 2, "--classes", 10, "--n", 300]
    small += (
        ["--steps", 4, "--model", "linear"] if verb == "train" else ["--encoder", "pixels", "--rank", 0, "--rows", 50]
    )
    data, copy = write(tmp_path / "data.npz", **digits(slice(0, 300))), as_rgb(tmp_path)
    code, out, err = command(verb, data, *small, "--out", tmp_path / "first", home=home)
    assert code == 0 and "a new account" in out, err
    code, out, err = command(verb, copy, *small, "--out", tmp_path / "second", home=home)
    assert code == 4 and "has about 100% of these images" in out and "--new-account" in err
    code, out, _ = command("ledger", copy, home=home)
    assert code == 0 and "has about 100% of these images" in out and "of 2 spent" in out
    code, out, err = command(verb, copy, *small, "--new-account", "a trial", "--out", tmp_path / "third", home=home)
    assert code == 0 and "It is not charged" in out, err
    card = json.loads((tmp_path / "third" / "card.json").read_text())
    jsonschema.validate(card, SCHEMA)
    assert card["new_account"] == "a trial" and [result["charged"] for result in card["overlapping_accounts"]] == [
        False
    ]
    assert "a trial" in (tmp_path / "third" / "card.md").read_text()
    assert "new-account" in command(verb, "--help", home=home)[1]


def test_a_damaged_list_of_images_stops_a_run(tmp_path: Path, own_home: Path) -> None:
    spend(write(tmp_path / "data.npz", **digits(slice(0, 300))), tmp_path / "first")
    (own,) = ledgers(own_home)
    own.images_path.write_bytes(b"\xff")
    with pytest.raises(LedgerMismatch, match="cannot be read"):
        spend(one_pixel(tmp_path), tmp_path / "second", COPY)
    shutil.rmtree(own_home)
    ledger_of("ab" * 32).open(Budget(1.0, 1e-5))  # an account without images, such as one by name, overlaps with none
    spend(one_pixel(tmp_path), tmp_path / "second", COPY)


def test_copies_that_start_at_the_same_time_find_each_other(tmp_path: Path, own_home: Path) -> None:
    """Accounts are looked for again when they are charged: hours may have passed since the plan was shown."""
    source = write(tmp_path / "data.npz", **digits(slice(0, 300)))
    prepared = [train.prepare(s, replace(COPY, epsilon=3.0)) for s in (source, one_pixel(tmp_path))]
    accounts = [choose(p.fingerprint, p.sketch) for p in prepared]
    assert not any(result.first.exists() or result.overlaps for result in accounts), "neither knows of the other"
    results = {"budget": Budget(3.1, 1e-5), "run": "r"}
    for number, (one, to) in enumerate(zip(prepared, accounts, strict=True)):
        given = {"fingerprint": one.fingerprint, "sketch": one.sketch, "id": str(number), **results}
        if number == 0:
            charge, now = to.charge(one.event(), **given)
            assert charge.event == one.event() and now.first.fingerprint == one.fingerprint
        else:
            with pytest.raises(BudgetSpent):
                to.charge(one.event(), **given)
            smaller = Gaussian(200.0)
            assert to.charge(smaller, **given)[1].first.fingerprint == prepared[0].fingerprint
    assert len(ledgers(own_home)) == 1, "no second account"


def test_one_shared_image_is_on_no_card(tmp_path: Path) -> None:
    """If one image decided what a card lists, the card would reveal who was in the data."""
    spend(write(tmp_path / "a.npz", **digits(slice(0, 300))), tmp_path / "first")
    others = digits(slice(300, 600))
    without = spend(write(tmp_path / "b.npz", **others), tmp_path / "without", replace(COPY, epsilon=0.1, budget=9.0))
    one = {name: np.concatenate([rows, digits(slice(0, 1))[name]]) for name, rows in others.items()}
    with_one = spend(write(tmp_path / "c.npz", **one), tmp_path / "with", replace(COPY, epsilon=0.1))
    assert without["overlapping_accounts"] == []
    ours = read_accounts(
        {"accounts": json.loads((tmp_path / "with" / "operator" / "run.json").read_text())["accounts"]}
    )
    assert ours.first.fingerprint == choose(*_named(tmp_path / "b.npz")).first.fingerprint
    assert len(with_one["overlapping_accounts"]) == 1, "the account that is charged, and not that of one image"
    assert without["not_covered"] == [x for x in with_one["not_covered"] if "other accounts" not in x]


def _named(path: Path) -> tuple[str, overlap.Sketch]:
    prepared = train.prepare(str(path), COPY)
    return prepared.fingerprint, prepared.sketch


def test_a_budget_is_set_on_the_data_sets_own_account(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = write(tmp_path / "a.npz", **digits(slice(0, 300)))
    copy = write(tmp_path / "b.npz", **digits(slice(150, 450)))
    assert command("train", first, "--epsilon", 1, "--steps", 3, "--out", tmp_path / "run", home=home)[0] == 0
    code, _, err = command("ledger", copy, "--set-budget", 50, home=home)
    assert code == 2 and "has no account of its own" in err
    code, out, _ = command("ledger", first, "--json", home=home)
    assert code == 0 and json.loads(out[out.index("{") :])["budget"]["epsilon"] == 1.0


def test_a_branch_is_tried_before_it_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other settings, threads or processors compute differently, so an earlier trial shows nothing about them."""
    from dpvision.private.training import prepare as preparing
    from tests.system.runs.stopping import until

    tried: list[int | None] = []
    certify = preparing.certify

    def trying(*given: Any, **more: Any) -> None:
        tried.append(more["engine"].__self__.config.physical)
        certify(*given, **more)

    monkeypatch.setattr(preparing, "certify", trying)
    source = write(tmp_path / "data.npz", **digits(slice(0, 300)))
    prepared = train.prepare(source, replace(SETTINGS, epsilon=0.5, physical=1))
    run = train.begin(prepared, tmp_path / "run")
    train.proceed(run, prepared, stop=until(2))
    assert tried == [1], "once in a process for the same settings"
    train.proceed(run, train.reopen(run, {"physical": 64}))
    assert tried == [1, 64]


def test_every_branch_is_charged_to_every_account(tmp_path: Path, own_home: Path) -> None:
    from tests.system.runs.stopping import until

    left, right, whole = halves_and_whole(tmp_path)
    for number, source in enumerate((left, right)):
        spend(source, tmp_path / str(number), replace(SETTINGS, epsilon=0.3, budget=9.0))
    prepared = train.prepare(whole, replace(COPY, epsilon=0.5))
    run = train.begin(prepared, tmp_path / "run")
    train.proceed(run, prepared, stop=until(2))
    assert train.proceed(run, train.reopen(run, {"lr": 0.5})).complete
    name = run.facts()["run"]
    counts = [sum(charge.run == name for charge in result.account().charges) for result in ledgers(own_home)]
    assert counts == [2, 2], "the first part, and what was changed"
