"""What a kill leaves behind does not stop the same command, and holds no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpvision.core import files
from dpvision.core.keys import WIPED, Key
from dpvision.private.statistics.release import _load_or_create_key
from dpvision.storage import safetensors
from tests.fork_server import ForkServer
from tests.system.kills.killing import DONE, Undisturbed, account
from tests.system.kills.verbs import KEY, VERBS, World

BY_NAME = {verb.name: verb for verb in VERBS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "release, moments", "pretrain"])
def test_a_verb_goes_on_after_a_kill_before_any_change_to_the_disk(
    name: str, server: ForkServer, supplies: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    verb = BY_NAME[name]
    whole = undisturbed(verb)
    for number in range(1, whole.changes + 1):
        world = World(tmp_path / str(number), supplies)
        world.out.parent.mkdir(parents=True)
        job = server.start(*verb.words(world), home=world.home, key=KEY, arena=world.folder, die_at=number)
        assert server.ended(job, within=300) == -9
        code, _, err = server.run(*verb.words(world), home=world.home, key=KEY)
        assert code == 0 or (code == 2 and any(words in err for words in DONE)), (number, err)
        assert verb.result(world) == whole.result
        assert not verb.private or len(account(world.home).charges) == 1


@pytest.mark.parametrize("name", ["pretrain", "synth fit", "warm"])
def test_half_of_the_first_state_is_no_other_file(
    name: str, server: ForkServer, supplies: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    verb, world = BY_NAME[name], World(tmp_path, supplies)
    world.out.mkdir(parents=True)
    (world.out / ".state.safetensors.4711.new").write_bytes(b"half")
    code, _, err = server.run(*verb.words(world), home=world.home)
    assert code == 0, err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("not to be written over")
    code, _, err = server.run(*verb.words(world)[:-1], tmp_path / "other", home=world.home)
    assert code == 2 and "has other files" in err


def test_only_unnamed_files_count_as_left_by_a_kill(tmp_path: Path) -> None:
    assert files.is_unfinished(tmp_path / ".state.safetensors.123.new")
    for name in ("state.safetensors", ".state.new", "mine.123.new", ".x.12a.new", "weights.safetensors"):
        assert not files.is_unfinished(tmp_path / name)


def test_a_key_that_is_kept_is_not_written_again(tmp_path: Path) -> None:
    """A kill while it is written would leave a copy, which nobody destroys with it."""
    place = tmp_path / "keys" / "0123456789abcdef.key"
    place.parent.mkdir(mode=0o700)
    with _load_or_create_key(place, None) as first:
        written = place.stat()
    with _load_or_create_key(place, None) as again:
        assert again.sign("x") == first.sign("x")
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    Key.for_tests("word").write(place)
    with _load_or_create_key(place, None) as fresh:
        assert fresh.private, "a fixed key that is found there does not hide anything"


@pytest.mark.parametrize("name", ["train", "release, moments"])
def test_a_key_that_is_overwritten_and_not_yet_removed_is_none(
    name: str, server: ForkServer, supplies: Path, tmp_path: Path
) -> None:
    """Killed in the middle of destroying it, a finished run is finished."""
    verb, world = BY_NAME[name], World(tmp_path, supplies)
    world.out.parent.mkdir(parents=True)
    code, _, err = server.run(*verb.words(world), home=world.home)
    assert code == 0, err
    key = next((world.home / "keys").glob("*.lock"), None)
    name = key.stem if key else safetensors.read(world.out / "operator" / "state.safetensors").header["key"]
    left = world.home / "keys" / f"{name}.key"
    left.write_bytes(WIPED)
    code, _, err = server.run(*verb.words(world), home=world.home)
    assert code == 0 if verb.trains else code == 2 and any(words in err for words in DONE), (code, err)
    assert not left.exists() and len(account(world.home).charges) == 1
