"""Hostile CSV files and folders: text that is none, and paths that lead elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from builders import good_arrays, save_folder
from hostile_case import Case, pickle_payload, python_payload
from PIL import Image

HEAD = b"path,label,person,split\n"
GOOD = b"a.png,cat,p1,train\nb.png,dog,p2,train\nc.png,cat,p1,test\n"


def table(text: bytes | Callable[[Path], bytes], extra: Callable[[Path], None] | None = None) -> Callable[[Path], Path]:
    """set/data.csv with three good images next to it, and outside.png one level up."""

    def build(folder: Path) -> Path:
        (folder / "set").mkdir()
        for name in ("set/a.png", "set/b.png", "set/c.png", "outside.png"):
            Image.new("L", (4, 4), 9).save(folder / name)
        if extra is not None:
            extra(folder / "set")
        (folder / "set" / "data.csv").write_bytes(text if isinstance(text, bytes) else text(folder))
        return folder / "set" / "data.csv"

    return build


def csv_text() -> Iterator[Case]:
    yield Case("csv-good", table(HEAD + GOOD), want="valid")
    row = b"b.png,dog,p2,train\n"
    texts = {
        "empty": b"",
        "newline": b"\n",
        "only-head": HEAD,
        "no-head": GOOD,
        "utf-16": (HEAD + GOOD).decode().encode("utf-16"),
        "utf-16-be": (HEAD + GOOD).decode().encode("utf-16-be"),
        "utf-32": (HEAD + GOOD).decode().encode("utf-32"),
        "latin-1": HEAD + GOOD + b"a.png,gr\xfcn,p,train\n",
        "bad-head-bytes": b"\xff\xfe" + HEAD,
        "nul": HEAD + b"a.png\0,cat,p,train\n",
        "nul-head": b"path,la\0bel\na.png,cat\n",
        "all-nul": bytes(5000),
        "missing-path": b"file,label\na.png,cat\n",
        "missing-label": b"path\na.png\n",
        "semicolon": b"path;label\na.png;cat\n",
        "tab": b"path\tlabel\na.png\tcat\n",
        "two-paths": b"path,label,path\na.png,cat,b.png\n",
        "two-labels": b"path,label,Label\na.png,cat,dog\n",
        "unknown-column": b"path,label,age\na.png,cat,7\n",
        "many-columns": b"path,label" + b",x" * 30_000 + b"\n",
        "short-row": HEAD + GOOD + b"a.png,cat\n",
        "long-row": HEAD + GOOD + b"a.png,cat,p,train,x\n",
        "open-quote": HEAD + b'"a.png,cat,p1,train\n' + GOOD,
        "open-quote-huge": HEAD + b'"' + b"a\n" * 200_000,
        "stray-quote": HEAD + b'"a.png"x,cat,p1,train\n' + GOOD,
        "huge-field": HEAD + b"a" * 10**6 + b",cat,p1,train\n",
        "huge-line": HEAD + b"a" * (5 * 10**7),
        "huge-person": HEAD + b"a.png,cat," + b"p" * 10**5 + b",train\n" + GOOD,
        "bad-split": HEAD + GOOD + b"d.png,cat,p1,training\n",
        "split-path": HEAD + GOOD + b"d.png,cat,p1,../test\n",
        "no-label": HEAD + b"a.png,,p1,train\n" + row,
        "space-label": HEAD + b"a.png,  ,p1,train\n" + row,
        "escape-label": HEAD + b"a.png,\x1b[31mcat,p1,train\n" + row,
        "long-label": HEAD + b"a.png," + b"c" * 300 + b",p1,train\n" + row,
        "bidi-label": HEAD + "a.png,\u202ecat,p1,train\n".encode() + row,
        "no-person": HEAD + b"a.png,cat,,train\n" + row,
        "no-path": HEAD + b",cat,p1,train\n" + row,
        "one-class": HEAD + b"a.png,cat,p1,train\nb.png,cat,p2,train\n",
        "only-test": HEAD + b"a.png,cat,p1,test\nb.png,dog,p2,test\n",
        "test-class": HEAD + GOOD + b"d.png,hen,p1,test\n",
        "twice": HEAD + GOOD + b"a.png,dog,p1,train\n",
        "return-only": (HEAD + GOOD).replace(b"\n", b"\r"),
        "zip": b"PK\3\4" + bytes(500),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(500),
        "deep": b"[" * 10**5,
    }
    for name, text in texts.items():
        yield Case(f"csv-{name}", table(text))
    yield Case("csv-pickle", table(pickle_payload))
    yield Case("csv-python", table(python_payload))
    yield Case(
        "csv-many-classes",
        table(HEAD + b"".join(b"%d.png,c%d,p,train\n" % (n, n) for n in range(100_001))),
        only_load=True,
    )
    yield Case("csv-declared-number", table(HEAD + GOOD), options={"classes": 2})
    yield Case("csv-declared-names", table(HEAD + GOOD), options={"classes": ["cat", "hen"]})


def csv_paths() -> Iterator[Case]:
    paths = [
        "../outside.png",
        "x/../../outside.png",
        "./../outside.png",
        "a.png/../../outside.png",
        "x/../a.png",
        "..",
        ".",
        "/",
        "//etc/passwd",
        "/etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        "~/x.png",
        "file:///etc/passwd",
        "http://127.0.0.1/x.png",
        "..\\outside.png",
        "C:\\x.png",
        "\\\\host\\x.png",
        "missing.png",
        "x" * 5000,
        "x/" * 3000,
        "data.csv",
        "$(touch x).png",
        "|id",
        "a.png\x1b[2J",
        "a.png/",
        "a.png/x",
        "%2e%2e/outside.png",
        "\uff0e\uff0e/outside.png",
    ]
    for number, path in enumerate(paths):
        text = HEAD + GOOD + path.encode() + b",dog,p3,train\n"
        # Where the name of the image is not printed as it stands, the message still starts below the folder.
        plain = path.isprintable() and len(path) < 100 and not path.startswith(".") and not path.endswith("/")
        blames = path if path.startswith("/") else f"set/{path}" if plain else ""
        yield Case(f"csv-path-{number}", table(text), blames=blames)
    yield Case("csv-path-absolute", table(lambda f: HEAD + GOOD + f"{f}/set/a.png,dog,p,train\n".encode()), blames="/")
    text = HEAD + GOOD + b"bad.png,dog,p3,train\n"
    for name, make in special_files().items():
        yield Case(f"csv-{name}", table(text, lambda root, make=make: make(root / "bad.png")), blames="set/bad.png")
    text = HEAD + GOOD + b"out/outside.png,dog,p3,train\n"
    yield Case(
        "csv-linked-folder", table(text, lambda root: (root / "out").symlink_to("..")), blames="set/out/outside.png"
    )


def special_files() -> dict[str, Callable[[Path], object]]:
    """What may stand where an image should be."""
    return {
        "link-out": lambda place: place.symlink_to(Path(os.path.relpath("/etc/passwd", place.parent))),
        "link-absolute": lambda place: place.symlink_to("/etc/passwd"),
        "link-zero": lambda place: place.symlink_to("/dev/zero"),
        "link-null": lambda place: place.symlink_to("/dev/null"),
        "link-terminal": lambda place: place.symlink_to("/dev/tty"),
        "link-loop": lambda place: place.symlink_to(place.name),
        "link-nowhere": lambda place: place.symlink_to("nothing.png"),
        "link-process": lambda place: place.symlink_to("/proc/self/mem"),
        "link-stdin": lambda place: place.symlink_to("/dev/stdin"),
        "fifo": os.mkfifo,
        "link-fifo": lambda place: (os.mkfifo(place.parent / ".fifo"), place.symlink_to(".fifo")),
        "socket": make_socket,
        "folder": os.mkdir,
        "sparse": lambda place: (place.touch(), os.truncate(place, 2**40)),
        "locked-name": lambda place: place.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    }


def make_socket(place: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # the address of a socket is short, the names of temporary folders are not
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(place.name)
    finally:
        os.chdir(here)


def folder_with(change: Callable[[Path], object]) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        root = save_folder(folder / "set", {k: v for k, v in good_arrays().items() if not k.startswith("val")})
        Image.new("L", (6, 6)).save(folder / "outside.png")
        (folder / "elsewhere" / "0").mkdir(parents=True)
        Image.new("L", (6, 6)).save(folder / "elsewhere" / "0" / "x.png")
        change(root)
        return root

    return build


def empty_all(root: Path) -> None:
    for file in root.rglob("*.png"):
        file.unlink()


def folders() -> Iterator[Case]:
    for name, make in special_files().items():
        bad = folder_with(lambda root, make=make: make(root / "train" / "1" / "bad.png"))
        yield Case(f"folder-{name}", bad, blames="set/train/1/bad.png")
        if name not in ("folder", "sparse", "locked-name", "link-nowhere"):
            yield Case(f"folder-split-{name}", folder_with(lambda root, make=make: make(root / "val")))
            yield Case(
                f"folder-class-{name}", folder_with(lambda root, make=make: make(root / "train" / "bad")), blames=""
            )
            yield Case(f"folder-meta-{name}", folder_with(lambda root, make=make: make(root / "meta.json")), blames="")
    changes: dict[str, Callable[[Path], object]] = {
        "split-outside": lambda root: (root / "val").symlink_to("../elsewhere"),
        "class-outside": lambda root: (root / "train" / "3").symlink_to("../../elsewhere/0"),
        "class-parent": lambda root: (root / "train" / "3").symlink_to("../.."),
        "image-outside": lambda root: (root / "train" / "1" / "z.png").symlink_to("../../../outside.png"),
        "no-images": empty_all,
        "stray-image": lambda root: Image.new("L", (6, 6)).save(root / "train" / "z.png"),
        "class-escape": lambda root: (root / "train" / "\x1b[2Jcat").mkdir(),
        "class-newline": lambda root: (root / "train" / "a\nb").mkdir(),
        "class-bytes": lambda root: os.mkdir(os.fsencode(root / "train") + b"/\xff\xfe"),
        "image-bytes": lambda root: (root / "train" / "1" / os.fsdecode(b"\xff.png")).write_bytes(b"x"),
        "class-long": lambda root: (root / "train" / ("c" * 220)).mkdir(),
        "class-space": lambda root: (root / "train" / "  ").mkdir(),
        "test-class": lambda root: (root / "test" / "0").rename(root / "test" / "9"),
        "nested": lambda root: (root / "train" / "1" / "more").mkdir(),
        "train-is-a-file": lambda root: ((root / "train").rename(root / "x"), (root / "train").write_bytes(b"x")),
        "no-train": lambda root: (root / "train").rename(root / "x"),
    }
    for name, change in changes.items():
        yield Case(f"folder-{name}", folder_with(change), blames="")
    yield Case("folder-declared-number", folder_with(lambda root: None), options={"classes": 2})
    yield Case("folder-declared-names", folder_with(lambda root: None), options={"classes": ["0", "1"]})
    for name in ("fifo", "socket", "link-zero", "link-loop", "link-nowhere", "link-null"):
        for suffix in ("npz", "csv", "png", "txt"):
            verb = "image_batches" if suffix == "png" else "load"
            yield Case(f"source-{name}-{suffix}", single(special_files()[name], f"data.{suffix}"), verb=verb)


def single(make: Callable[[Path], object], name: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        make(folder / name)
        return folder / name

    return build


def cases() -> Iterator[Case]:
    for group in (csv_text, csv_paths, folders):
        yield from group()
