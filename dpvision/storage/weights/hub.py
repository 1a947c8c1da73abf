"""Downloads through huggingface_hub, if it is installed, with its tokens, mirrors and way of resuming."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dpvision.errors import DataError
from dpvision.storage.weights.download import SHA256, Facts, Progress, read_commit
from dpvision.storage.weights.registry import PublicWeights

POLL = 0.5  # seconds


def load_hub() -> ModuleType | None:
    """Return the library, or None if it is not installed."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        return None


def download_with(
    hub: ModuleType, entry: PublicWeights, revision: str | None, part: Path, *, progress: Progress = lambda *_: None
) -> Facts:
    """Download the entry's file to `part`; the library resumes a killed download."""
    staging, endpoint = part.with_suffix(".hub"), os.environ.get("HF_ENDPOINT") or None
    try:
        url = hub.hf_hub_url(entry.repository, entry.file, revision=revision, endpoint=endpoint)
        metadata = hub.get_hf_file_metadata(url)
        if entry.size is not None and metadata.size not in (None, entry.size):
            raise DataError(
                f"{url}: the server announces {metadata.size:,} bytes, and the file has {entry.size:,}. Nothing was "
                "stored. Fix: check the address and any proxy in between."
            )
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
        with _watched(staging, metadata.size or entry.size or 0, progress):
            path = hub.hf_hub_download(
                entry.repository,
                entry.file,
                revision=read_commit(metadata.commit_hash) or revision,
                local_dir=staging,
                endpoint=endpoint,
            )
    except DataError:
        raise
    except Exception as exc:  # from the library, its HTTP client or the system, without a common base class
        reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise DataError(
            f"{entry.source}: huggingface_hub could not download it ({reason}). Fix: check the name, the network and "
            "HTTPS_PROXY; the same command resumes the download."
        ) from exc
    os.replace(path, part)
    shutil.rmtree(staging, ignore_errors=True)
    etag = metadata.etag or ""
    return Facts(read_commit(metadata.commit_hash), etag if SHA256.fullmatch(etag) else None)


@contextmanager
def _watched(folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Report how many bytes are in the folder while the block runs."""
    end = threading.Event()

    def watch() -> None:
        while not end.wait(POLL):
            progress(sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()), total)

    thread = threading.Thread(target=watch, name="weights", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
