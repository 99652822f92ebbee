"""The pages of `commlib report`: what stands in them, that it is text, and that everybody can read it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from commlib.cli.report.folder import FAILED
from commlib.cli.report.pages import write_pages
from commlib.report.formats import CODE
from tests.cli.bench_documents import document
from tests.cli.report_folders import EVIL, RADIX, doctor, ended, finding, kept


class Reader(HTMLParser):
    """Collects the tags of a page, and refuses one that is not closed in order."""

    OPTIONAL = frozenset({"td"})  # ends where the next cell or the line does
    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open[-1] in self.OPTIONAL and self._open[-1] != tag:
            self._open.pop()
        assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def page(tmp_path: Path) -> str:
    """A page of documents that say evil things."""
    evil = document("all_reduce", "barrier", notes=[EVIL], ended=EVIL, complete=False)
    evil["fingerprint"]["cpu"] = EVIL
    found = [finding(EVIL, "warning", EVIL, EVIL), finding("python", "broken", "gone")]
    found.append(finding("last failure", "warning", "a job"))
    folder = kept(tmp_path, environment=doctor(*found, runs=False), collectives=evil)
    folder.keep("index", ended("index", FAILED, -9, EVIL), None)
    write_pages(folder)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_summary_says_first_what_is_wrong(page: str, tmp_path: Path) -> None:
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    said = (
        "Stage index failed (exit code -9)",
        "Not measured: correctness, store, metadata, radix, attention, prefill, comm, paths, plan.",
        "python (broken): gone",
        "will not run before what is broken or missing is put right",
    )
    places = [text.index(each) for each in said]
    assert places == sorted(places)
    assert "last failure" not in text
    assert page.index("Stage index failed") < page.index("What it reaches of its limits")


def test_stages_of_different_machines_are_told_apart(tmp_path: Path) -> None:
    one, other = document("all_reduce"), dict(RADIX)
    other["fingerprint"] = {**one["fingerprint"], "device": "A CPU", "torch": "2.11.0"}
    write_pages(kept(tmp_path, collectives=one, radix=other))
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "were not measured on one machine with one software: torch 2.11.0 and 2.13.0." in text


@pytest.mark.parametrize(
    ("fits", "slower", "said"),
    [
        (False, 1.0, "Plan to use: `commlib tune -n 2` measures one; the one in force was not measured on a machine"),
        (
            True,
            1.0,
            "Plan to use: the one in force. At the sizes of this run, nothing of commlib was more than 10% faster",
        ),
        (
            True,
            5.0,
            "Plan to use: `commlib tune -n 2` measures one anew; in this run, something was more than 10% faster",
        ),
    ],
)
def test_the_plan_to_use_follows_from_its_fit_and_what_was_faster(
    tmp_path: Path, fits: bool, slower: float, said: str
) -> None:
    bench = document("broadcast")
    for row in bench["rows"]:
        if row.get("chosen"):
            row["time_us"] = {name: slower * value for name, value in row["time_us"].items()}
    fit = {"score": 2, "total": 2, "differences": [] if fits else ["cpu"], "said": "measured somewhere"}
    shown = {"schema": "commlib.plan.shown", "version": 1, "source": "x.json", "digest": "0123456789ab", "world": 2}
    write_pages(kept(tmp_path, collectives=bench, plan={**shown, "fit": fit, "pinned": {}, "rows": []}))
    assert said in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_what_comes_from_outside_is_text_in_every_page(page: str, tmp_path: Path) -> None:
    assert len(Reader(page).all("script")) == 1
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for name in ("summary", "environment", "collectives"):
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        text = re.sub(CODE, "", text)
        assert "](javascript" not in text
        assert re.search(r"(?<!\\)<script", text) is None


def test_a_page_fetches_nothing_and_names_each_place_once(page: str) -> None:
    read = Reader(page)
    for tag, attributes in read.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in page and "@import" not in page and "fetch(" not in page
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    linked = {attributes["href"] for attributes in read.all("a")}
    assert {link.removeprefix("#") for link in linked if link} <= set(ids)


def test_a_page_is_read_without_a_mouse_or_a_screen(page: str) -> None:
    read = Reader(page)
    tables = read.all("table")
    assert tables and len(read.all("caption")) == len(tables)
    assert all(head.get("scope") in ("col", "row") for head in read.all("th"))
    assert len(read.all("html")[0]["lang"] or "") == 2
    pictures = [each for each in read.all("svg") if each.get("role") == "img"]
    assert pictures and len(read.all("desc")) == len(pictures) == len(read.all("title")) - 1
    assert all(each.get("role") == "img" or each.get("aria-hidden") == "true" for each in read.all("svg"))
    for said in ("prefers-color-scheme: dark", "prefers-reduced-motion", ":focus-visible", "aria-sort"):
        assert said in page
