"""Which library at which size: who is the fastest at each size of each collective, as text and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.result import (
    FASTER,
    bounds,
    chosen,
    compared,
    library,
    measured,
    median_us,
    rivals,
    series_of,
    steady,
    title,
)
from commlib.tools.report.chart import OURS as THICK
from commlib.tools.report.chart import Line, Panel, look
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, ratio_text, size_text
from commlib.tools.report.table import fold
from commlib.tools.report.view import grouped

NAME, CELL = 20, 14  # characters of a collective, and of a time with the ratio behind it
SIZES, NAMED = 6, 6  # of the page of text at most: columns, and calls that others win
Pair = tuple[Row, Row | None]  # what commlib's choice takes at one size, and the fastest of the others


def ratio(ours: Row, best: Row | None) -> str:
    if best is None:
        return "-"
    return "~" * (not (steady(ours) and steady(best))) + ratio_text(median_us(best) / median_us(ours))


def calls(document: Mapping[str, Any]) -> list[list[Pair]]:
    """Return, for each series, the sizes at which the plan's choice was measured."""
    series = grouped(measured(document["rows"]), series_of)
    every = ([compared(of) for of in _by_size(rows).values()] for rows in series)
    pairs = ([(ours, best) for ours, best in of if ours is not None] for of in every)
    return [of_series for of_series in pairs if of_series]


def _by_size(rows: Sequence[Row]) -> dict[int, list[Row]]:
    return {of[0]["size"]: of for of in sorted(grouped(rows, itemgetter("size")), key=lambda of: int(of[0]["size"]))}


def _nearest(size: int, asked: Sequence[int]) -> int:
    """Return the size that was asked for: a call has whole elements for each rank, 12 B where 8 were asked for."""
    return min(asked, key=lambda each: abs(math.log((size + 1) / (each + 1))))


# --- the page of text


def lines(document: Mapping[str, Any], width: int) -> list[str]:
    """Return a line for each series, a column for each of some sizes."""
    asked, every = document["config"]["sizes"], calls(document)
    room, last = min(SIZES, max(1, (width - NAME) // (CELL + 1))), len(asked) - 1
    sizes = list(dict.fromkeys(asked[-(-at * last // max(room - 1, 1))] for at in range(room)))
    body = [" ".join([f"{'':{NAME}}", *(f"{size_text(size)}{'':7}".rjust(CELL) for size in sizes)]).rstrip()]
    several = len({of[0][0]["op"] for of in every}) < len(every)  # series of one collective
    for of in every:
        name = title(of[0][0]) if several else of[0][0]["op"]
        by_size = {_nearest(ours["size"], asked): (ours, best) for ours, best in of}
        body.append(" ".join([f"{name:{NAME}.{NAME}}", *(_cell(by_size.get(size)) for size in sizes)]).rstrip())
    what = "# us per call by the plan, then how many times as long the best other takes (~ noisy)"
    return ["#", *fold([what], width), *body, *fold([*others(document), *bounds(document)], width)]


def _cell(pair: Pair | None) -> str:
    return f"{fitted(median_us(pair[0]), 7)} {ratio(*pair):<6}".rjust(CELL) if pair else " " * CELL


def others(document: Mapping[str, Any]) -> Iterator[str]:
    """Name the other libraries, and the calls that they make faster by more than noise."""
    pairs = [pair for of in calls(document) for pair in of]
    ratios = [(median_us(ours) / median_us(best), ours, best) for ours, best in pairs if best]
    won = [
        f"{ours['op']} {size_text(ours['size'])} ({best['algorithm']}, {ratio_text(factor)}x)"
        for factor, ours, best in sorted(ratios, key=lambda each: -each[0])
        if factor > FASTER
    ]
    if others := ", ".join(dict.fromkeys(row["algorithm"] for row in rivals(document["rows"]))):
        more = f" and {len(won) - NAMED} more" if len(won) > NAMED else ""
        noisy = sum(not (steady(ours) and steady(best)) for _, ours, best in ratios)
        more += f"; {noisy} of {len(ratios)} too noisy to tell (~)" * bool(noisy)
        yield f"# others: {others}; faster than ours: {', '.join(won[:NAMED]) or 'none of them'}{more}"


# --- charts


def panels(document: Mapping[str, Any]) -> list[list[Panel]]:
    """Return the panels of each series: latency, and next to other libraries the ratio."""
    timed = [row for row in measured(document["rows"]) if median_us(row)]  # a logarithm needs more than nothing
    libraries, ours = dict.fromkeys(map(library, rivals(timed))), dict.fromkeys(map(itemgetter("algorithm"), timed))
    looks = {name: look(at) for at, name in enumerate(ours, len(libraries) + 1)}
    looks |= {name: look(at, linestyle="--") for at, name in enumerate(libraries, 1)}
    return [_pair(of, looks) for of in grouped(timed, series_of) if of[-1]["size"]]


def _pair(rows: list[Row], looks: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """Compare the plan's choice with each library; where there is none, with each algorithm on plain tensors."""
    others, name = rivals(rows), library
    if not others:
        plain = [row for row in rows if row["placement"] == "plain" and row["in_place"] == rows[0]["in_place"]]
        others, name = plain or rows, lambda row: str(row["algorithm"])
    lines = {name(of[0]): _fastest(of) for of in grouped(others, name)}
    ours = _fastest(chosen(rows) or [row for row in rows if row["chosen"]])
    drawn = [Line("commlib", ours, THICK), *(Line(of, lines[of], looks[of]) for of in lines)]
    latency = Panel(title(rows[0]), "latency, µs", drawn, log_y=True)
    if rivals(rows):
        best = _fastest(others)
        ratio = [Line(None, {size: best[size] / ours[size] for size in ours if size in best}, THICK)]
        return [latency, Panel("commlib next to the best other library", "times as fast", ratio, bottom=0, level=1)]
    return [latency]


def _fastest(rows: Sequence[Row]) -> dict[int, float]:
    return {size: min(map(median_us, of)) for size, of in _by_size(rows).items()}


def chart_title(document: Mapping[str, Any]) -> str:
    ops = dict.fromkeys(row["op"] for row in document["rows"])
    config, machine = document["config"], document["fingerprint"]
    where = f"{counted(config['ranks'], 'rank')} on {config['backend']}, {machine.get('gpu') or machine['cpu']}"
    return f"{next(iter(ops)) if len(ops) == 1 else 'Collectives'}, {where}"
