"""Counts are written with their noun: one rank is not '1 ranks'."""

from __future__ import annotations

import pytest

from commlib.counts import counted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1, "rank"), "1 rank"),
        ((0, "rank"), "0 ranks"),
        ((2, "rank"), "2 ranks"),
        (("2, 3", "rank"), "2, 3 ranks"),
        ((1, "query", "queries"), "1 query"),
        ((3, "query", "queries"), "3 queries"),
    ],
)
def test_one_is_singular_and_the_rest_plural(given, said):
    assert counted(*given) == said
