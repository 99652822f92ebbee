"""What every section says of calls: a table with floor, rate, the best other and the bottleneck, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commlib.tools.cli.report.bottleneck import BYTES, CALL, WORK, Call, bottleneck, tries
from commlib.tools.report.figures import about, fitted, interval_text, percent_text
from commlib.tools.report.page import BAD, GOOD, Block, Grid, Points, Text
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, grouped

TONES = {BYTES: GOOD, WORK: GOOD, CALL: BAD}


def columns(calls: Sequence[Call], floor: str) -> list[Column]:
    """Return the columns of calls whose floor is this; what no call has is left out."""
    every = [
        Column("call", lambda call: call.name, left=True),
        Column("bytes", lambda call: "-" if call.num_bytes is None else about(call.num_bytes)),
        Column("work", lambda call: call.work or "-", unit="operations"),
        Column("time", lambda call: fitted(call.time_us, 9), unit="µs"),
        Column("rate", lambda call: call.rate or "-"),
        Column("floor", lambda call: fitted(call.floor_us, 9), unit=f"µs, {floor}"),
        Column("reached", lambda call: percent_text(call.share), unit="% of floor"),
        Column("best other", lambda call: call.beside or "-", left=True),
        Column("its time", lambda call: interval_text(call.versus), unit="times ours [interval]"),
        Column("bottleneck", lambda call: bottleneck(call)[0], left=True),
        Column("how it is known", lambda call: bottleneck(call)[1], left=True),
    ]
    return [column for column in every if any(column.read(call) != "-" for call in calls)]


def analysed(calls: Sequence[Call], floor: str) -> list[Block]:
    """Return a table for each series, and what to try."""
    grids = [
        Grid(of[0].series, columns(calls, floor), of, tone=lambda call: TONES.get(bottleneck(call)[0], ""))
        for of in grouped(calls, lambda call: call.series)
    ]
    return [*grids, Text("What to try, by bottleneck:"), Points(tries(calls))]


def in_order(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a document whose rows are in the order of these figures: kept rows stand as they pack best."""
    return {**document, "rows": sorted(document["rows"], key=lambda row: [row[key] for key in keys])}


def every_row(view: View) -> list[Block]:
    """Return what the command itself shows, to be looked up."""
    every = ((f"Every row: {view.title(rows)}", view.items(rows)) for rows in view.by_series())
    return [*(Grid(caption, view.columns(), items, folded=True) for caption, items in every), *settings(view)]


def settings(view: View) -> list[Block]:
    """Return what the command says above and below its rows."""
    lines = (line.removeprefix("#").strip() for line in (*view.opening(), *view.closing()))
    return [Points([line for line in lines if line], "How it was measured, and what was left out")]
