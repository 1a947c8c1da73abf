"""Links between ranks: what is on the network is sealed, and nothing that was altered on its way is taken."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpvision.core.keys import Key
from dpvision.errors import PrivacyError
from dpvision.private.training import links
from dpvision.storage.home import home


class Network:
    """Carries messages within this process, and keeps a copy of each; those of a test may be altered on their way."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.under_way: defaultdict[int, deque[Tensor]] = defaultdict(deque)

    def send(self, message: Tensor, receiver: int) -> None:
        self.seen.append(message.numpy().tobytes())
        self.under_way[receiver].append(message.clone())

    def recv(self, message: Tensor, sender: int) -> None:
        message.copy_(self.under_way[1 - sender].popleft())


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(dist, "send", network.send)
    monkeypatch.setattr(dist, "recv", network.recv)
    return network


@pytest.fixture
def ends() -> tuple[links.Link, links.Link]:
    key = Key.fresh()
    return links.Link(key, 0), links.Link(key, 1)


@pytest.mark.parametrize("value", [
    torch.linspace(-1, 1, 1000, dtype=torch.float64), torch.tensor([3]), torch.tensor([True]), torch.rand(4, 5).T,
    torch.zeros(0), torch.arange(9, dtype=torch.uint8),
], ids=lambda value: f"{value.dtype}, {tuple(value.shape)}")  # fmt: skip
def test_values_arrive_and_are_not_seen_on_the_way(
    value: Tensor, network: Network, ends: tuple[links.Link, links.Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_PIECE", 1024)
    for sender, receiver in ((0, 1), (1, 0), (1, 0)):
        received = torch.empty(value.shape, dtype=value.dtype)
        ends[sender].send(value, receiver)
        ends[receiver].receive(received, sender)
        assert torch.equal(received, value)
    assert len(set(network.seen)) == len(network.seen), "the same values, sealed differently each time"
    plain = value.contiguous().numpy().tobytes()
    if len(plain) > 4:
        assert not any(
            plain[start : start + 8] in sealed for sealed in network.seen for start in range(0, len(plain) - 7, 8)
        )


def test_no_two_messages_of_any_two_ranks_share_a_nonce(network: Network) -> None:
    """Under one key and one nonce the same values would be the same bytes; other values would reveal their XOR."""
    key, ranks = Key.fresh(), 4
    for sender, receiver in itertools.permutations(range(ranks), 2):
        link = links.Link(key, sender)
        for _ in range(3):
            link.send(torch.zeros(8), receiver)
    assert len(network.seen) == 3 * ranks * (ranks - 1) == len(set(network.seen))


@pytest.mark.parametrize("attack", ["altered", "repeated", "left out", "sent back", "another key"])
def test_what_somebody_else_did_is_refused(attack: str, network: Network, ends: tuple[links.Link, links.Link]) -> None:
    first, second = ends
    received, value = torch.empty(3), torch.tensor([1.0, 2.0, 3.0])
    first.send(value, 1)
    first.send(value, 1)
    waiting = network.under_way[1]
    receiver, sender = second, 0
    if attack == "altered":
        waiting[0][5] ^= 1
    elif attack == "repeated":
        waiting.appendleft(waiting[0].clone())
        second.receive(received, 0)
    elif attack == "left out":
        waiting.popleft()
    elif attack == "sent back":
        network.under_way[0].append(waiting[0])
        receiver, sender = first, 1
    else:
        receiver = links.Link(Key.fresh(), 1)
    received.zero_()
    with pytest.raises(RuntimeError, match=f"from rank {sender} was altered"):
        receiver.receive(received, sender)
    assert not received.any(), "nothing of it is taken"


def _connect(ranks: int, homes: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> list[links.Link | PrivacyError]:
    """All ranks meet, each in a thread; those in `homes` have another home."""
    store, met = dist.HashStore(), [None] * ranks
    real = links.key_path

    def path_of(name: str) -> Path:
        number = int(threading.current_thread().name)
        return homes[number] / f"{name}.key" if number in homes else real(name)

    def meet(rank: int) -> None:
        try:
            met[rank] = links.connect(store, rank, ranks)
        except PrivacyError as exc:
            met[rank] = exc

    monkeypatch.setattr(links, "key_path", path_of)
    threads = [threading.Thread(target=meet, args=(rank,), name=str(rank)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return met  # type: ignore[return-value]


def test_ranks_share_a_key_that_is_gone_when_all_have_it(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = _connect(3, {}, monkeypatch)
    assert isinstance(first, links.Link) and isinstance(second, links.Link) and isinstance(third, links.Link)
    received = torch.empty(2)
    first.send(torch.tensor([1.0, 2.0]), 1)
    second.receive(received, 0)
    assert received.tolist() == [1, 2]
    assert home().is_dir() and not list((home() / "keys").iterdir())


def test_a_rank_that_does_not_see_the_key_stops_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PATIENCE", 0.2)
    for met in _connect(3, {1: tmp_path / "elsewhere"}, monkeypatch):
        assert isinstance(met, PrivacyError) and "rank 1 of 3 does not see this key" in str(met)
    assert not list((home() / "keys").iterdir())
