"""One file over HTTP, with the standard library: resumed after an interruption, bounded in size, and not trusted.

The bytes go to a .part file, which the caller verifies and renames. urllib's environment variables apply: HTTPS_PROXY,
NO_PROXY, SSL_CERT_FILE. A redirect may not leave HTTPS.

    if the server                           then
    ends early, stalls, answers 429 or 5xx  up to ATTEMPTS attempts; each continues where the last one ended
    ignores Range                           the file is downloaded from its beginning
    has a different file by now (ETag)       the same
    announces a different size              an error, before a byte is written
    redirects to an invalid address         an error
    sends more than it announced            an error, at the limit
    answers 4xx                             an error
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import DataError

Progress = Callable[[int, int], None]

ATTEMPTS = 4  # without progress in between
PROGRESS_BYTES = 1 << 20  # an attempt that gains this many bytes is not counted
WAIT = 1.0  # seconds before the second attempt, then twice as long each time
TIMEOUT = 60.0  # seconds without a byte
CHUNK = 1 << 18
MAX_BYTES = 8 << 30  # of a file of unknown size
OF_THE_NETWORK = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError)
RETRIED = (408, 429, 500, 502, 503, 504)
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
NUMBER = re.compile(r"[0-9]{1,20}")  # str.isdigit and int do not agree on other characters, and int has a limit


class _Interrupted(Exception):
    """The attempt ended early; another one may succeed."""


@dataclass
class Facts:
    """What the hub's response headers state about a file; None for what they do not state."""

    revision: str | None = None
    sha256: str | None = None


def download(
    url: str,
    part: Path,
    *,
    size: int | None = None,
    same_bytes: bool = False,
    progress: Progress = lambda *_: None,
    wait: float = WAIT,
    timeout: float = TIMEOUT,
) -> Facts:
    """Download `url` to the file `part`, resuming an earlier download of the same URL.

    With `same_bytes` the caller knows the file's digest, so a download without an ETag can also be resumed.
    """
    if not _belongs(part, url):
        discard(part)
    facts, failures = Facts(), 0
    if size is not None and _length(part) == size:
        return facts  # complete, but perhaps not verified yet
    while True:
        before = _length(part)
        try:
            _attempt(url, part, facts, size=size, same_bytes=same_bytes, progress=progress, timeout=timeout)
            return facts
        except (_Interrupted, OSError, http.client.HTTPException) as exc:
            if isinstance(exc, OSError) and not isinstance(exc, OF_THE_NETWORK):
                raise  # a disk error
            failures = 0 if _length(part) - before >= PROGRESS_BYTES else failures + 1
            if failures == ATTEMPTS:
                raise _failure(url, part, exc) from exc
            time.sleep(wait * 2 ** max(0, failures - 1))


def discard(part: Path) -> None:
    """Remove a partial download."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _attempt(
    url: str, part: Path, facts: Facts, *, size: int | None, same_bytes: bool, progress: Progress, timeout: float
) -> None:
    offset, etag = _length(part), _read_note(part).get("etag")
    headers = {"User-Agent": f"dpvision/{__version__}", "Accept-Encoding": "identity"}
    if offset and (etag or same_bytes):
        headers["Range"] = f"bytes={offset}-"
        if etag:
            headers["If-Range"] = str(etag)
    opener = urllib.request.build_opener(_Redirects(facts))
    try:
        reply = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as exc:
        with exc:
            if exc.code == 416 and offset:
                if exc.headers.get("Content-Range") == f"bytes */{offset}":
                    return  # complete
                discard(part)
                raise _Interrupted("the file on the server has changed") from exc
            if exc.code in RETRIED:
                raise _Interrupted(f"the server answered {exc.code} {exc.reason}") from exc
            raise DataError(f"{url}: the server answered {exc.code} {exc.reason}. {_advice(exc.code)}") from exc
    except ValueError as exc:  # from urllib
        if isinstance(exc, OSError):  # a certificate error is both
            raise
        raise DataError(
            f"{url}: this address, or that of a redirect or a proxy, is not valid ({exc}). Fix: check them."
        ) from exc
    with reply:
        _note_facts(facts, reply.headers)
        continued = reply.status == 206 and _starts_at(reply.headers.get("Content-Range"), offset)
        if reply.status == 206 and not continued:
            discard(part)
            raise _Interrupted("the server sent a different part of the file than requested")
        if not continued:
            offset = 0
        announced = reply.headers.get("Content-Length", "")
        total = offset + int(announced) if NUMBER.fullmatch(announced) else None
        if total is not None and (total != size if size else total > MAX_BYTES):
            discard(part)
            raise DataError(
                f"{url}: the server announces {total:,} bytes, and the file "
                + (f"has {size:,}" if size else f"may have at most {MAX_BYTES:,}")
                + ". Nothing was stored. Fix: check the address and any proxy in between."
            )
        if not continued:
            discard(part)
            _write_note(part, url, reply.headers.get("ETag"))
        _receive(reply, part, url, offset=offset, total=total, most=size or MAX_BYTES, progress=progress)


def _receive(
    reply: Any, part: Path, url: str, *, offset: int, total: int | None, most: int, progress: Progress
) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(part, flags, 0o600), "wb") as file:
        file.seek(offset)
        try:
            while data := reply.read1(CHUNK):
                if offset + len(data) > most:
                    file.close()
                    discard(part)
                    raise DataError(
                        f"{url}: sends more than {most:,} bytes. Nothing was stored. Fix: use another source."
                    )
                file.write(data)
                offset += len(data)
                progress(offset, total or 0)
        finally:
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
    if total is not None and offset != total:
        raise _Interrupted(f"the connection ended after {offset:,} of {total:,} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but not from HTTPS to anything else, and read the headers that the hub sends with them."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        _note_facts(self.facts, headers)
        before, after = urlsplit(req.full_url).scheme, urlsplit(urljoin(req.full_url, newurl)).scheme
        if after != "https" and not (before == after == "http"):
            raise DataError(f"{req.full_url}: redirects from {before} to {after}. Fix: check any proxy in between.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def read_commit(stated: str | None) -> str | None:
    """Return the commit that a server states, if it is one: it goes into the record and into later addresses."""
    return stated if stated and COMMIT.fullmatch(stated) else None


def _note_facts(facts: Facts, headers: Any) -> None:
    """Read the commit, and the SHA-256 of a large file, from the headers of Hugging Face's first response."""
    facts.revision = facts.revision or read_commit(headers.get("X-Repo-Commit"))
    linked = (headers.get("X-Linked-ETag") or "").strip('"')
    if facts.sha256 is None and SHA256.fullmatch(linked):
        facts.sha256 = linked


def _starts_at(content_range: str | None, offset: int) -> bool:
    match = re.fullmatch(r"bytes ([0-9]{1,20})-[0-9]+/(?:[0-9]+|\*)", (content_range or "").strip())
    return match is not None and int(match[1]) == offset


def _failure(url: str, part: Path, exc: BaseException) -> DataError:
    reason = str(getattr(exc, "reason", "") or exc) or type(exc).__name__
    return DataError(
        f"{url}: could not be downloaded ({reason}); {_length(part):,} bytes are stored in {part}. Fix: check the "
        "network and HTTPS_PROXY; the same command resumes the download."
    )


def _advice(code: int) -> str:
    if code in (401, 403):
        return "Fix: use a source that needs no login, or huggingface_hub with a token that grants access."
    if code in (404, 410):
        return "Fix: check the name; this file does not exist, or no longer exists."
    return "Fix: check the address and any proxy in between."


def _length(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_note(part: Path) -> dict[str, Any]:
    try:
        note = json.loads(files.read(_note(part), most=1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _write_note(part: Path, url: str, etag: str | None) -> None:
    strong = etag if etag and not etag.startswith("W/") else None  # a weak ETag does not promise equal bytes
    files.write(_note(part), json.dumps({"url": url, "etag": strong}))


def _belongs(part: Path, url: str) -> bool:
    return _read_note(part).get("url") == url
