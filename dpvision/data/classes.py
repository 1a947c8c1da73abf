"""The classes: declared by the user, because they are public, or read off the training data and recorded as such.

A declared number k stands for the names "0" to "k-1". Sources with numbered labels (.npz) use the number as the
index. Sources with named labels (folders, CSV) look the name up; with a declared number their names must therefore
be numbers below k. Names that are read off the data are sorted, as numbers if all of them are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpvision.data import limits
from dpvision.data.refusal import Refusal, shown

Classes = int | Sequence[str] | None
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def declared_names(classes: Classes) -> tuple[str, ...] | None:
    """The names that were declared, or None where they are to be read off the data."""
    if classes is None:
        return None
    if isinstance(classes, int):
        if not 2 <= classes <= limits.CLASSES:
            raise Refusal(f"can not have {classes} classes: 2 to {limits.CLASSES:,} are possible.")
        return tuple(str(number) for number in range(classes))
    names = tuple(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in names):
        raise Refusal(f"can not have the classes {classes!r}. Fix: give their number or a list of names.")
    check_names(names)
    return names


def check_names(names: Sequence[str]) -> None:
    if not 2 <= len(names) <= limits.CLASSES:
        only = f" ({shown(names[0])!r})" if names else ""
        raise Refusal(f"has {len(names):,} classes{only}: 2 to {limits.CLASSES:,} are possible.")
    if len(set(names)) != len(names):
        raise Refusal("has two classes of the same name.")
    for name in names:
        check_name(name)


def check_name(name: str) -> None:
    if not name.strip() or len(name) > limits.CLASS_NAME_CHARACTERS or not name.isprintable():
        raise Refusal(f"has a class named {shown(name)!r}. Fix: use a short name without control characters.")


def name_numbered(labels: Mapping[str, np.ndarray], declared: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names for labels that are numbers, after every label was found to be one of them."""
    lowest = min(int(array.min()) for array in labels.values())
    if lowest < 0:
        raise Refusal(f"has the label {lowest}. Fix: number the classes from 0.")
    if declared is None:
        count = int(labels["train"].max()) + 1
        if not 2 <= count <= limits.CLASSES:
            raise Refusal(
                f"has labels up to {count - 1}: 2 to {limits.CLASSES:,} classes are possible, numbered from 0."
            )
        declared = tuple(str(number) for number in range(count))
    for split, array in labels.items():
        if int(array.max()) >= len(declared):
            raise Refusal(
                f"has the label {int(array.max())} in {split}, but the classes are 0 to {len(declared) - 1}. "
                "Fix: correct the label or declare more classes."
            )
    return declared


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted names; as numbers if all are, so that class "10" comes after class "9"."""
    listed = list(names)
    if all(_NUMBER.fullmatch(name) for name in listed):
        return tuple(sorted(listed, key=int))
    return tuple(sorted(listed))


def settle_names(found: Iterable[str], declared: tuple[str, ...] | None, *, numbered: bool) -> tuple[str, ...]:
    """The classes of a source with named labels; `found` are the names in its training data.

    `numbered` says that a number of classes was declared, which changes only the advice.
    """
    names = sort_names(found)
    if declared is None:
        check_names(names)
        return names
    strange = sorted(set(names) - set(declared))
    if strange:
        raise Refusal(unknown_name(strange[0], declared, numbered=numbered))
    return declared


def unknown_name(name: str, names: Sequence[str], *, numbered: bool = False) -> str:
    few = ", ".join(shown(known) for known in names[:10]) + (", ..." if len(names) > 10 else "")
    fix = "declare the names of the classes instead of their number" if numbered else "correct the label or declare it"
    return f"has the class {shown(name)!r}, which is none of: {few}. Fix: {fix}."


def match_stored(stored: tuple[str, ...], declared: tuple[str, ...] | None, *, numbered: bool) -> bool:
    """Whether the names of a finished data set were declared now; a declaration must agree with them.

    A number agrees with as many names, but declares none but "0" to "k-1": others stay what they were.
    """
    if declared is None:
        return False
    if declared != stored and not (numbered and len(declared) == len(stored)):
        raise Refusal(unknown_name(next((n for n in stored if n not in declared), stored[0]), declared))
    return declared == stored
