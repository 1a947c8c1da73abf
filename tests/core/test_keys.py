"""Keys and streams: independent by use, equal for the same use, secret, and never a torch generator."""

from __future__ import annotations

import copy
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpvision.core.keys import Key
from dpvision.errors import PrivacyError


def test_the_same_use_gives_the_same_stream_and_any_other_use_another() -> None:
    key = Key.for_tests("a")
    base = {"purpose": "noise", "step": 3, "rank": 0, "branch": "b"}

    def words(**use) -> bytes:
        return key.stream(use.pop("purpose"), **use).words(64).tobytes()

    assert words(**base) == words(**base)
    others = [
        words(**{**base, "purpose": "sampling"}),
        words(**{**base, "step": 4}),
        words(**{**base, "rank": 1}),
        words(**{**base, "branch": "c"}),
        Key.for_tests("b").stream("noise", step=3, branch="b").words(64).tobytes(),
    ]
    assert len({words(**base), *others}) == 6


def test_uses_can_not_be_confused() -> None:
    """Joining the parts must not make two uses equal."""
    key = Key.for_tests("a")
    first = key.stream("noise", step=1, rank=23, branch="x").words(4)
    second = key.stream("noise", step=12, rank=3, branch="x").words(4)
    assert not np.array_equal(first, second)


def test_a_stream_is_the_same_however_it_is_cut() -> None:
    key = Key.for_tests("a")
    whole = key.stream("noise", step=0).words(1000)
    stream = key.stream("noise", step=0)
    assert np.array_equal(whole, np.concatenate([stream.words(n) for n in (1, 10, 489, 500)]))


def test_a_key_is_kept_for_its_owner_only_and_destroyed(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "x.key"
    key = Key.fresh()
    key.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    back = Key.read(path)
    assert back is not None and back.private
    assert np.array_equal(back.stream("n", step=0).words(8), key.stream("n", step=0).words(8))
    Key.destroy(path)
    assert Key.read(path) is None
    Key.for_tests("a").write(path)
    fixed = Key.read(path)
    assert fixed is not None and not fixed.private, "a fixed key stays marked after it was kept"
    path.write_bytes(b"nonsense")
    with pytest.raises(PrivacyError):
        Key.read(path)


def test_a_key_shows_itself_nowhere() -> None:
    key = Key.fresh()
    assert key._secret.hex() not in repr(key) and str(key._secret) not in repr(key)
    for leak in (lambda: pickle.dumps(key), lambda: copy.deepcopy(key)):
        with pytest.raises(PrivacyError):
            leak()


def test_processes_never_share_a_stream() -> None:
    """Fresh processes, first words: all different (an unseeded torch generator would give the same in each)."""
    code = (
        "from dpvision.core.keys import Key\nfor i in range(40): print(Key.fresh().stream('noise', step=0).words(1)[0])"
    )
    seen = [
        word
        for _ in range(5)
        for word in subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    ]
    assert len(set(seen)) == len(seen) == 200


def test_no_torch_in_the_path_of_noise() -> None:
    code = "import sys; import dpvision.core.noise, dpvision.core.keys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
