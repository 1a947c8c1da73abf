"""Reads the images of a listing in threads: first all headers if they are needed, then each image, once.

Each image is written directly to its place in the final array, so memory holds that array and a few more images.
"""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import numpy as np

from dpvision.data import facts, image_cache
from dpvision.data.dataset import DIGEST, SPLITS, Broken, Dataset, Findings, Split, Unlabelled
from dpvision.data.files import PassingRefusal, Refusal, file_length, open_inside, printable, resolve_inside
from dpvision.data.listing import LAYOUTS, SUFFIXES, Item, Listing, find_problem, list_images, names_in
from dpvision.data.parallel import Output, in_order
from dpvision.data.picture import Decoded, Rule, decode, measure, read_file, strict_warnings
from dpvision.data.store import Destination
from dpvision.data.test_part import is_test
from dpvision.errors import DataError

Progress = Callable[[int, int], None]
Sides = tuple[int, int, int]
_Task = tuple[Item, bytes | None]


@dataclass(frozen=True)
class Reading:
    """How a listing is read: the rule for its images, the share to set aside, and whether broken files are left out."""

    rule: Rule = field(default_factory=Rule)
    test_share: float | None = None
    skip_broken: bool = False


def read_listing(
    listing: Listing,
    source: Path,
    declared: facts.Declared,
    reading: Reading,
    *,
    name: str,
    destination: Destination,
    progress: Progress | None,
) -> Dataset:
    """Read the data set; labels that are not among the classes and one file under two names are refused."""
    if not listing.items.get("train") and not listing.broken:
        where = "train" if listing.share is None else "the folders of its classes"
        raise Refusal(f"has no image in {where}. Fix: use one of the layouts{LAYOUTS}")
    names = _resolve_classes(listing, declared)
    _require_distinct(listing)
    share = _share(listing, reading)
    with strict_warnings():
        parts, broken, notes = _decode_all(
            listing, declared, reading.rule, share=share, destination=destination, progress=progress
        )
    if broken and not reading.skip_broken:
        _refuse_broken(source, Path(listing.given_root), broken)
    if "train" not in parts:
        raise Refusal("has no readable image in train.")
    numbers = {label: number for number, label in enumerate(names)}
    persons = _index_persons(parts)
    splits = {
        split: Split(
            images=part.images,
            labels=facts.cells_to_labels([item.label for item in part.items], names)
            if declared.task == "labels"
            else np.array([numbers[item.label] for item in part.items], dtype=np.int64),
            persons=persons.get(split),
            originals=np.frombuffer(b"".join(part.digests), np.uint8).reshape(-1, DIGEST),
            groups=np.array([item.group for item in part.items], dtype=object)
            if declared.group is not None and split == "test"
            else None,
        )
        for split, part in parts.items()
    }
    three = splits["train"], splits.get("val"), splits.get("test")
    return Dataset(
        name,
        names,
        *three,
        declared.inferred,
        tuple(broken),
        skipped_broken=reading.skip_broken,
        test_share=share,
        notes=tuple(notes),
        task=declared.task,
    )


def inspect_listing(listing: Listing, name: str, declared: facts.Declared, reading: Reading) -> Findings:
    """Decode every image once and report what is there, and why `read_listing` would refuse it."""
    broken = list(listing.broken)
    problems = [*_refusal_of(_resolve_classes, listing, declared), *_refusal_of(_require_distinct, listing)]
    cells = (item.label for items in listing.items.values() for item in items)
    labels = names_in(cells, declared.task) | listing.classes
    share = _share(listing, reading)
    splits = [*listing.items, *(["test"] if share and listing.items else [])]
    counts = {split: dict.fromkeys(declared.names or facts.sort_names(labels), 0) for split in splits}
    sizes: Counter[tuple[int, int]] = Counter()
    channels: Counter[int] = Counter()
    persons: set[str] = set()
    with_person = without_person = 0
    with strict_warnings():
        for split, item, decoded in _try_all(listing, declared, reading.rule, share=share):
            if isinstance(decoded, str):
                broken.append(Broken(printable(item.path), decoded))
                continue
            height, width, depth = decoded.sides
            person = decoded.person if item.person is None else item.person
            side = _side(split, share, decoded.digest, person)
            for label in facts.split_cell(item.label)[0] if declared.task == "labels" else (item.label,):
                counts[side][label] = counts[side].get(label, 0) + 1
            sizes[height, width] += 1
            channels[depth] += 1
            with_person, without_person = with_person + (person is not None), without_person + (person is None)
            if person is not None and side == "train":
                persons.add(person)
    if not sum(counts.get("train", {}).values()):
        problems.append("has no readable image in train.")
    if with_person and without_person:
        problems.append(_SOME_PERSONS)
    size, notes = _common_size(sizes, declared.size) if sizes else (None, [])
    return Findings(
        name=name,
        counts=counts,
        sizes=dict(sizes.most_common()),
        size=size,
        channels=dict(channels),
        persons=len(persons) or None,
        problems=tuple(problems),
        broken=tuple(broken),
        notes=(*_share_notes(share), *notes),
    )


def read_unlabelled(
    path: Path, rule: Rule, *, size: tuple[int, int], channels: int, at_a_time: int
) -> Iterator[Unlabelled]:
    """Yield the images of a folder or of one file in batches, with the reason in place of an unreadable file."""
    sides = facts.declare(size=size).size
    assert sides is not None
    root, is_folder = os.path.realpath(path), path.is_dir()
    if is_folder:
        paths = list_images(root)
        reasons = [find_problem(root, name) for name in paths]
        if all(reasons):
            raise Refusal(f"contains no image ({', '.join(SUFFIXES)}), nor do its subfolders.")
    else:  # links are followed here, because the user named this file
        root, name = os.path.split(root)
        paths, reasons = [name], [None]
    listing = Listing(root, {}, frozenset(), root)

    def decode_file(path: str) -> Decoded | str:
        task = Item(path, ""), None
        return _attempt(listing, task, lambda data: decode(data, rule, size=sides, channels=channels, digested=False))

    for start in range(0, len(paths), at_a_time):
        names, problems = paths[start : start + at_a_time], reasons[start : start + at_a_time]
        readable = [number for number, problem in enumerate(problems) if problem is None]
        images = []
        with strict_warnings():
            for number, decoded in zip(
                readable, in_order(decode_file, [names[number] for number in readable]), strict=True
            ):
                if isinstance(decoded, str):
                    problems[number] = decoded
                else:
                    images.append(decoded.picture)
        stacked = np.stack(images) if images else np.empty((0, *sides, channels), np.uint8)
        yield Unlabelled([printable(name) for name in names], problems, stacked, len(paths))


@dataclass
class _Part:
    """The images of one split while they are read; the array `images` may be longer than needed."""

    images: np.ndarray
    items: list[Item] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    persons: list[str | None] = field(default_factory=list)

    def add(self, item: Item, decoded: Decoded, person: str | None) -> None:
        self.images[len(self.items)] = decoded.picture
        self.items.append(item)
        self.digests.append(decoded.digest)
        self.persons.append(person)


def _decode_all(
    listing: Listing,
    declared: facts.Declared,
    rule: Rule,
    *,
    share: float | None,
    destination: Destination,
    progress: Progress | None,
) -> tuple[dict[str, _Part], list[Broken], list[str]]:
    """Return the images by split, the broken files, and notes."""
    # Reading continues after a broken file, since the message states the number of all broken files.
    broken = list(listing.broken)
    decoding = _Decoding.begin(listing, declared, rule, image_cache.name_of(listing, declared, rule))
    total, shape = decoding.readable, decoding.shape
    # Which images are set aside is known only when they are decoded, so a store needs space for all in both splits.
    places = 2 if share and destination.copies else 1
    destination.require(math.prod((places * total, *shape)))
    parts: dict[str, _Part] = {}
    for done, (split, item, decoded) in enumerate(decoding.run(), 1):
        if isinstance(decoded, str):
            broken.append(Broken(printable(item.path), decoded))
        else:
            person = decoded.person if item.person is None else item.person
            side = _side(split, share, decoded.digest, person)
            if side not in parts:
                count = len(listing.items[split])
                out = destination.create(f"{side}_images", shape=(count, *shape), dtype=np.dtype(np.uint8))
                parts[side] = _Part(out)
            parts[side].add(item, decoded, person)
        if progress is not None:
            progress(done, total + len(decoding.unreadable))
    for side, part in parts.items():
        if len(part.items) < len(part.images):
            part.images = destination.truncate(f"{side}_images", count=len(part.items), array=part.images)
    return parts, broken, [*_share_notes(share), *decoding.notes]


def _try_all(
    listing: Listing, declared: facts.Declared, rule: Rule, *, share: float | None
) -> Iterator[tuple[str, Item, Decoded | str]]:
    """Decode every image, and store the images of a large listing, so that `load` need not decode them again."""
    name = image_cache.name_of(listing, declared, rule)
    if name is not None:
        yield from _Decoding.begin(listing, declared, rule, name).run()
        return

    def try_to_decode(data: bytes) -> Decoded:
        return decode(data, rule, size=None, channels=None, digested=bool(share))

    def decode_only(task: _Task) -> Decoded | str:
        return _attempt(listing, task, try_to_decode)

    for split, items in listing.items.items():
        for item, decoded in zip(items, in_order(decode_only, _tasks(listing, split)), strict=True):
            yield split, item, decoded


@dataclass
class _Decoding:
    """All images of a listing with one size and number of channels, read from the cache or decoded."""

    listing: Listing
    rule: Rule
    declared: facts.Declared
    name: str | None
    """The name in the cache of images; None if they are not to be stored."""
    stored: image_cache.Stored | None
    shape: Sides
    notes: list[str]
    unreadable: dict[int, str]
    """The reasons of files whose headers are broken, by their number in the listing."""

    @property
    def readable(self) -> int:
        """The number of images that are to be decoded."""
        return sum(map(len, self.listing.items.values())) - len(self.unreadable)

    @staticmethod
    def begin(listing: Listing, declared: facts.Declared, rule: Rule, name: str | None) -> _Decoding:
        """Find the size and channels, which are 0 if no file is readable."""
        stored = None if name is None else image_cache.read(name)
        if stored is not None:
            known = [sides for n, sides in enumerate(map(tuple, stored.sides.tolist())) if n not in stored.reasons]
            _, height, width, depth = stored.images.shape
            _, notes = _common_size(Counter((h, w) for h, w, _ in known), declared.size)
            return _Decoding(listing, rule, declared, name, stored, (height, width, depth), notes, stored.reasons)
        measured = _measure_all(listing, rule, declared)
        known = [sides for sides in measured if not isinstance(sides, str)]
        unreadable = {number: sides for number, sides in enumerate(measured) if isinstance(sides, str)}
        if not known:
            return _Decoding(listing, rule, declared, None, None, (0, 0, 0), [], unreadable)
        (height, width), notes = _common_size(Counter((h, w) for h, w, _ in known), declared.size)
        # Images stay grey only if all of them are.
        depth = declared.channels or max(depth for _, _, depth in known)
        return _Decoding(listing, rule, declared, name, None, (height, width, depth), notes, unreadable)

    def run(self) -> Iterator[tuple[str, Item, Decoded | str]]:
        """Yield every item in order, with its split, and its image or the reason why it is broken."""
        everything = [(split, item) for split, items in self.listing.items.items() for item in items]
        if self.stored is not None:
            for number, (split, item) in enumerate(everything):
                yield split, item, self.stored.outcome(number)
            return
        height, width, depth = self.shape

        def decode_item(task: tuple[int, _Task]) -> Decoded | str:
            if task[0] in self.unreadable:
                return self.unreadable[task[0]]
            return _attempt(
                self.listing, task[1], lambda data: decode(data, self.rule, size=(height, width), channels=depth)
            )

        tasks = enumerate(task for split in self.listing.items for task in _tasks(self.listing, split))
        writer = None if self.name is None else image_cache.Writer(self.name, (len(everything), *self.shape))
        try:
            for (split, item), decoded in zip(everything, in_order(decode_item, tasks), strict=True):
                if writer is not None:
                    writer.add(decoded)
                yield split, item, decoded
            if writer is not None and image_cache.name_of(self.listing, self.declared, self.rule) == self.name:
                writer.finish()
        finally:
            if writer is not None:
                writer.discard()


def _measure_all(listing: Listing, rule: Rule, declared: facts.Declared) -> list[Sides | str]:
    """Return the sides of every file from its header alone, or the reason why it is broken.

    If size and channels are declared, nothing is opened.
    """
    count = sum(map(len, listing.items.values()))
    if declared.size is not None and declared.channels is not None:
        return [(*declared.size, declared.channels)] * count

    def measure_item(task: _Task) -> Sides | str:
        if listing.contents is not None:
            return _attempt(listing, task, lambda data: measure(io.BytesIO(data), len(data), rule))
        try:
            with open_inside(listing.root, task[0].path) as file:
                return measure(file, file_length(file), rule)
        except (Refusal, OSError) as exc:
            return _reason(exc)

    return list(in_order(measure_item, (task for split in listing.items for task in _tasks(listing, split))))


def _tasks(listing: Listing, split: str) -> Iterator[_Task]:
    """Yield the items of a split with their bytes, or with None if each item is a separate file."""
    contents = repeat(None) if listing.contents is None else listing.contents(split)
    yield from zip(listing.items[split], contents, strict=False)


def _attempt(listing: Listing, task: _Task, work: Callable[[bytes], Output]) -> Output | str:
    """Do something with the bytes of an item, or return why it is broken."""
    item, data = task
    try:
        if listing.contents is None:
            with open_inside(listing.root, item.path) as file:
                data = read_file(file)
        elif data is None:
            raise Refusal("has no image. Fix: remove the row, or store the bytes of its image in the table.")
        return work(data)
    except (Refusal, OSError) as exc:
        return _reason(exc)


def _reason(exc: Exception) -> str:
    text = str(exc) if isinstance(exc, Refusal) else f"cannot be read ({exc})."
    return image_cache.Passing(text) if isinstance(exc, PassingRefusal | OSError) else text


def _share(listing: Listing, reading: Reading) -> float | None:
    """Return the share to set aside, or None if the source names its splits."""
    if listing.share is None:
        return None
    return listing.share if reading.test_share is None else float(reading.test_share)


def _side(split: str, share: float | None, digest: bytes, person: str | None) -> str:
    return "test" if share and is_test(share, digest=digest, person=person) else split


def _share_notes(share: float | None) -> list[str]:
    if not share:
        return []
    return [
        f"the data has no split: {share:g} of it is set aside as the test split, by person if persons are known "
        "(--test-share)."
    ]


_SOME_PERSONS = (
    "has images with a person and images without one. Fix: name a person for every image (in a DICOM file, PatientID), "
    "or for none."
)


def _index_persons(parts: dict[str, _Part]) -> dict[str, np.ndarray]:
    """Return indices in the sorted order of the ids, which stay in a list: in an array, one long id would widen all."""
    known = [person for part in parts.values() for person in part.persons if person is not None]
    if not known:
        return {}
    if len(known) < sum(len(part.persons) for part in parts.values()):
        raise Refusal(_SOME_PERSONS)
    numbers = {person: number for number, person in enumerate(sorted(set(known)))}
    return {
        split: np.array([numbers[person] for person in part.persons if person is not None], dtype=np.int64)
        for split, part in parts.items()
    }


def _resolve_classes(listing: Listing, declared: facts.Declared) -> tuple[str, ...]:
    """Return the classes, or refuse a label of any split that is not among them."""
    names = facts.resolve_named(listing.classes, declared)
    known = set(names)
    for split in SPLITS:
        for name in sorted(names_in((item.label for item in listing.items.get(split, ())), declared.task) - known):
            raise Refusal(f"in {split}, {facts.describe_unknown(name, names, numbered=declared.numbered)}")
    return names


def _require_distinct(listing: Listing) -> None:
    """Refuse one file under two names, by a symbolic or a hard link: two records, perhaps of two persons."""
    if listing.contents is not None:
        return
    seen: dict[tuple[int, int], str] = {}
    for items in listing.items.values():
        for item in items:
            try:
                status = os.stat(resolve_inside(listing.root, item.path))
            except (Refusal, OSError, ValueError):
                continue  # reported with the other broken files
            first = seen.setdefault((status.st_dev, status.st_ino), item.path)
            if first != item.path:
                raise Refusal(
                    f"has one file under two names: {printable(item.path)} is a link to the same image as "
                    f"{printable(first)}. Fix: list every image once, under the person whose image it is."
                )


def _common_size(
    sizes: Counter[tuple[int, int]], declared: tuple[int, int] | None
) -> tuple[tuple[int, int], list[str]]:
    """Return the declared size, else the size of all images, else the public constant; and a note about the latter."""
    if declared is not None:
        return declared, []
    if len(sizes) == 1:
        return next(iter(sizes)), []
    height, width = facts.MIXED_SIZE
    return facts.MIXED_SIZE, [
        f"the images have several sizes: all become {height}x{width}, a default that does not depend on them, by "
        "resizing the short side and cropping the centre (--size)."
    ]


def _refusal_of(function: Callable[..., object], *arguments: object) -> list[str]:
    """Return the message with which a function refuses its arguments, if it does."""
    try:
        function(*arguments)
    except Refusal as exc:
        return [str(exc)]
    return []


def _refuse_broken(source: Path, folder: Path, broken: list[Broken]) -> None:
    """Refuse with the first broken file, the number of broken files, and two ways to continue."""
    count = "It is the only broken file" if len(broken) == 1 else f"{len(broken):,} files are broken"
    raise DataError(
        f"{printable(folder / broken[0].path)}: {broken[0].reason} {count}. "
        f"Fix: list all with `dpvision check {printable(source)}`, or leave them out with --skip-broken."
    )
