"""Everything that reads a kind of the corpus: called in a child of the fork server, with the folder of the input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpvision.errors import DPVisionError

Reader = Callable[[Path, Path], Any]


def read_all(corpus: str, *inputs: str) -> None:
    """Inputs are places, each with "heavy" or "light" behind it. A line for each: how many readers refused and took it."""
    for place, how in zip(inputs[::2], inputs[1::2], strict=True):
        print(*_read(Path(place), Path(corpus), how), flush=True)


def _read(place: Path, corpus: Path, how: str) -> tuple[int, int]:
    """Each reader of the kind refuses the input by an error of ours, or takes it; anything else escapes."""
    os.environ["DPVISION_HOME"] = str(place.parent / "home")
    light = [reader for reader in READERS[place.name] if reader not in HEAVY]
    refused = taken = 0
    for reader in READERS[place.name] if how == "heavy" or not light else light:
        try:
            reader(place, corpus)
            taken += 1
        except DPVisionError as exc:
            assert str(exc).strip(), f"{reader.__name__}: an error without a message"
            refused += 1
    return refused, taken


def _load(place: Path, corpus: Path) -> None:
    from dpvision import data

    for part in (data.load(str(_source(place))).train,):
        data.identify(part)


def _check(place: Path, corpus: Path) -> None:
    from dpvision import data

    data.check(str(_source(place)))


def _images(place: Path, corpus: Path) -> None:
    from dpvision import data

    folder = next(iter(sorted(place.glob("train/*"))), place)
    for _ in data.image_batches(folder, size=(8, 8), channels=1):
        pass


def _source(place: Path) -> Path:
    return place / "table.csv" if place.name == "listed" else place


def _settings(place: Path, corpus: Path) -> None:
    from dpvision.settings.setting import read_toml
    from dpvision.settings.training import Config, merge

    merge(Config(), read_toml(place / "train.toml"), source="x")


def _release_settings(place: Path, corpus: Path) -> None:
    from dpvision.settings.recipes import release_recipe
    from dpvision.settings.release import Release, with_changes
    from dpvision.settings.setting import check_values, read_toml

    stated = read_toml(place / "release.toml")
    stated.pop("recipe", None)
    with_changes(release_recipe("neuromix"), check_values(Release, stated, source="x"))


def _ledgers(place: Path, corpus: Path) -> Iterator[Any]:
    """The ledgers of a home, by what the sound ones say that they are about."""
    import json

    from dpvision.core.ledger import Ledger

    for path in sorted((corpus / "home" / "ledgers").glob("*.jsonl")):
        about = json.loads(path.read_text().split("\n")[0])["fingerprint"]
        yield Ledger(place / "ledgers", about)


def _account(place: Path, corpus: Path) -> None:
    for ledger in _ledgers(place, corpus):
        ledger.account().spent()


def _spend(place: Path, corpus: Path) -> None:
    from dpvision.core.events import Budget, Gaussian

    for ledger in _ledgers(place, corpus):
        ledger.exists()
        ledger.open(Budget(1.0, 1e-5))
        ledger.spend(Gaussian(1e6), id="x", run="y")


def _overlap(place: Path, corpus: Path) -> None:
    from dpvision.private.accounts.overlap import find, sketch

    find("ab", sketch([b"01234567"]))


def _keys(place: Path, corpus: Path) -> None:
    from dpvision.core.keys import Key

    for path in sorted((corpus / "home" / "keys").glob("*.key")):
        Key.read(place / "keys" / path.name)


def _kept_features(place: Path, corpus: Path) -> None:
    """Of a release that was made, and of one that was killed."""
    from dpvision.private.statistics.release import Encoded, prepare
    from dpvision.settings.recipes import release_recipe
    from dpvision.settings.release import with_changes

    settings = with_changes(release_recipe("moments"), {"epsilon": 0.5, "encoder": "pixels", "rank": 0, "rows": 12})
    for source in (corpus / "data.npz", corpus / "listed" / "table.csv"):
        Encoded(prepare(str(source), settings))


def _state(place: Path, corpus: Path) -> None:
    from dpvision.core.events import Budget
    from dpvision.models import build
    from dpvision.private.training.state import State, event_charged

    state = State.load(place / "operator" / "state.safetensors", build("linear", (1, 8, 8), classes=4, seed=0))
    event_charged(state, Budget(3.0, 1e-5), before=0)


def _reopen(place: Path, corpus: Path) -> None:
    from dpvision.private.training.train import reopen
    from dpvision.storage.run_folder import Run

    reopen(Run(place))


def _resume(place: Path, corpus: Path) -> None:
    from dpvision.private.training.train import proceed, reopen
    from dpvision.storage.run_folder import Run

    run = Run(place)
    run.config()
    proceed(run, reopen(run))


def _study(place: Path, corpus: Path) -> None:
    from dpvision.private.training.gradient_study import plot
    from dpvision.storage.run_folder import Run

    plot([Run(place)], place / "drawn.svg")


def _audit(place: Path, corpus: Path) -> None:
    """What the verb reads; attacking takes long."""
    from dpvision.audit import audit_file, training_canaries
    from dpvision.storage.run_folder import Run

    training_canaries.training_of(Run(place).config())
    audit_file.read_sections(place)


def _losses(place: Path, corpus: Path) -> None:
    from dpvision.audit import membership

    membership.attack_run(place, str(corpus / "data.npz"))


def _report(place: Path, corpus: Path) -> None:
    from dpvision.cli.train import write_report
    from dpvision.storage.run_folder import Run

    run = Run(place)
    run.config()
    write_report(run)


def _evaluation(place: Path, corpus: Path) -> None:
    import json

    from dpvision.released import evaluation
    from dpvision.storage.run_folder import Run

    weights = json.loads((corpus / "run" / "card.json").read_text())["weights_digest"]
    evaluation.read_evaluation(Run(place), classes=4, weights=weights)
    evaluation.read_examples(Run(place), classes=4, weights=weights)


def _board(place: Path, corpus: Path) -> None:
    from dpvision.released.report.board import read_entry

    read_entry(place)


def _model(place: Path, corpus: Path) -> None:
    from dpvision.released.model import evaluate

    evaluate(place, str(corpus / "data.npz"), split="test")


def _pretrained(place: Path, corpus: Path) -> None:
    from dpvision import data
    from dpvision.models import build, load_public
    from dpvision.private.training.public_inputs import read_pretrained

    path = place / "weights.safetensors"
    read_pretrained(path, data.load("digits"), unit="image")  # which it was not trained on
    name, shape = ("wrn-10-1", (3, 8, 8)) if place.name == "prior" else ("linear", (1, 8, 8))
    load_public(build(name, shape, classes=4, seed=0), path)


def _looked_at(place: Path, corpus: Path) -> None:
    from dpvision.audit.geometry import load_subject

    weights, model = (place, None) if place.name == "run" else (place / "weights.safetensors", "linear")
    load_subject(weights, str(corpus / "data.npz"), private=True, model=model, most=4)


def _encoder(place: Path, corpus: Path) -> None:
    from dpvision.private.features.encoders import load_encoder

    load_encoder("wrn-10-1", (3, 8, 8), place / "weights.safetensors")


def _synthetic(place: Path, corpus: Path) -> None:
    from dpvision import data
    from dpvision.public.provenance import read_card_provenance

    data.load(str(place / "images.npz"))
    read_card_provenance(str(place / "images.npz"))


def _rows(place: Path, corpus: Path) -> None:
    from dpvision.released.folder import read_rows

    read_rows(place)


def _features(place: Path, corpus: Path) -> None:
    from dpvision.private.features.public_map import features_of

    features_of(place, str(corpus / "data.npz"))


def _diffusion(place: Path, corpus: Path) -> None:
    from dpvision.public.diffusion.model import load_diffusion

    load_diffusion(place)


def _fit(place: Path, corpus: Path) -> None:
    from dpvision import data
    from dpvision.public import trainer
    from dpvision.public.diffusion.fit import Fit, FitSettings
    from dpvision.public.diffusion.model import ModelSpec

    train = data.load(str(corpus / "data.npz")).train
    kind = ModelSpec((1, 8, 8), ("0", "1", "2", "3"), size="tiny")
    trainer.resume(Fit(kind, FitSettings(batch=4), train.images, train.labels), place, steps=2)


def _guide(place: Path, corpus: Path) -> None:
    from dpvision.public.diffusion.guidance import load_guide

    load_guide(place, corpus / "edm", weight=1.0)


def _fit_guide(place: Path, corpus: Path) -> None:
    from dpvision import data
    from dpvision.public.diffusion.guidance import GuideSettings, fit_guide

    train = data.load(str(corpus / "data.npz")).train
    settings = GuideSettings(samples=8, extractor_steps=1, steps=2, batch=4, width=8)
    fit_guide(corpus / "edm", settings, train.images, train.labels, place)


def _prior(place: Path, corpus: Path) -> None:
    from dpvision.public.contrastive import PretrainSettings, load_trunk

    load_trunk(PretrainSettings(model="wrn-10-1", side=8), place)


def _warming(place: Path, corpus: Path) -> None:
    from dpvision import data
    from dpvision.public import trainer
    from dpvision.public.batches import Source
    from dpvision.public.warmup import WarmUp, WarmUpSettings

    loaded = data.load(str(corpus / "data.npz"))
    train = loaded.train
    source = Source(loaded.name, train.images, train.labels, data.identify(train)[1], train.persons)
    settings = WarmUpSettings(model="linear", batch=4, steps=2, augment=())
    trainer.resume(WarmUp(settings, [source], classes=loaded.classes), place, steps=2)


def _drawing(place: Path, corpus: Path) -> None:
    from dpvision.public.diffusion.sample import SampleSettings, sample

    sample(corpus / "edm", SampleSettings(count=8, batch=4, steps=2), place / "drawn.npz")


READERS: dict[str, tuple[Reader, ...]] = {
    "data.npz": (_load, _check, _images),
    "photos": (_load, _check, _images),
    "listed": (_load, _check),
    "packed": (_load, _check),
    "settings": (_settings, _release_settings),
    "home": (_account, _spend, _overlap, _keys, _kept_features),
    "run": (_state, _reopen, _report, _evaluation, _board, _model, _pretrained, _study, _audit, _losses, _looked_at),
    "stopped": (_state, _reopen, _resume),
    "released": (_rows, _features),
    "mapped": (_rows, _features),
    "edm": (_diffusion, _fit),
    "guide": (_guide, _fit_guide),
    "prior": (_prior, _pretrained, _encoder),
    "warmed": (_pretrained, _looked_at),
    "warming": (_warming,),
    "drawing": (_drawing,),
    "drawn": (_synthetic,),
}
HEAVY = {_report, _study}  # accountants and pictures: a part of the inputs is enough
