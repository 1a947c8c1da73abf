"""Turns a matplotlib figure into an inline SVG that follows the page: its fonts, its colours, light or dark.

Figures are drawn in the stand-in colours below; each becomes a CSS variable of the page. Everything that would make the
picture differ from one writing to the next (dates, random ids), or that names another host, is left out.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, LINE, FIRST, SECOND, THIRD, SHEET = (f"#{str(i) * 6}" for i in range(1, 8))
_VARIABLES = {
    INK: "--ink",
    SOFT: "--soft",
    LINE: "--line",
    FIRST: "--first",
    SECOND: "--second",
    THIRD: "--third",
    SHEET: "--sheet",
}


@contextmanager
def style(name: str) -> Iterator[None]:
    """matplotlib's own defaults, whatever the user has set, and ours on top; `name` keeps the ids of pictures apart."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": name,
                "svg.fonttype": "none",  # text stays text: small, sharp, and readable by machines
                "text.parse_math": False,
                "font.size": 10,
                "axes.labelsize": 10,
                "text.color": INK,
                "axes.labelcolor": SOFT,
                "axes.edgecolor": LINE,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": LINE,
                "grid.linewidth": 0.6,
                "xtick.color": LINE,
                "ytick.color": LINE,
                "xtick.labelcolor": SOFT,
                "ytick.labelcolor": SOFT,
                "xtick.major.size": 3,
                "ytick.major.size": 0,
                "xtick.minor.visible": False,
                "ytick.minor.visible": False,
                "lines.linewidth": 2,
                "legend.frameon": False,
                "legend.fontsize": 9.5,
            }
        )
        yield


def inline(figure: Figure, *, label: str) -> str:
    """The figure as an <svg> element with `label` as its text alternative."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(file.getvalue())  # our own drawing: no untrusted XML comes here
    _clean(root)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-label": label})
    text = ET.tostring(root, encoding="unicode", short_empty_elements=False)
    return re.sub(r">\s+<", "><", text)


def _clean(root: ET.Element) -> None:
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style", "title"):
                parent.remove(child)
    used = set(re.findall(r"#([\w-]+)", " ".join(v for e in root.iter() for v in e.attrib.values())))
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): _themed(value) for key, value in element.attrib.items()}
        if element.get("id") not in used:
            element.attrib.pop("id", None)


def _local(name: str) -> str:
    """A name without its namespace: inside HTML, SVG needs none."""
    return name.rpartition("}")[2]


def _themed(value: str) -> str:
    for stand_in, variable in _VARIABLES.items():
        value = value.replace(stand_in, f"var({variable})")
    # The page's own font, at the size that the figure asks for.
    value = re.sub(r"font: (?:[\w-]+ )*?([\d.]+)px [^;]*", r"font-size: \1px", value)
    return re.sub(r"font-family: [^;]*;? ?", "", value)
