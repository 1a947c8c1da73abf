"""Two machines for tests: network namespaces on this one, joined by a virtual cable, each with its own loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CABLE = "eth0"  # the name of the cable's end in each namespace
ADDRESSES = ("10.99.77.1", "10.99.77.2")
_SNIFFER = """
import socket, sys
cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
cable.bind((sys.argv[1], 0))
print("listening", flush=True)
with open(sys.argv[2], "wb", buffering=0) as file:
    while True:
        file.write(cable.recv(1 << 17))
"""


class NoNamespaces(Exception):
    """They cannot be made here; the message is the reason."""


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """The names of two namespaces that are joined; they are removed afterwards."""
    if shutil.which("ip") is None:
        raise NoNamespaces("`ip` (iproute2) is not installed")
    names = (f"dpvision-{os.getpid()}-a", f"dpvision-{os.getpid()}-b")
    ends = (f"dpv{os.getpid()}a", f"dpv{os.getpid()}b")
    made = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            _ip("-n", name, "link", "set", end, "name", CABLE)
            _ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            for link in ("lo", CABLE):
                _ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in made:
            _ip("netns", "delete", name)


def inside(name: str) -> list[str]:
    """The beginning of a command that runs in a namespace."""
    return ["ip", "netns", "exec", name]


@contextmanager
def wiretapped(name: str, file: Path) -> Iterator[None]:
    """Write to a file all that passes over the cable of a namespace."""
    command = [*inside(name), sys.executable, "-c", _SNIFFER, CABLE, str(file)]
    sniffer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert sniffer.stdout is not None
    try:
        if sniffer.stdout.readline() != "listening\n":
            raise NoNamespaces("packets of a namespace cannot be read")
        yield
    finally:
        sniffer.kill()
        sniffer.wait()
        sniffer.stdout.close()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise NoNamespaces(f"`ip {' '.join(words)}`: {done.stderr.strip()}")
