"""The written files: whole, readable offline, safe whatever the classes are called, and silent about the operator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folder import CHARGE_ID, DATA, EVENTS, FINGERPRINT, NAME, TRUE_BATCH, account, card_of, make, released

from dpvision.core import accountant, adaptive
from dpvision.core.events import PoissonGaussian, Tuned, from_json
from dpvision.released.report import guarantee, sentence, tables, write
from dpvision.storage.run_folder import Run

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "$\\frac{1}{",
    "a|b`c``d",
    "[x](javascript:alert(1))",
    "\u202egnp\x1b[31m\ud800",
    "",
]
FILES = {"card.json", "card.md", "report.html", "ledger.jsonl"}


class Page(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_all_files_are_written_for_anyone_to_read(private_run: Run) -> None:
    assert all((private_run.folder / name).stat().st_mode & 0o777 == 0o644 for name in FILES)
    assert set(released(private_run)) == {*FILES, "config.toml", "metrics.jsonl", "weights.safetensors"}


def test_same_run_same_bytes(private_run: Run) -> None:
    before = released(private_run)
    assert {p.name for p in write(private_run, account(*EVENTS))} == FILES
    assert released(private_run) == before


@pytest.mark.parametrize("private", [True, False])
def test_every_page_opens_with_its_status(private_run: Run, fixed_key_run: Run, private: bool) -> None:
    run = private_run if private else fixed_key_run
    texts = released(run)
    for name in ("card.json", "card.md", "report.html"):
        assert ("NOT PRIVATE" in texts[name]) is not private, name
    text = sentence(card_of(run))
    assert text in texts["card.md"]
    assert text.replace("'", "&#39;") in texts["report.html"]
    assert ('class="banner"' in texts["report.html"]) is not private


def test_nothing_of_the_operators_folder_is_released(private_run: Run, fixed_key_run: Run) -> None:
    for name, text in [*released(private_run).items(), *released(fixed_key_run).items()]:
        for secret in (FINGERPRINT[:16], "ward-7", DATA, str(TRUE_BATCH), CHARGE_ID[:16], "mean_loss", "clipped"):
            assert secret not in text, (name, secret)


def test_hostile_names_are_text(tmp_path: Path) -> None:
    run = make(tmp_path / "run", class_names=HOSTILE, run=HOSTILE[0], config={"classes": (*HOSTILE[:6],)})
    write(run, account(run=HOSTILE[0]))
    texts = released(run)
    page = Page(texts["report.html"])
    assert page.open == []
    assert not {"script", "img", "link", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in texts["report.html"]
    assert "{{ 7 * 7 }}" in texts["report.html"]
    unescaped = re.sub(r"\\[`|\[\]]", "", texts["card.md"])
    outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", unescaped)
    assert "<" not in outside_code
    assert "](" not in outside_code
    for text in texts["card.md"], texts["report.html"]:
        assert "\u202e" not in text
        assert "\x1b" not in text
    assert card_of(run)["public_facts"]["classes"]["value"] == HOSTILE


def test_page_is_one_file_that_needs_nothing_else(private_run: Run) -> None:
    text = released(private_run)["report.html"]
    assert len(text.encode()) < 400_000
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    for tag, attributes in Page(text).tags:
        assert tag not in ("script", "link", "img")
        for key in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(key) or "#").startswith("#")


def test_pictures_have_text_alternatives_and_follow_the_theme(private_run: Run) -> None:
    text = released(private_run)["report.html"]
    page = Page(text)
    drawn = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawn) == 3
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 40 for a in drawn)
    inside = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.search(r"#[0-9a-f]{6}\b(?!\))", re.sub(r'(?:id|href|clip-path)="[^"]*"', "", inside))
    assert "var(--first)" in inside
    identities = [a["id"] for _, a in page.tags if "id" in a]
    assert len(identities) == len(set(identities))


def test_ledger_lines_compose(private_run: Run) -> None:
    lines = [json.loads(line) for line in released(private_run)["ledger.jsonl"].splitlines()]
    assert [set(line) for line in lines] == [{"time", "run", "event", "epsilon", "private"}] * 3
    assert tuple(from_json(line["event"]) for line in lines) == EVENTS
    assert [line["run"] for line in lines] == [NAME, "other1", "other2"]
    for count, line in enumerate(lines, 1):
        assert line["epsilon"] == accountant.epsilon(adaptive.compose(EVENTS[:count], 1e-5), 1e-5)
    for page in ("card.md", "report.html"):
        assert all(line["run"] in released(private_run)[page] for line in lines)
    assert lines[-1]["epsilon"] == card_of(private_run)["data_set"]["epsilon_spent"]


def test_times_around_a_tuning_are_dates(tmp_path: Path) -> None:
    """The time from the charge of a tuning to the next entry bounds how long it took, and so the number of trials."""
    tuning = Tuned((EVENTS[0], EVENTS[2]), eta=1.0, gamma=0.1, epsilon=2.0, delta=5e-6)
    run = make(tmp_path / "run")
    for events in (EVENTS[:2], (EVENTS[0], tuning, EVENTS[2]), (EVENTS[0], EVENTS[2], tuning)):
        book, times = account(*events), ["2026-11-15T21:59:00+00:00", "2026-11-15T22:09:00+00:00"]
        book = replace(book, budgets=tuple((time, book.budget) for time in times))
        tuned, lines, changes = tuning in events, guarantee.ledger_lines(book), guarantee.budget_changes(book)
        assert len(lines) == len(events) and len(changes) == 1
        assert {len(line["time"]) for line in (*lines, *changes)} == {10 if tuned else 25}
        write(run, book)
        exact = {name for name, text in released(run).items() if re.search(r"2026-11-15T|2[12]:[05]\d", text)}
        assert (exact == set()) if tuned else (exact >= {"ledger.jsonl", "card.json"}), exact


def test_a_long_ledger_is_cut_on_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_CHARGES", 1)
    run = make(tmp_path / "run")
    write(run, account(*EVENTS))
    texts = released(run)
    assert len(texts["ledger.jsonl"].splitlines()) == 3
    for page in ("card.md", "report.html"):
        assert "2 earlier charges are in ledger.jsonl" in texts[page]
        assert "other1" not in texts[page]
        assert "other2" in texts[page]


def test_a_long_list_of_classes_is_cut_on_pages_only(tmp_path: Path) -> None:
    many = [f"class {i} " + "x" * 100 for i in range(5000)]
    run = make(tmp_path / "run", class_names=many, config={"classes": tuple(many)})
    write(run, account())
    assert len(released(run)["report.html"]) < 400_000
    assert "4960 more" in released(run)["report.html"]
    assert card_of(run)["public_facts"]["classes"]["value"] == many


def test_importing_is_cheap() -> None:
    code = (
        "import sys, dpvision.released.report; "
        "print([m for m in ('torch', 'matplotlib', 'jinja2', 'dp_accounting') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_writing_without_a_ledger_loads_no_torch(tmp_path: Path) -> None:
    # A rate at which dp-accounting may log Rényi orders that it leaves out; a reader of stderr should not see them.
    run = make(tmp_path / "run", event=PoissonGaussian(rate=0.4996, sigma=7.05, steps=100))
    code = (
        "import sys; from pathlib import Path; from dpvision.released.report import write; from dpvision.storage.run_folder import Run; "
        "write(Run(Path(sys.argv[1])), None); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, run.folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert done.stderr == ""
    assert set(released(run)) == {*FILES - {"ledger.jsonl"}, "config.toml", "metrics.jsonl", "weights.safetensors"}
