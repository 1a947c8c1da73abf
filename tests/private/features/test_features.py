"""Features are computed once: after a kill only the rest, by any number of ranks, with the same bits."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import dpvision
from dpvision.core import files
from dpvision.private.features import cache
from dpvision.private.features.resumable_file import ResumableFile, read_complete
from dpvision.private.training import ranks as distributed
from dpvision.storage.home import source
from tests.private.features.rank_worker import COUNT, OF, Counting, network, records
from tests.system.ranks import ranks

WORKER = "tests.private.features.rank_worker"


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stage", range(7))
def test_stopped_after_any_round(stage: int) -> None:
    """An exception keeps what was noted, as a kill does."""
    seen: list[int] = []

    def progress(done: int, count: int) -> None:
        seen.append(done)
        if len(seen) == stage + 1:
            raise Stopped

    first = Counting(network())
    with pytest.raises(Stopped):
        cache.load_or_compute(first, records(), key=OF, progress=progress)
    assert not cache.path_of(OF).exists() and read_complete(cache.path_of(OF)) == seen[-1] == min(
        8 * (stage + 1), COUNT
    )
    assert cache.count_missing(OF, COUNT) == COUNT - seen[-1]
    second = Counting(network())
    result = cache.load_or_compute(second, records(), key=OF)
    assert first.images + second.images == COUNT and cache.count_missing(OF, COUNT) == 0
    whole = cache.load_or_compute(Counting(network()), records(), key=("not", "stopped"))
    np.testing.assert_array_equal(result, whole)
    assert cache.path_of(OF).read_bytes() == cache.path_of(("not", "stopped")).read_bytes()
    assert {path.suffix for path in cache.path_of(OF).parent.iterdir()} == {".npy", ".lock"}


def test_what_was_left_of_other_records_is_not_used() -> None:
    """A partial file that was moved under the name of others, with its progress, has their shape but its own name."""
    with pytest.raises(Stopped):
        cache.load_or_compute(network(), records(seed=1), key=("others",), progress=_stop)
    for suffix in (".partial", ".progress"):
        cache.path_of(("others",)).with_suffix(suffix).rename(cache.path_of(OF).with_suffix(suffix))
    parts = Counting(network())
    cache.load_or_compute(parts, records(), key=OF)
    assert parts.images == COUNT


def _stop(*_: int) -> None:
    raise Stopped


def test_two_ranks_are_killed_and_go_on(tmp_path: Path) -> None:
    """Each computes its own records; the bits are those of one rank, which ran through."""
    whole = cache.load_or_compute(network(), records(), key=OF)
    home, path = tmp_path / "of ranks", tmp_path / "of ranks" / "features" / cache.path_of(OF).name
    (first, *_), (second, _, result) = ranks.finish(ranks.start("16", ranks=2, home=home, module=WORKER), seconds=180)
    assert first == -signal.SIGKILL and second and "RankLost" in result
    assert read_complete(path) == 16 and not path.exists()
    results = []
    for code, out, err in ranks.finish(ranks.start("0", ranks=2, home=home, module=WORKER), seconds=180):
        assert code == 0, err
        results.append(json.loads(out))
    assert [actual["images"] for actual in results] == [18, 16], "records 16-23, 32-39, 48-49 and 24-31, 40-47"
    assert {actual["digest"] for actual in results} == {hashlib.blake2b(whole.tobytes()).hexdigest()}
    assert path.read_bytes() == cache.path_of(OF).read_bytes() and path.stat().st_mode & 0o777 == 0o600


def test_ranks_with_two_homes_are_refused(tmp_path: Path) -> None:
    """Even where they share their keys, and the other home has a file of the same name and size: rows would be missing
    in both.
    """
    homes = [tmp_path / name / "features" for name in ("one", "other")]
    files.make_folder(tmp_path / "one" / "keys")
    for home in homes:
        files.make_folder(home)
        with ResumableFile(home / cache.path_of(OF).name, (COUNT, *cache.shape_of(network(), (1, 8, 8)))) as rows:
            rows.begin()
    (tmp_path / "other" / "keys").symlink_to(tmp_path / "one" / "keys")
    processes = ranks.start("0", ranks=2, home=homes[0].parent, last_home=homes[1].parent, module=WORKER)
    for code, _, err in ranks.finish(processes, seconds=180):
        assert code and "DPVISION_HOME: not the same on all 2 ranks" in err
    assert not list(tmp_path.rglob("*.npy"))


def test_a_rank_asks_for_the_lock_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another run holds the lock, messages continue: no rank is considered lost."""
    asked: list[bool] = []

    class Chatty(distributed.Team):
        def any(self, here: bool) -> bool:
            asked.append(here)
            if len(asked) == 4:
                other.__exit__(None, None, None)
            return super().any(here)

    monkeypatch.setattr(cache, "POLL", 0.01)
    monkeypatch.setattr(distributed, "team", Chatty)
    lock = cache.path_of(OF).with_suffix(".lock")
    files.make_folder(lock.parent)
    other = files.locked(lock)
    other.__enter__()
    cache.load_or_compute(network(), records(), key=OF)
    assert asked[:6] == [True, True, True, True, False, True], "not there, taken three times, got it, still not there"


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("models/vit.py", True),
        ("models/featured.py", True),
        ("models/inputs.py", True),
        ("views/eight_bit.py", True),
        ("private/features/cache.py", True),
        ("private/features/encoders.py", True),
        ("private/training/train.py", False),
        ("released/report/cards.py", False),
        ("core/ledger.py", False),
        ("private/training/state.py", False),
    ],
)
def test_code_that_makes_features_is_in_their_name(file: str, counts: bool, tmp_path: Path) -> None:
    """And no other: hours of work outlive a change of the rest."""
    package = tmp_path / "dpvision"
    shutil.copytree(Path(dpvision.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    before, all_before = source(*cache.CODE, package=package), source(package=package)
    assert before == source(*cache.CODE) and before in cache.code_version()
    with (package / file).open("a") as out:
        out.write("# a change\n")
    assert (source(*cache.CODE, package=package) != before) == counts
    assert source(package=package) != all_before, "a run begins a new branch in any case"
    (package / "models" / "vit.py").rename(package / "models" / "vit2.py")
    assert source(*cache.CODE, package=package) != before


def test_another_machine_is_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.code_version()
    cache.code_version.cache_clear()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    try:
        assert cache.code_version() != before
    finally:
        cache.code_version.cache_clear()
