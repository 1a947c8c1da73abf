"""The verb weights: public networks by name, downloaded once and verified."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import Json, verb_with_parts

weights = verb_with_parts("weights", "Download weights of public networks by name, and check them.")

Name = Annotated[str, Parameter(help="Name of public weights, as `dpvision weights list` shows, or timm:NAME.")]


@weights.command(name="list", help_epilogue="")
def show(*, json: Json = False) -> None:
    """List the public networks: source, licence, what they were trained on, and which are on this machine.

    Pinned digests are part of dpvision. Without one, the first file is trusted, and later files must match it.

    Example: `dpvision weights list`
    """
    from dpvision.cli import screen
    from dpvision.storage.weights import NETWORKS, path_of, record_of

    entries: list[dict[str, Any]] = []
    for entry in NETWORKS.values():
        path, record = path_of(entry), record_of(entry)
        here = record is not None and path.is_file() and path.stat().st_size == record.size
        facts = {**asdict(entry), "source": entry.source, "path": str(path), "here": here}
        entries.append({**facts, "recorded": asdict(record) if record else None})
    if json:
        screen.as_json(entries)
        return
    screen.grid(
        ["name", "features", "MB", "licence", "digest", "here"],
        [
            [
                of["name"],
                f"{of['features']:,}",
                f"{of['size'] / 1e6:,.0f}" if of["size"] else "",
                of["licence"],
                _digest_of(of),
                "yes" if of["here"] else "",
            ]
            for of in entries
        ],
    )
    for of in entries:
        screen.say(f"{of['name']}: {of['architecture']}, trained on {of['trained_on']}")
        screen.say(f"  {of['input']}; from {of['source'] if not of['conversion'] else 'a conversion'}")
    screen.say("timm:NAME: any network of timm; its digest is recorded when it is first downloaded")


def _digest_of(entry: dict[str, Any]) -> str:
    if entry["sha256"]:
        return f"pinned {entry['sha256'][:8]}..."
    return f"recorded {entry['recorded']['sha256'][:8]}..." if entry["recorded"] else "unknown until the first get"


@weights.command(help_epilogue="")
def get(name: Name, /) -> None:
    """Download the weights of a public network, or verify those already downloaded.

    The file is checked against its digest and then stored in $DPVISION_HOME/weights, for `--encoder`, `--weights` and
    `--pretrained` by name. An interrupted download is resumed. HTTPS_PROXY, NO_PROXY and HF_ENDPOINT are used; with
    DPVISION_OFFLINE or HF_HUB_OFFLINE nothing is downloaded, and the message names the file to copy.

    Example: `dpvision weights get dinov2-vits14`
    """
    from dpvision.cli import screen
    from dpvision.storage.weights import entry_of
    from dpvision.storage.weights import get as fetch

    entry = entry_of(name)
    size = f", {entry.size / 1e6:,.0f} MB" if entry.size else ""
    with screen.counting(f"{entry.name}{size}: bytes") as progress:
        fetched = fetch(name, progress=progress)
    record = fetched.record
    screen.say(f"{'downloaded' if fetched.downloaded else 'checked'} {fetched.path} ({record.size:,} bytes)")
    if entry.sha256:
        trust = "as pinned in dpvision"
    elif fetched.known:
        trust = "as recorded when it was first downloaded; no digest is pinned"
    else:
        trust = "recorded now; no digest is pinned, so this file was trusted, and later files must match it"
    screen.say(f"SHA-256 {record.sha256}: {trust}")
    screen.say(f"{entry.origin}; {record.source}")


@weights.command(help_epilogue="")
def where(name: Name, /) -> None:
    """Print the path of downloaded weights, for scripts.

    Example: `dpvision weights where dinov2-vits14`
    """
    from dpvision.cli import screen
    from dpvision.storage.weights import find

    screen.say(str(find(name)))
