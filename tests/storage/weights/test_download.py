"""Downloads from a server that misbehaves: they continue, or end in one clear error, and nothing else is left."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpvision.errors import ConfigError, DataError
from dpvision.storage import weights
from dpvision.storage.weights import download as downloads
from dpvision.storage.weights import registry, store
from tests.storage.weights.server import COMMIT, Manners, serving, sha256, weights_file

NAME = "timm:net"  # an entry without a digest
FAST = 0.001


@pytest.fixture
def pinned(manners: Manners, monkeypatch: pytest.MonkeyPatch) -> str:
    """An entry whose digest and size are known."""
    entry = replace(
        registry.NETWORKS["dinov2-vits14"], name="pinned", sha256=sha256(manners.data), size=len(manners.data)
    )
    monkeypatch.setitem(registry._BY_NETWORK, "pinned", entry)
    return "pinned"


def _left(own_home: Path) -> list[str]:
    """What is in the folder, apart from locks."""
    return sorted(p.name for p in (own_home / "weights").iterdir() if not p.name.endswith(".lock"))


def _get(name: str) -> store.Fetched:
    return store.get(name, wait=FAST)


def test_a_file_is_downloaded_checked_and_found(address: str, manners: Manners, pinned: str, own_home: Path) -> None:
    counted: list[tuple[int, int]] = []
    fetched = store.get(pinned, progress=lambda done, total: counted.append((done, total)))
    assert fetched.downloaded and fetched.known and fetched.path.read_bytes() == manners.data
    assert fetched.path == weights.find(pinned) == own_home / "weights" / "pinned.safetensors"
    assert fetched.record.sha256 == sha256(manners.data) and fetched.record.digest_from == store.PINNED
    entry = registry.entry_of(pinned)
    assert manners.seen == [("GET", f"/facebook/dinov2-small/resolve/{entry.revision}/model.safetensors", None)]
    assert counted[-1] == (len(manners.data), len(manners.data))
    assert _left(own_home) == ["pinned.json", "pinned.safetensors"]
    again = _get(pinned)
    assert not again.downloaded and again.record == fetched.record and len(manners.seen) == 1
    assert oct(fetched.path.stat().st_mode & 0o777) == "0o600"


def test_the_first_file_is_trusted_and_later_ones_must_be_equal(address: str, manners: Manners, own_home: Path) -> None:
    first = _get(NAME)
    assert first.record.digest_from == store.FIRST_USE and first.record.revision == COMMIT and not first.known
    assert COMMIT in first.record.source
    first.path.unlink()
    assert _get(NAME).downloaded
    assert manners.seen[-1][1] == f"/timm/net/resolve/{COMMIT}/model.safetensors"  # the recorded revision
    first.path.unlink()
    manners.data = weights_file(300_000, seed=1)
    with pytest.raises(DataError, match=f"must be {first.record.sha256}.*Nothing was stored"):
        _get(NAME)
    assert _left(own_home) == ["timm--net.json"]
    with pytest.raises(ConfigError, match="`dpvision weights get timm:net`"):
        weights.find(NAME)


@pytest.mark.parametrize("commit", ["../../other/resolve/main", COMMIT[:-1], COMMIT + "0", "main", ""])
def test_a_revision_that_is_no_commit_is_ignored(commit: str, address: str, manners: Manners, own_home: Path) -> None:
    manners.commit = commit
    first = _get(NAME)
    assert first.record.revision is None and first.record.source.endswith("/resolve/main/model.safetensors")


def test_a_digest_that_the_hub_states_must_be_right(address: str, manners: Manners, own_home: Path) -> None:
    manners.linked = sha256(b"another file")
    with pytest.raises(DataError, match=r"the SHA-256 of .* must be"):
        _get(NAME)
    assert _left(own_home) == []
    manners.linked = sha256(manners.data)
    assert _get(NAME).downloaded


@pytest.mark.parametrize("cut", [[70_000], [1, 70_000, 500_000], [0], [299_999]])
def test_an_interrupted_download_continues(address: str, manners: Manners, pinned: str, cut: list[int]) -> None:
    manners.cut = list(cut)
    assert _get(pinned).path.read_bytes() == manners.data
    asked = [wanted for _, _, wanted in manners.seen]
    received = [sum(cut[: i + 1]) for i in range(len(cut))]
    assert asked == [None, *(f"bytes={n}-" if n else None for n in received)]


def test_a_server_that_always_ends_early_is_an_error_and_the_next_command_continues(
    address: str, manners: Manners, pinned: str, own_home: Path
) -> None:
    manners.cut = [1000] * downloads.ATTEMPTS
    with pytest.raises(DataError, match=r"ended after 4,000 of .* the same command resumes"):
        _get(pinned)
    with pytest.raises(ConfigError, match="does not exist"):
        weights.find(pinned)
    assert [name.endswith((".part", ".part.json")) for name in _left(own_home)] == [True, True]
    assert _get(pinned).path.read_bytes() == manners.data
    assert manners.seen[-1][2] == "bytes=4000-" and _left(own_home) == ["pinned.json", "pinned.safetensors"]


def test_without_range_it_begins_again(address: str, manners: Manners, pinned: str) -> None:
    manners.ranges, manners.cut = False, [70_000, 300_000]
    assert _get(pinned).path.read_bytes() == manners.data and len(manners.seen) == 3


def test_another_part_than_requested_is_not_appended(address: str, manners: Manners, pinned: str) -> None:
    manners.wrong_range, manners.cut = True, [70_000]
    assert _get(pinned).path.read_bytes() == manners.data
    assert [wanted for _, _, wanted in manners.seen] == [None, "bytes=70000-", None]


def test_a_file_that_changed_meanwhile_is_not_mixed(address: str, manners: Manners) -> None:
    """Nothing but the ETag shows it, since the digest is not known."""
    manners.cut = [1000] * downloads.ATTEMPTS
    with pytest.raises(DataError):
        _get(NAME)
    manners.data, manners.etag = weights_file(300_000, seed=1), '"second"'
    assert _get(NAME).path.read_bytes() == manners.data


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_validator_and_a_digest_nothing_is_continued(
    address: str, manners: Manners, etag: str | None
) -> None:
    manners.cut, manners.etag = [70_000], etag
    assert _get(NAME).path.read_bytes() == manners.data
    assert [wanted for _, _, wanted in manners.seen] == [None, None]


def test_a_damaged_part_is_downloaded_again(address: str, manners: Manners, pinned: str, own_home: Path) -> None:
    manners.cut = [1000] * downloads.ATTEMPTS
    with pytest.raises(DataError):
        _get(pinned)
    part = next((own_home / "weights").glob(".*.part"))
    part.write_bytes(b"x" * 4000)
    assert _get(pinned).path.read_bytes() == manners.data
    assert [wanted for _, _, wanted in manners.seen[-2:]] == ["bytes=4000-", None]


@pytest.mark.parametrize("known", [True, False])
def test_a_complete_part_that_was_never_checked_is_not_downloaded_again(
    address: str, manners: Manners, pinned: str, known: bool, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the last byte and the check."""
    name = pinned if known else NAME
    with monkeypatch.context() as patch:
        patch.setattr(store, "_check", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            _get(name)
    assert _get(name).path.read_bytes() == manners.data
    bodies = [path for method, path, wanted in manners.seen if not wanted]
    assert len(bodies) == 1


@pytest.mark.parametrize("announce", [10, 10**13])
def test_another_size_is_refused_before_a_byte_is_written(
    address: str, manners: Manners, pinned: str, announce: int, own_home: Path
) -> None:
    manners.announce = announce
    with pytest.raises(DataError, match=f"announces {announce:,} bytes, and the file has {len(manners.data):,}"):
        _get(pinned)
    assert _left(own_home) == []


@pytest.mark.parametrize("announce", ["\N{SUPERSCRIPT TWO}", "9" * 5000])
def test_a_length_that_is_not_a_number_is_none(address: str, manners: Manners, pinned: str, announce: str) -> None:
    manners.announce = announce
    assert _get(pinned).path.read_bytes() == manners.data


@pytest.mark.parametrize("place", ["http://[127.0.0.1/x", "https://[v1/x"])
def test_a_redirect_to_an_invalid_address_is_an_error(
    address: str, manners: Manners, place: str, own_home: Path
) -> None:
    manners.redirect = place
    with pytest.raises(DataError, match=r"that of a redirect or a proxy, is not valid"):
        _get(NAME)
    assert _left(own_home) == [] and len(manners.seen) == 1


def test_more_than_announced_ends_at_the_limit(
    address: str, manners: Manners, pinned: str, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manners.no_length, manners.data = True, manners.data + bytes(100)
    with pytest.raises(DataError, match="sends more than"):
        _get(pinned)
    monkeypatch.setattr(downloads, "MAX_BYTES", 100_000)
    with pytest.raises(DataError, match="sends more than 100,000 bytes"):
        _get(NAME)
    assert _left(own_home) == []


def test_a_server_without_a_length_is_read_to_its_end(address: str, manners: Manners, pinned: str) -> None:
    manners.no_length = True
    assert _get(pinned).path.read_bytes() == manners.data


def test_a_truncated_file_without_a_length_never_counts(
    address: str, manners: Manners, pinned: str, own_home: Path
) -> None:
    manners.no_length, manners.data = True, manners.data[:-1]
    with pytest.raises(DataError, match="SHA-256"):
        _get(pinned)
    with pytest.raises(DataError, match="not a valid safetensors file"):
        _get(NAME)
    assert _left(own_home) == []


@pytest.mark.parametrize(("status", "advice"), [(404, "check the name"), (403, "token"), (410, "no longer exists")])
def test_a_refusal_of_the_server_is_final(
    address: str, manners: Manners, pinned: str, status: int, advice: str, own_home: Path
) -> None:
    manners.status = [status]
    with pytest.raises(DataError, match=f"answered {status} .*{advice}"):
        _get(pinned)
    assert len(manners.seen) == 1 and _left(own_home) == []


def test_a_busy_server_is_asked_again(address: str, manners: Manners, pinned: str) -> None:
    manners.status = [503, 429, 500]
    assert _get(pinned).downloaded and len(manners.seen) == 4


def test_nobody_answers(manners: Manners, pinned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(manners) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(DataError, match=r"could not be downloaded .*refused.*HTTPS_PROXY"):
        _get(pinned)


def test_a_server_that_stalls_is_an_error(address: str, manners: Manners, tmp_path: Path) -> None:
    manners.stall = 30
    with pytest.raises(DataError, match=r"could not be downloaded .*timed out"):
        downloads.download(f"{address}/file", tmp_path / "part", wait=FAST, timeout=0.2)


def test_a_slow_server_is_waited_for(address: str, manners: Manners, tmp_path: Path) -> None:
    """As long as bytes arrive, the time in total does not matter."""
    manners.data, manners.pace = weights_file(100), (100, 0.05)
    downloads.download(f"{address}/file", tmp_path / "part", wait=FAST, timeout=0.3)
    assert (tmp_path / "part").read_bytes() == manners.data


def test_redirects_are_followed_and_what_the_first_answer_states_is_kept(address: str, manners: Manners) -> None:
    """The hub redirects to another server, whose answers do not name the commit."""
    other = Manners(manners.data, etag=manners.etag, cut=[70_000])
    manners.linked = sha256(manners.data)
    with serving(other) as there:
        manners.redirect = f"{there}/elsewhere"
        fetched = _get(NAME)
    assert fetched.record.revision == COMMIT and fetched.path.read_bytes() == manners.data
    assert [wanted for _, _, wanted in other.seen] == [None, "bytes=70000-"]


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:text/plain,x"])
def test_redirects_to_other_protocols_are_refused(address: str, manners: Manners, place: str, own_home: Path) -> None:
    manners.redirect = place
    with pytest.raises(DataError, match=r"redirects from http to|is not allowed"):
        _get(NAME)
    assert _left(own_home) == []


def test_a_redirect_may_not_leave_https() -> None:
    handler, facts = downloads._Redirects(downloads.Facts()), downloads.urllib.request.Request("https://example.org/x")
    with pytest.raises(DataError, match="from https to http"):
        handler.redirect_request(facts, None, 302, "", downloads.Message(), "http://example.org/x")  # type: ignore[arg-type]
    allowed = handler.redirect_request(facts, None, 302, "", downloads.Message(), "https://b.org/y")  # type: ignore[arg-type]
    assert allowed is not None and allowed.full_url == "https://b.org/y"


def test_redirects_in_a_circle_end(address: str, manners: Manners) -> None:
    manners.redirect = "/circle"
    with pytest.raises(DataError, match=r"answered 302"):
        _get(NAME)
    assert len(manners.seen) <= 12


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path, str]]:
        return Path.write_text, (Path("pickle-was-run"), "yes")


def _with_header_of(length: int) -> bytes:
    """A safetensors file that begins like a pickle, if the length is 640: with the bytes 80 02."""
    table = b'{"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return length.to_bytes(8, "little") + table.ljust(length) + bytes(4)


def test_a_header_that_looks_like_a_pickle_is_none(address: str, manners: Manners) -> None:
    manners.data = _with_header_of(640)
    assert manners.data[:2] == pickle.dumps(1, protocol=2)[:2] and _get(NAME).downloaded


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pickle.dumps({"weight": _Bomb()}, protocol=2), "torch.save or pickle, which could run code"),
        (pickle.dumps({"weight": _Bomb()}), "torch.save or pickle, which could run code"),
        (pickle.dumps({"weight": _Bomb()}, protocol=0), "not a valid safetensors file"),
        (b"PK\x03\x04" + bytes(500), "torch.save or pickle"),
        (b"\n<!DOCTYPE html><html>log in</html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"", "not a valid safetensors file"),
        (b"\xff" * 100, "not a valid safetensors file"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "not a valid safetensors file"),
        (_with_header_of(640)[:-1], "not a valid safetensors file"),
        (weights_file()[:-1], "not a valid safetensors file"),
        (weights_file() + b"\0", "not a valid safetensors file"),
        ((2).to_bytes(8, "little") + b"{}", "without tensors"),
    ],
)
def test_a_hostile_file_is_a_clear_error_and_nothing_else(
    address: str,
    manners: Manners,
    data: bytes,
    reason: str,
    own_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    manners.data = data
    with pytest.raises(DataError, match=f"{reason}.*Nothing was stored. Fix: ") as caught:
        _get(NAME)
    assert str(caught.value).startswith(address)
    assert _left(own_home) == [] and not Path("pickle-was-run").exists()
    with pytest.raises(ConfigError, match="does not exist"):
        weights.find(NAME)


def test_a_link_is_not_written_through(address: str, manners: Manners, own_home: Path, tmp_path: Path) -> None:
    manners.cut = [1000] * downloads.ATTEMPTS
    with pytest.raises(DataError):
        _get(NAME)
    part = next((own_home / "weights").glob(".*.part"))
    (tmp_path / "precious").write_bytes(b"p" * 4000)
    part.unlink()
    part.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        _get(NAME)
    assert (tmp_path / "precious").read_bytes() == b"p" * 4000


def test_proxies_of_the_environment_are_used(
    manners: Manners, pinned: str, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    """The server is the proxy of an address that does not exist; for one in NO_PROXY it is not used."""
    with serving(manners) as proxy:
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        assert _get(pinned).path.read_bytes() == manners.data
        assert manners.seen[0][1].startswith("http://hub.invalid/facebook/")
        monkeypatch.setenv("no_proxy", "hub.invalid")
        with pytest.raises(DataError, match="could not be downloaded"):
            _get(NAME)
        assert len(manners.seen) == 1


@pytest.mark.parametrize("variable", store.OFFLINE)
def test_offline_names_the_file_to_bring_and_where(
    address: str, manners: Manners, pinned: str, variable: str, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError) as caught:
        _get(pinned)
    place = own_home / "weights" / "pinned.safetensors"
    for text in (variable, registry.entry_of(pinned).source, sha256(manners.data), str(place)):
        assert text in str(caught.value)
    assert not manners.seen
    place.write_bytes(manners.data)
    with pytest.raises(ConfigError, match="has not been verified yet"):
        weights.find(pinned)
    assert not _get(pinned).downloaded and weights.find(pinned) == place and not manners.seen


def test_a_file_that_was_placed_by_hand_must_fit(pinned: str, own_home: Path) -> None:
    place = own_home / "weights" / "pinned.safetensors"
    place.parent.mkdir(parents=True)
    place.write_bytes(weights_file(7))
    with pytest.raises(DataError, match=rf"SHA-256 .*Fix: remove {place}"):
        _get(pinned)
    assert place.exists()  # it may be precious
    with pytest.raises(ConfigError):
        weights.find(pinned)


def test_a_converted_file_is_trusted_on_first_use(own_home: Path) -> None:
    with pytest.raises(ConfigError, match=r"convert it once.*efficientnet-lite.md.*efficientnet-lite0.safetensors"):
        _get("efficientnet-lite0")
    place = own_home / "weights" / "efficientnet-lite0.safetensors"
    place.write_bytes(weights_file(7))
    assert not _get("efficientnet-lite0").known and weights.find("efficientnet-lite0") == place
    place.write_bytes(weights_file(8))
    with pytest.raises(DataError, match="SHA-256"):
        _get("efficientnet-lite0")


def test_only_a_pinned_digest_shows_where_weights_come_from(address: str, pinned: str, own_home: Path) -> None:
    """Any file may be placed under a name without a digest: its name is only what the user claims."""
    place = own_home / "weights" / "efficientnet-lite0.safetensors"
    place.parent.mkdir(parents=True)
    place.write_bytes(weights_file(7))
    for name in ("efficientnet-lite0", "timm:net"):
        record = _get(name).record
        about = weights.describe(weights.find(name), record.blake2b)
        for text in about.values():
            assert text.startswith("declared by the user to be ") and text.endswith("; not verified")
    assert weights.network_at_hand() is None and weights.network_at_hand(str(place)) is None
    fetched, entry = _get(pinned), registry.entry_of(pinned)
    known = {"origin": entry.origin, "licence": entry.licence}
    assert weights.describe(fetched.path, fetched.record.blake2b) == known
    # A record that was edited so that it vouches for another file changes nothing.
    edited, other = own_home / "weights" / "pinned.json", _get("efficientnet-lite0").record.blake2b
    (own_home / "weights" / "efficientnet-lite0.json").unlink()
    edited.write_text(edited.read_text().replace(fetched.record.blake2b, other))
    assert "not verified" in weights.describe(place, other)["origin"]


def test_a_changed_file_is_noticed_when_it_is_used(address: str, pinned: str) -> None:
    fetched = _get(pinned)
    assert weights.identify(fetched.path, fetched.record.blake2b) == registry.entry_of(pinned)
    assert weights.identify(Path("/elsewhere/copy.safetensors"), fetched.record.blake2b) is not None
    assert weights.identify(Path("/elsewhere/other.safetensors"), "0" * 64) is None
    with pytest.raises(DataError, match="is not the file that was verified"):
        weights.identify(fetched.path, "0" * 64)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', "[" * 100_000, '{"name": "a", "size": "x"}'])
def test_a_broken_record_is_named(address: str, pinned: str, own_home: Path, text: str) -> None:
    _get(pinned)
    record = own_home / "weights" / "pinned.json"
    record.write_text(text)
    with pytest.raises(DataError, match="not a record of weights") as caught:
        weights.find(pinned)
    assert str(caught.value).startswith(str(record))
    record.unlink()
    assert not _get(pinned).downloaded and weights.find(pinned).exists()


def test_two_processes_do_not_download_the_same(address: str, pinned: str, own_home: Path) -> None:
    from dpvision.core import files

    files.make_folder(own_home / "weights")
    with files.locked(own_home / "weights" / ".pinned.lock"), pytest.raises(ConfigError, match="another process"):
        _get(pinned)
