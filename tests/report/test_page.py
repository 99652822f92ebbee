"""Pages of any report: text that stays text, colours that stand out, markdown, and panels drawn as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from commlib.report.formats import escaped
from commlib.report.html import html
from commlib.report.page import Code, Grid, Picture, Points, Section, Text, markdown
from commlib.report.plot import Line, Panel
from commlib.report.svg import svg
from commlib.report.table import Column

EVIL = "<script>alert(1)</script>|`*_[a](javascript:b)"


@pytest.mark.parametrize("text", ["``<b>`", "`<b>``", "`a\n<b>`", "\\<b>", "`` `<b>"])
def test_backticks_that_are_no_pair_hide_nothing(text: str) -> None:
    assert re.search(r"(?<!\\)(?:\\\\)*\\<b>", escaped(text))


def test_markdown_has_every_block_but_what_is_shown_on_demand() -> None:
    columns = [Column("a", str), Column("b", lambda item: EVIL)]
    blocks = [
        Text("A *text* with `code_of it`."),
        Points(["one", "two"], "Told"),
        Code(["commlib doctor"]),
        Grid("Table", columns, [1, 2]),
        Grid("Folded", columns, [1]),
        Picture("Drawn", []),
    ]
    blocks[4] = Grid("Folded", columns, [1], folded=True)
    text = markdown(Section("name", "Title_of", blocks))
    assert text.startswith("# Title\\_of\n\nA \\*text\\* with `code_of it`.\n\n**Told**\n\n- one\n- two\n\n```text\n")
    assert "| 1 | \\<script>" in text and "Folded" not in text
    assert "<details><summary>Folded" in html("t", "", [Section("name", "Title", blocks)])


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 0.0], [0.001, 900.0]])
def test_axes_of_few_or_equal_values_are_drawn(values: list[float]) -> None:
    panel = Panel("", lines=[Line(None, [1, 2], values)], y_range=(0, None))
    assert "nan" not in svg(panel, "p") and ElementTree.fromstring(svg(panel, "p")) is not None
