"""Pages of any report: text that stays text, colours that stand out, markdown, and panels drawn as SVG."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from commlib.report.formats import escaped
from commlib.report.html import html
from commlib.report.page import Code, Grid, Picture, Points, Section, Text, markdown
from commlib.report.plot import MARKERS, Line, Panel, Tile, look
from commlib.report.progress import line, remaining_s
from commlib.report.svg import SHAPES, legend, svg
from commlib.report.table import Column

ROOT = Path(__file__).resolve().parents[2]
EVIL = "<script>alert(1)</script>|`*_[a](javascript:b)"


@pytest.mark.parametrize("text", ["``<b>`", "`<b>``", "`a\n<b>`", "\\<b>", "`` `<b>"])
def test_backticks_that_are_no_pair_hide_nothing(text: str) -> None:
    assert re.search(r"(?<!\\)(?:\\\\)*\\<b>", escaped(text))


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast of two colours such as #123 or #112233."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
        parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_text_and_lines_stands_out_in_both_schemes() -> None:
    style = (ROOT / "commlib/report/page.css").read_text(encoding="utf-8")
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#\w+)", scheme))
        for name, colour in colours.items():
            if name not in ("paper", "band", "edge"):
                assert min(contrast(colour, colours[back]) for back in ("paper", "band")) >= 4.5, name


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


def test_a_panel_is_drawn_inside_its_frame_and_says_what_it_shows() -> None:
    lines = [Line(f"way {at}", [8, 64, 4096], [1.0, 10.0 * at + 1, 1e5], look(at)) for at in range(len(MARKERS))]
    panel = Panel("a & b", "n", "µs", lines, ticks={8: "8", 4096: "4K"}, log_y=True, limits=[(2e5, "limit")])
    root = ElementTree.fromstring(svg(panel, "p"))
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    paths = [each.get("d") or "" for each in root.iter("path") if "line" in (each.get("class") or "")]
    assert len(paths) == len(lines)
    points = [tuple(map(float, pair)) for path in paths for pair in re.findall(r"([-\d.]+) ([-\d.]+)", path)]
    assert len(points) == 3 * len(lines)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    (described,) = root.iter("desc")
    assert (described.text or "").startswith("way 0: 1.00 at 8, 100000 at 4096; ")
    assert "limit 200000" in (described.text or "")
    marks = [each.get("d") or "" for each in root.iter("path") if re.match("mark|dot", each.get("class") or "")]
    assert [mark.count("M") for mark in marks] == len(lines) * [3]


@pytest.mark.parametrize("count", [1, 5, 21, 40, 60])
def test_tiles_fill_a_strip_and_their_texts_stand_upright_where_they_are_narrow_and_do_not_touch(count: int) -> None:
    looks = ("level", "mark c1")
    tiles = [Tile(("level", "a<b")[at > 3], looks[at > 3], "12.3", f"{at}K") for at in range(count)]
    panel = Panel("all_reduce", xlabel="way to 4K, then way " * 9, tiles=tiles)
    root = ElementTree.fromstring(svg(panel, "p"))
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    rects = [{key: float(each.get(key) or 0) for key in ("x", "y", "width", "height")} for each in root.iter("rect")]
    assert len(rects) == count
    assert all(a["x"] + a["width"] <= b["x"] <= a["x"] + a["width"] + 2 for a, b in pairwise(rects))
    assert rects[0]["x"] <= 1 and rects[-1]["x"] + rects[-1]["width"] >= width - 1
    texts = [each for each in root.iter("text") if each.get("class") == "on"]
    assert {each.text for each in texts} <= {"12.3"}
    assert all(("rotate" in (each.get("transform") or "")) == (rects[0]["width"] < 26) for each in texts)
    places = [float(re.findall(r"[\d.]+", each.get("transform") or "")[0]) for each in texts]
    assert len(texts) == {40: 20, 60: 0}.get(count, count) and all(b - a > 11 for a, b in pairwise(places))
    lowest = max(float(each.get("y") or 0) for each in root.iter("text"))
    assert lowest <= height
    assert "".join(root.itertext()).count("then way") == 18  # drawn in lines, and in the title
    assert [name for name in ("level", "a&lt;b") if name in legend([panel])] == ["level", "a&lt;b"][: 1 + (count > 4)]
    (described,) = root.iter("desc")
    assert (described.text or "").startswith("0K: level 12.3")


def test_what_is_written_below_an_axis_does_not_cover_what_stands_beside_it() -> None:
    ticks = {float(1 << at): str(1 << at) for at in range(15)}
    panel = Panel("", lines=[Line(None, list(ticks), [1.0] * 15)], ticks=ticks)
    root = ElementTree.fromstring(svg(panel, "p"))
    _, below = root.iter("g")
    ends = [(float(each.get("x") or 0), 3.1 * len(each.text or "")) for each in below]
    assert 5 < len(ends) < 15
    assert all(a + half <= b - other for (a, half), (b, other) in pairwise(ends))


def test_every_marker_but_the_round_ones_has_a_shape_of_its_own() -> None:
    assert set(MARKERS) - set(SHAPES) == {"o", "h", "8"}
    assert len(set(SHAPES.values())) == len(SHAPES)


def test_bars_are_as_long_as_their_values_and_named() -> None:
    root = ElementTree.fromstring(svg(Panel("case", "µs", bars={"a long name  1.00": 1.0, "b  4.00": 4.0}), "p"))
    one, two = (float(each.get("width") or 0) for each in root.iter("rect"))
    texts = [each.text for each in root.iter("text")]
    assert two == pytest.approx(4 * one, rel=0.01)
    assert texts[-2:] == ["a long name  1.00", "b  4.00"]


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 0.0], [0.001, 900.0]])
def test_axes_of_few_or_equal_values_are_drawn(values: list[float]) -> None:
    panel = Panel("", lines=[Line(None, [1, 2], values)], y_range=(0, None))
    assert "nan" not in svg(panel, "p") and ElementTree.fromstring(svg(panel, "p")) is not None


def test_the_time_that_is_left_follows_what_parts_are_said_to_take_and_took() -> None:
    assert remaining_s([10, 20, 30], (0, 0.0), 4.0) == 56.0
    assert remaining_s([10, 20, 30], (1, 5.0), 8.0) == 7.0 + 15.0  # twice as fast as said
    assert remaining_s([10, 20, 30], (2, 30.0), 90.0) == 0.0
    assert line(1, 3, "store", 8.0, 80, 22.0).endswith("1/3 0:08, 0:22 left  store")
