"""Section of `commlib bench`: the plan's choice of each call beside the limit of the machine, and beside others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commlib.collectives import COLLECTIVES
from commlib.tools.bench.plot import panels
from commlib.tools.bench.rows import compared, measured, median_us, series_of, steady, title, versus
from commlib.tools.cli.bench.view import BenchView
from commlib.tools.cli.profile.comm_analysis_view import AnalysisView
from commlib.tools.cli.profile.comm_view import CommView
from commlib.tools.cli.report.bottleneck import Call
from commlib.tools.cli.report.calls import analysed, every_row, settings
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, percent_text, size_text
from commlib.tools.report.page import Block, Grid, Picture, Text
from commlib.tools.report.view import grouped

Document = dict[str, Any]
WIDTH = 120


def bench_calls(document: Document) -> Iterator[Call]:
    """Yield the plan's choice of each call on plain tensors; the floor is the bandwidth of the machine."""
    for rows in grouped(measured(document["rows"]), series_of):
        calls = sorted(grouped(rows, _size), key=lambda call: _size(call[0]))
        found = [(ours, best) for ours, best in map(compared, calls) if ours is not None]
        least = min((median_us(ours) for ours, _ in found), default=0.0)
        for ours, best in found:
            time_us = median_us(ours)
            floor = _share(ours, document["limit"]["busbw"])
            floor = floor and floor * time_us
            yield Call(
                title(ours),
                f"{size_text(ours['size'])} {ours['algorithm']}",
                time_us,
                ours["size"],
                rate=f"{fitted(ours['busbw'], 7)} GB/s bus" if ours["size"] else "",
                floor_us=floor,
                need_us=floor if ours["size"] else 0.0,
                least_us=least if len(found) > 1 or not ours["size"] else None,
                beside=best["algorithm"] if best else "",
                versus=versus(ours, best) if best and steady(best) else None,
            )


def _size(row: Row) -> int:
    return int(row["size"])


def _share(ours: Row, limit: float | None) -> float | None:
    """Return the bus bandwidth's share of the limit: of its size, if the document says so."""
    found = ours["busbw"] / limit if limit and ours["size"] else None
    return ours.get("of_limit") or found


def section(document: Document) -> list[Block]:
    """Return what is said of collectives, in the order of their table."""
    order = list(COLLECTIVES)
    rows = sorted(document["rows"], key=lambda row: (order.index(row["op"]), row["size"]))
    document = {**document, "rows": rows}
    limit = document["limit"]
    floor = f"The floor is bandwidth: {limit['what']}." if limit["busbw"] else f"No floor: {limit['what']}."
    beside = (
        "The best other is the fastest one; its interval is of the middle four fifths of both's blocks, "
        "and there is none where its own blocks do not agree."
    )
    return [
        Text(f"{floor} {beside}"),
        *(Picture(of_series[0].title, of_series) for of_series in panels(document)),
        *analysed(list(bench_calls(document)), "bandwidth"),
        *every_row(BenchView(document, WIDTH)),
    ]


def one_call(document: Document) -> list[Block]:
    """Return where the time of one call goes."""
    view, rows = CommView(document, WIDTH), document["rows"]
    longest = max(rows, key=lambda row: float(row["us"]))
    said = (
        f"{view.title(rows)} by {document['choice']['algorithm']}: the longest phase is {longest['phase']} on rank "
        f"{longest['rank']}, {fitted(longest['us'], 8)} µs and {percent_text(longest['share'])} % of its call."
    )
    table = Grid("Mean time of each phase", view.columns(), view.items(rows))
    return [Text(said), Picture(view.panel().title, [view.panel()]), table, *settings(view)]


def paths(document: Document) -> list[Block]:
    """Return which path calls of some sizes take, and what is expected of it."""
    view, rows = AnalysisView(document, WIDTH), document["rows"]
    said = (
        "Calls that were not made: what the plan decides for them, and the time that is expected from those measured."
    )
    return [Text(said), Grid(view.title(rows), view.columns(), rows), *settings(view)]
