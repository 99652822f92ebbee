"""The page "which library at which size": who is the fastest, what is level, what is missing, and that all is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from commlib.bench.which import page
from commlib.cli.bench.show import show
from tests.cli.bench_documents import document, saved, times

ROOT = Path(__file__).resolve().parents[2]
Tiles = list[tuple[str, str, str]]  # size, who is the fastest, ratio


class Read(HTMLParser):
    """What a browser would show: text, and whether every element is closed in its turn."""

    VOID = ("meta", "rect", "path", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:  # HTML needs no </td>
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(found: dict[str, Any]) -> str:
    """Return the words of a page, after a look at its structure."""
    read = Read(page(found))
    assert read.open == []
    return " ".join(" ".join(read.texts).split())


def tiles(found: dict[str, Any]) -> list[Tiles]:
    """Return the tiles of each strip, as they are described to who cannot see them."""
    said = re.findall(r"<desc[^>]*>(.*?)</desc>", page(found))
    return [[re.fullmatch(r"(.*?): (.*) (\S+)", tile).groups() for tile in strip.split("; ")] for strip in said]


def legend(found: dict[str, Any]) -> list[str]:
    """Return the names below the strips."""
    (listed,) = re.findall(r'<ul class="legend">(.*?)</ul>', page(found))
    return re.findall(r"</svg>(.*?)</li>", listed)


def made(*sizes: int, mpich: float | dict[str, float] = 2.0, **changes: Any) -> dict[str, Any]:
    """Return a document in which commlib's choice takes 1 µs at every size, torch 50, and mpich so long."""
    found = document("all_reduce", sizes=sizes or (8, 64), **changes)
    of = {"mpich": mpich, "torch": 50.0}
    for row in found["rows"]:
        if "skipped" not in row:
            time = of.get(row["algorithm"], 1.0)
            row["time_us"] = times(time) if isinstance(time, float) else time
    return found


@pytest.mark.parametrize(
    ("mpich", "fastest", "ratio"),
    [
        (2.0, "commlib", "2.00"),
        (0.5, "mpich", "0.50"),
        (1.02, "level", "1.02"),
        (1.0, "level", "1.00"),
        # 5 % and more apart, but the blocks of the two overlap.
        ({**times(1.1), "p10": 1.02}, "unclear", "1.10"),
        ({**times(0.9), "p90": 0.99}, "unclear", "0.90"),
        ({**times(6.0), "p10": 1.0}, "unclear", "~6.00"),
        # Apart though its blocks do not agree with each other.
        ({**times(9.0), "p90": 20.0}, "commlib", "~9.00"),
    ],
)
def test_the_fastest_is_who_is_apart_from_the_other_by_enough_else_they_are_level(
    mpich: float | dict[str, float], fastest: str, ratio: str
) -> None:
    found = made(8, 64, mpich=mpich)
    assert tiles(found) == [[("8", fastest, ratio), ("64", fastest, ratio)]]
    text, nobody = shown(found), ("level", "unclear")
    won = {"commlib": "commlib is the fastest in 2; ", "mpich": "mpich in 2; "}
    assert won.get(fastest, "commlib is the fastest in 0; ") in text
    assert f"; {2 * (fastest == 'level')} level, {2 * (fastest == 'unclear')} unclear." in text
    assert [name for name in legend(found) if name in nobody] == [name for name in nobody if name == fastest]


def test_a_strip_has_each_size_once_in_order_and_says_which_algorithms_of_ours_it_is() -> None:
    found = document("all_reduce", "broadcast")
    found["rows"].reverse()
    strips = tiles(found)
    assert [[size for size, _, _ in strip] for strip in strips] == 2 * [
        ["8", "64", "512", "4K", "32K", "256K", "2M", "16M"]
    ]
    assert shown(found).count("commlib: shm_oneshot to 4K, then shm_twoshot") == 4  # the strip's title and its words


def test_the_table_has_what_the_strip_has_and_every_librarys_time() -> None:
    text = page(made(8, 4096, mpich=0.5))
    lines = re.findall(r"<tr class=warn>(.*?)</tr>", text)
    cells = [re.sub(r"<[^>]*>", "|", line).strip("|").replace("||", "|").split("|") for line in lines]
    assert cells == [[size, "mpich", "0.50", "1.00", "shm_oneshot", "50.00", "0.50"] for size in ("8", "4K")]
    for head in ("size", "fastest", "ratio", "commlib", "by its algorithm", "torch", "mpich"):
        assert f'<th scope="col">{head}' in text


def test_a_library_with_several_ways_has_its_fastest_by_name() -> None:
    found = made(8)
    for row in found["rows"]:
        if not row["ours"]:
            row["library"] = "Both"
    text = shown(found)
    assert "2.00 mpich" in text and "50.00" not in text
    assert tiles(found) == [[("8", "commlib", "2.00")]]


def test_without_another_library_nothing_is_called_the_fastest() -> None:
    found = made(8)
    found["rows"] = [row for row in found["rows"] if row["ours"]]
    found["notes"] = ["skipped: peer newer_nccl: NEWER_NCCL is not set", "sizes are whole elements"]
    text = shown(found)
    assert tiles(found) == [[("8", "no other here", "-")]]
    assert "Nothing can be compared" in text
    assert text.index("skipped: peer newer_nccl: NEWER_NCCL is not set") < text.rindex("How this was measured")


def test_a_library_that_lacks_a_collective_is_left_out_of_it_alone() -> None:
    found = document("all_reduce", "gather")
    found["rows"] = [row for row in found["rows"] if row["ours"] or row["op"] == "all_reduce"]
    first, second = tiles(found)
    assert {name for _, name, _ in first} == {"commlib"}
    assert {name for _, name, _ in second} == {"no other here"}
    assert "Of 8 calls, commlib is the fastest in 8; 0 level" in shown(found)


def test_values_that_are_wrong_are_said_and_win_nothing() -> None:
    found = made(8, mpich=0.5)
    found["out_of_bounds"] = {"count": 7, "okay": False}
    for row in found["rows"]:
        if row["algorithm"] == "mpich" and "skipped" not in row:
            row["wrong"] = 7
    assert tiles(found) == [[("8", "commlib", "50.0")]]
    assert "7 wrong elements in this run." in shown(found)


def test_a_collective_whose_plans_choice_was_not_measured_is_named_and_not_drawn() -> None:
    found = document("all_reduce", "broadcast", complete=False, ended="interrupted")
    for row in found["rows"]:
        row["chosen"] = row["chosen"] and row["op"] == "all_reduce"
    assert len(tiles(found)) == 1
    text = shown(found)
    assert "Not drawn, because the plan's choice was not measured: broadcast, float, root 0." in text
    assert "interrupted: not complete" in text
    assert "Nothing can be compared" in shown(document(rows=[], fits=[]))


def test_a_barrier_has_one_tile_without_a_size() -> None:
    assert tiles(document("barrier", sizes=(0,))) == [[("no data", "commlib", "1.36")]]


def test_names_of_libraries_are_text_wherever_they_come() -> None:
    found = made(8, mpich=0.5)
    evil = "<script>alert(1)</script>"
    for row in found["rows"]:
        if row["algorithm"] == "mpich":
            row |= {"algorithm": evil, "library": evil}
    found["notes"] = [f"skipped: peer {evil}"]
    text = page(found)
    assert evil not in text and text.count("&lt;script&gt;alert(1)") >= 4
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)


def test_show_takes_the_runs_that_have_the_collective() -> None:
    results = str(ROOT / "benchmarks/results/bench_h200.json")
    found = CliRunner().invoke(show, [results, "all_gather", "--format", "csv"])
    assert found.exit_code == 0
    assert {line.split(",")[0] for line in found.output.splitlines() if line} == {"op", "all_gather"}
    assert "there are no rows of nonsense" in str(CliRunner().invoke(show, [results, "nonsense"]).exception)


def test_show_writes_the_form_that_the_name_of_the_file_says(tmp_path: Path) -> None:
    file = saved(tmp_path, made())
    for name, first in (
        ("x.html", "<!doctype html>"),
        ("x.csv", "op,"),
        ("x.osu", "# commlib"),
        ("x.txt", "# commlib"),
    ):
        result = CliRunner().invoke(show, [str(file), "-o", str(tmp_path / name)])
        assert (result.exit_code, result.output) == (0, "")
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(first)
    both = CliRunner().invoke(show, [str(ROOT / "benchmarks/results/bench_h200.json"), "--format", "html"])
    assert both.exit_code == 2
    assert "--format html draws one run, and" in both.output and "name it with --part" in both.output
