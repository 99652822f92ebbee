"""The table of `commlib debug` on terminals of any width."""

from __future__ import annotations

import pytest

from commlib.debug.page import _table

WAITS = "all_reduce #42 (bfloat16, 14336 elements, sum), for rank 2"
ROWS = [
    ("rank", "process", "state", "core", "comm", "calls", "in", "for", "at"),
    ("0", "924", "sleeps", "0", "1", "42", WAITS, "7 s", "train.py:10 in step"),
    ("2", "926", "sleeps", "1", "1", "41", "no call", "", "train.py:7 in load"),
    ("", "", "", "", "2", "8", "no call", "", ""),
]


def test_a_wide_terminal_has_a_line_for_each_row() -> None:
    lines = _table(ROWS, 140)
    assert len(lines) == len(ROWS)
    assert lines[1].split("  ")[0] == "0"
    assert WAITS in lines[1]


@pytest.mark.parametrize("columns", [60, 80])
def test_on_a_narrow_one_what_a_rank_is_in_stands_below_and_nothing_is_lost(columns: int) -> None:
    lines = _table(ROWS, columns)
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert f"924 sleeps 0 1 42 7 s {WAITS}, at train.py:10 in step" in words
    assert words.endswith("2 8 no call")
