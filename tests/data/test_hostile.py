"""More than a thousand hostile files: each is refused by name, cheaply, or is harmless; none runs code or writes.

All are written first and then loaded in one separate process, whose peak of memory is the peak of all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hostile_arrays
import hostile_images
import hostile_npz
import hostile_stores
import hostile_tables
import pytest
from builders import good_arrays, save_npz
from hostile_case import MARKER, Case

from dpvision.data import fingerprint, load
from dpvision.data.listing import LAYOUTS

GROUPS = {
    "npz": hostile_npz,
    "arrays": hostile_arrays,
    "images": hostile_images,
    "tables": hostile_tables,
    "stores": hostile_stores,
}
MAX_MEMORY = 200 * 2**20
MAX_SECONDS = 3.0


@dataclass(frozen=True)
class Result:
    group: str
    case: Case
    folder: Path
    source: str
    outcome: str
    text: str
    seconds: float
    memory: int
    checked: str
    packed: str


@dataclass(frozen=True)
class Campaign:
    results: list[Result]
    distinct: int
    before: str
    after: str
    good: str
    """Fingerprints of the undamaged .npz."""


def snapshot(root: Path) -> str:
    """One line for every file below a folder: its kind, size and time of change."""
    lines = []
    for place, folders, files in os.walk(root):
        for name in sorted(folders + files):
            info = os.lstat(os.path.join(place, name))
            lines.append(f"{place}/{name!r} {info.st_mode} {info.st_size} {info.st_mtime_ns}")
    return "\n".join(sorted(lines))


def content(folder: Path) -> str:
    """A digest of names, kinds and contents, without the name of the folder itself."""
    digest = hashlib.blake2b()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(place, name)
            info = os.lstat(path)
            digest.update(os.fsencode(os.path.relpath(path, folder)) + b"%d %d" % (info.st_mode, info.st_size))
            if os.path.islink(path):
                digest.update(os.fsencode(os.readlink(path)))
            elif os.path.isfile(path) and info.st_size < 2**30:
                digest.update(Path(path).read_bytes().replace(os.fsencode(folder), b""))
    return digest.hexdigest()


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    root = tmp_path_factory.mktemp("hostile")
    arena, work = root / "arena", root / "work"
    arena.mkdir()
    work.mkdir()
    jobs, built, contents = [], [], set()
    for group, module in GROUPS.items():
        for case in module.cases():
            folder = arena / f"{len(jobs):04d}"
            folder.mkdir()
            source = str(case.build(folder))
            digest = content(folder) + case.verb + json.dumps(case.options)
            if digest in contents:  # random damage may repeat itself; a repetition does not count
                shutil.rmtree(folder)
                continue
            contents.add(digest)
            jobs.append({"source": source, "verb": case.verb, "options": case.options})
            jobs[-1]["only_load"] = case.only_load or case.verb != "load"
            built.append((group, case, folder, source))
    (root / "manifest.json").write_text(json.dumps(jobs))
    before = snapshot(arena)
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("hostile_worker.py"))]
    subprocess.run(
        [*command, str(root / "manifest.json"), str(root / "report.json")],
        cwd=work,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(work), "TMPDIR": str(work)},
        check=True,
        timeout=120,
    )
    after = snapshot(arena) + snapshot(work)
    report = json.loads((root / "report.json").read_text())
    results = [Result(*known, **outcome) for known, outcome in zip(built, report, strict=True)]
    whole = load(save_npz(root / "good.npz", good_arrays()))
    assert whole.val is not None and whole.test is not None
    good = " ".join(fingerprint(part) for part in (whole.train, whole.val, whole.test))
    return Campaign(results, len(contents), before, after, good)


def test_there_are_enough_of_them(campaign: Campaign) -> None:
    names = Counter(result.case.name for result in campaign.results)
    assert [name for name, count in names.items() if count > 1] == []
    assert campaign.distinct == len(campaign.results) >= 1400


@pytest.mark.parametrize("group", GROUPS)
def test_each_is_refused_or_harmless(campaign: Campaign, group: str) -> None:
    wrong = []
    for result in campaign.results:
        allowed = {"refused": ("refused",)}.get(result.case.want, ("refused", "loaded"))
        same = result.case.want != "same" or result.outcome != "loaded" or result.text == campaign.good
        if result.group == group and (result.outcome not in allowed or not same):
            wrong.append(f"{result.case.name}: {result.outcome}, wanted {result.case.want}: {result.text[:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("group", GROUPS)
def test_each_refusal_starts_with_the_name_of_the_file(campaign: Campaign, group: str) -> None:
    wrong = []
    for result in campaign.results:
        blamed = result.source if result.case.blames is None else str(result.folder / result.case.blames)
        clear = (
            result.text.startswith(blamed) and ": " in result.text and result.text.removesuffix(LAYOUTS).isprintable()
        )
        if result.group == group and result.outcome == "refused" and not (clear and len(result.text) < 2000):
            wrong.append(f"{result.case.name}: does not start with {blamed}: {result.text[:300]}")
    assert not wrong, "\n".join(wrong)


def test_the_good_ones_among_them_load(campaign: Campaign) -> None:
    good = [result for result in campaign.results if "good" in result.case.name]
    assert len(good) >= 6
    assert [result.case.name for result in good if result.outcome != "loaded"] == []


def test_few_of_the_damaged_ones_pass(campaign: Campaign) -> None:
    passed = [result.case.name for result in campaign.results if result.outcome == "loaded"]
    print(f"{len(campaign.results)} hostile files, {len(passed)} harmless: {passed}")
    assert len(passed) < len(campaign.results) / 5


def test_check_and_pack_raise_nothing_else(campaign: Campaign) -> None:
    for result in campaign.results:
        assert result.checked in ("refused", "found"), f"{result.case.name}: {result.checked}"
        if result.packed:
            assert result.packed == result.outcome, f"{result.case.name}: {result.packed}"
    assert sum(1 for result in campaign.results if result.packed) > 200


def test_check_goes_on_after_a_broken_image(campaign: Campaign) -> None:
    images = [result for result in campaign.results if result.group == "images"]
    stopped = [result.case.name for result in images if result.checked != "found"]
    assert stopped == []


def test_a_pickle_is_called_a_pickle(campaign: Campaign) -> None:
    pickled = [result for result in campaign.results if result.case.name.startswith(("pickle-t", "store-pickle-"))]
    assert len(pickled) >= 10
    assert [result.text for result in pickled if "contains pickled Python objects" not in result.text] == []


def test_nothing_was_executed(campaign: Campaign) -> None:
    assert MARKER not in campaign.after


def test_nothing_was_written(campaign: Campaign) -> None:
    assert campaign.after == campaign.before


def test_memory_stays_small(campaign: Campaign) -> None:
    most = max(campaign.results, key=lambda result: result.memory)
    first = next(result for result in campaign.results if result.memory > 0.9 * most.memory)
    print(f"peak {most.memory / 2**20:.0f} MiB, reached by {first.case.name}")
    assert most.memory <= MAX_MEMORY, f"{most.memory / 2**20:.0f} MiB, first reached by {first.case.name}"


def test_none_takes_long(campaign: Campaign) -> None:
    slow = sorted(campaign.results, key=lambda result: -result.seconds)[:3]
    print([(result.case.name, round(result.seconds, 2)) for result in slow])
    assert [(result.case.name, result.seconds) for result in slow if result.seconds > MAX_SECONDS] == []


def test_the_payload_writes_its_marker(tmp_path: Path) -> None:
    """A marker that can never appear would prove nothing."""
    from hostile_case import python_payload

    subprocess.run([sys.executable, "-c", python_payload(tmp_path).decode()], check=True)
    assert (tmp_path / MARKER).exists()
