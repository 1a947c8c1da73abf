"""A server of one file on 127.0.0.1 that misbehaves on demand and counts requests."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from safetensors.torch import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def weights_file(numbers: int = 1000, seed: int = 0) -> bytes:
    """A small safetensors file."""
    generator = torch.Generator().manual_seed(seed)
    return save({"weight": torch.rand(numbers, generator=generator), "bias": torch.zeros(3)})


@dataclass
class Manners:
    """How the server behaves."""

    data: bytes
    etag: str | None = '"first"'
    ranges: bool = True
    cut: list[int] = field(default_factory=list)  # bytes of each answer after which the connection ends
    status: list[int] = field(default_factory=list)  # of the first answers
    announce: int | str | None = None  # Content-Length
    no_length: bool = False
    stall: float = 0.0  # seconds before the body
    pace: tuple[int, float] = (1 << 20, 0.0)  # bytes at a time, and seconds between
    redirect: str | None = None
    wrong_range: bool = False
    linked: str | None = None  # X-Linked-ETag
    commit: str = COMMIT  # X-Repo-Commit
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    manners: Manners
    end: threading.Event

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        manners, wanted = self.manners, self.headers.get("Range")
        manners.seen.append((self.command, self.path, wanted))
        if body and manners.status and (status := manners.status.pop(0)) != 200:
            self.send_error(status)
            return
        if manners.redirect and not self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", manners.redirect)
            self._facts()
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data, start = manners.data, 0
        fits = self.headers.get("If-Range") in (None, manners.etag)
        if wanted and manners.ranges and fits:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            first = start + 7 if manners.wrong_range else start
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self._facts()
        if not manners.no_length:
            self.send_header("Content-Length", str(manners.announce or len(data) - start))
        self.send_header("Connection", "close")  # or a client may ask again on a connection that is about to end
        self.end_headers()
        if not body:
            return
        self.end.wait(manners.stall)
        limit = manners.cut.pop(0) if manners.cut else len(data)
        rest, (size, pause) = data[start : start + limit], manners.pace
        for at in range(0, len(rest), size):
            self.wfile.write(rest[at : at + size])
            self.wfile.flush()
            if pause and self.end.wait(pause):
                return

    def _facts(self) -> None:
        self.send_header("X-Repo-Commit", self.manners.commit)
        if self.manners.etag:
            self.send_header("ETag", self.manners.etag)
        if self.manners.linked:
            self.send_header("X-Linked-ETag", f'"{self.manners.linked}"')


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass  # a client that went away


@contextmanager
def serving(manners: Manners) -> Iterator[str]:
    """The address of a server with these manners, while the block runs."""
    end = threading.Event()
    handler = type("Handler", (_Handler,), {"manners": manners, "end": end})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        end.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wait_until(true: object, seconds: float = 20.0) -> None:
    """Wait until the function gives true; an AssertionError after `seconds`."""
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
