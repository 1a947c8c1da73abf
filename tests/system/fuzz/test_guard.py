"""The guard that the fuzzer relies on: without this, "nothing was run and nothing was written" would prove nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.data.hostile_case import python_payload
from tests.fork_server import ESCAPED, opened
from tests.system.fuzz import readers
from tests.system.fuzz.campaign import Campaign
from tests.system.fuzz.corpus import KINDS
from tests.system.fuzz.mutations import is_read, sound_copy


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("os:mkdir", "{outside}/folder"),
        ("os:remove", "{outside}/secret"),
        ("os:system", "touch {outside}/file"),
        ("subprocess:run", "true"),
        ("os:mkdir", "{arena}/../beside"),
        ("tests.system.fuzz.test_guard:write_through_a_link", "{arena}"),
        ("tests.system.fuzz.test_guard:rename_to", "{outside}/renamed"),
        ("tests.system.fuzz.test_guard:link_at", "{outside}/linked"),
        ("socket:gethostbyname", "localhost"),
        ("builtins:exec", "payload"),
    ],
)
def test_who_leaves_the_arena_is_caught(call: str, word: str, campaign: Campaign, tmp_path: Path) -> None:
    arena = tmp_path.resolve() / "arena"
    arena.mkdir()
    (arena / "link").symlink_to(campaign.outside / "through")
    word = python_payload(campaign.outside).decode() if word == "payload" else word
    word = word.replace("{outside}", str(campaign.outside)).replace("{arena}", str(arena))
    code, _, err = campaign.server.run(word, home=arena, arena=arena, guard=True, call=call)
    assert code == ESCAPED and "ESCAPED" in err
    campaign.require_untouched()


def write_through_a_link(arena: str) -> None:
    (Path(arena) / "link").write_text("x")


def rename_to(place: str) -> None:
    made = Path(os.environ["DPVISION_HOME"]) / "made"
    made.write_text("x")
    made.rename(place)


def link_at(place: str) -> None:
    Path(place).symlink_to(os.environ["DPVISION_HOME"])


def replace_a_link(arena: str) -> None:
    with pytest.raises(OSError):
        os.open(Path(arena) / "link", os.O_RDWR | os.O_NOFOLLOW)
    (Path(arena) / "new").write_text("x")
    (Path(arena) / "new").replace(Path(arena) / "link")


def test_who_stays_inside_is_not(campaign: Campaign, tmp_path: Path) -> None:
    arena = tmp_path.resolve()
    code, _, err = campaign.server.run(arena / "folder", home=arena, arena=arena, guard=True, call="os:mkdir")
    assert code == 0 and (arena / "folder").is_dir(), err
    (arena / "link").symlink_to(campaign.outside / "secret")  # whose name is in the arena
    call = "tests.system.fuzz.test_guard:replace_a_link"
    code, _, err = campaign.server.run(arena, home=arena, arena=arena, guard=True, call=call)
    assert code == 0 and (arena / "link").read_text() == "x", err
    campaign.require_untouched()


def test_an_error_that_is_not_ours_is_a_fault(campaign: Campaign, tmp_path: Path) -> None:
    """`no_reader` is no kind of the corpus, so looking it up raises a KeyError."""
    words = (campaign.corpus, tmp_path / "no_reader", "light")
    code, _, err = campaign.server.run(*words, home=tmp_path, call="tests.system.fuzz.readers:read_all")
    assert code == 1 and "KeyError" in err


def test_every_kind_has_readers_that_take_what_is_sound_and_look_at_every_file(
    campaign: Campaign, tmp_path: Path
) -> None:
    """A reader that refuses everything would never be reached beyond its first line."""
    assert set(KINDS) == set(readers.READERS)
    arena, places, files = tmp_path.resolve(), list[Path](), dict[str, bool]()
    for kind in KINDS:
        place = arena / kind.replace(".", "-") / kind
        place.parent.mkdir()
        files |= {str(path): is_read(path, place) for path in sound_copy(campaign.corpus / kind, place)}
        if kind in ("run", "stopped"):
            shutil.copytree(campaign.corpus / "home", place.parent / "home")
        places.append(place)
    words = [word for place in places for word in (place, "heavy")]
    job = campaign.server.start(
        campaign.corpus, *words, home=arena, arena=arena, call="tests.system.fuzz.readers:read_all"
    )
    code, out, err = campaign.server.wait(job)
    assert code == 0, err
    assert not {kind: line for kind, line in zip(KINDS, out.splitlines(), strict=True) if not line.startswith("0 ")}
    seen = opened(job)
    locks = {path for path in files if path.endswith("lock")}  # opened, and never read
    assert {path for path, read in files.items() if read} == files.keys() & seen - locks


def test_the_same_seed_makes_the_same_input(campaign: Campaign, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        campaign._hostile(Random(7), tmp_path / name / "edm")
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / n / "edm").iterdir()} for n in ("one", "other"))
    assert first == second


def test_what_fails_can_be_seen_again(campaign: Campaign, tmp_path: Path) -> None:
    class Failing(Campaign):
        def read(self, rng: Random) -> None:
            raise AssertionError(f"failed on {rng.random()}")

    for name in ("corpus", "outside"):
        (tmp_path / name).mkdir()
    with pytest.raises(AssertionError, match=f"python -m tests.system.fuzz {tmp_path}"):
        Failing(campaign.server, tmp_path).attempt("read", 7)
    (fault,) = map(json.loads, (tmp_path / "faults.jsonl").read_text().splitlines())
    assert fault == {"what": "read", "seed": 7, "message": f"failed on {Random(7).random()}"}
