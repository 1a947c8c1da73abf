"""A full disk and folders that cannot be written: a clear message, nothing under-counted, and going on afterwards."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.system.kills.killing import Undisturbed, account
from tests.system.kills.verbs import EACH, KEY, VERBS, Verb, World

BY_NAME = {verb.name: verb for verb in VERBS}
PRIVATE = [each for each in EACH if each.values[0].private]


def _refused(code: int, err: str) -> bool:
    """With one message, and no traceback."""
    return code in (2, 3, 4) and re.fullmatch(r"dpvision: [^\n]+\n", err) is not None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk of 16 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield place.resolve()
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("verb", PRIVATE)
def test_a_full_disk_charges_nothing_that_is_lost(
    verb: Verb, server: ForkServer, supplies: Path, tmp_path: Path, undisturbed: Undisturbed, disk: Path
) -> None:
    """The disk grows a little each time, so that it is full at another place each time."""
    whole = undisturbed(verb)
    world = World(disk, supplies)
    world.out.parent.mkdir(parents=True)
    refusals = 0
    for kilobytes in (16, 32, 64, 128, 4096):
        subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)
        code, _, err = server.run(*verb.words(world), home=world.home, key=KEY)
        if code == 0:
            break
        assert _refused(code, err), (code, err)
        refusals += 1
    assert refusals >= 2 and verb.result(world) == whole.result
    assert len(account(world.home).charges) == 1


@pytest.mark.parametrize("verb", EACH)
def test_files_that_can_not_grow(
    verb: Verb, server: ForkServer, supplies: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Needs no root privileges: limits the size of every file."""
    whole = undisturbed(verb)
    largest = max(len(data) for data in whole.result.values())
    world = World(tmp_path / "small", supplies)
    world.out.parent.mkdir(parents=True)
    for most in (400, largest - 1):
        code, _, err = server.run(*verb.words(world), home=world.home, key=KEY, file_size=most)
        assert _refused(code, err), (most, code, err)
    code, _, err = server.run(*verb.words(world), home=world.home, key=KEY)
    assert code == 0, err
    assert verb.result(world) == whole.result
    if verb.private:
        assert len(account(world.home).charges) == 1


@pytest.mark.parametrize("place", ["out", "home"])
@pytest.mark.parametrize("verb", [each for each in EACH if each.id != "audit"])  # which writes into what is there
def test_a_folder_that_can_not_be_written(
    verb: Verb, place: str, server: ForkServer, supplies: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    world = World(tmp_path.resolve(), supplies)
    world.out.parent.mkdir(parents=True)
    world.home.mkdir()
    folder = {"out": world.out.parent, "home": world.home}[place]
    options = {}
    if os.geteuid() == 0:  # whom permissions do not bind
        options["mount"] = (folder, "ro")
    else:
        folder.chmod(0o555)
    code, _, err = server.run(*verb.words(world), home=world.home, key=KEY, **options)
    if "does not work here" in err:
        pytest.skip("mounts do not work here")
    if place == "home" and not verb.private:
        assert code == 0, err
        return
    assert _refused(code, err) and str(folder) in err, (code, err)
    assert not any(path.is_file() for path in world.folder.rglob("*") if path.suffix in (".jsonl", ".safetensors"))


def test_an_audit_of_a_run_that_can_not_be_written(server: ForkServer, supplies: Path, tmp_path: Path) -> None:
    world = World(tmp_path.resolve(), supplies)
    world.out.parent.mkdir(parents=True)
    words = BY_NAME["audit"].words(world)
    before = BY_NAME["audit"].result(world)
    code, _, err = server.run(*words, home=world.home, mount=(world.out, "ro"))
    if "does not work here" in err:
        pytest.skip("mounts do not work here")
    assert _refused(code, err) and str(world.out) in err, (code, err)
    assert BY_NAME["audit"].result(world) == before
