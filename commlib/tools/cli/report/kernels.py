"""Sections of `commlib profile`: the kernels, the radix cache, and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commlib.counts import counted
from commlib.tools.baselines.kernels.case import OURS
from commlib.tools.cli.profile import notes
from commlib.tools.cli.profile.attention_view import AttentionView
from commlib.tools.cli.profile.plot import grid
from commlib.tools.cli.profile.radix import RadixView
from commlib.tools.cli.profile.view import ProfileView
from commlib.tools.cli.report.bottleneck import BYTES, WORK, Call
from commlib.tools.cli.report.calls import analysed, every_row, in_order
from commlib.tools.report.document import Row
from commlib.tools.report.figures import count_text, fitted
from commlib.tools.report.page import Block, Picture, Text
from commlib.tools.report.plot import Panel
from commlib.tools.report.view import grouped

WIDTH = 120
Document = dict[str, Any]


def kernel_calls(document: Document) -> Iterator[Call]:
    """Yield the calls of ours; the floor is a copy of as many bytes."""
    timed = [row for row in document["rows"] if row["role"] == OURS and row["time_us"]]
    ours = (next(iter(of)) for of in grouped(timed, lambda row: (notes.title(row), row["n"])))
    for found in grouped(ours, notes.title):
        rows = sorted(found, key=_bytes)
        least = rows[0]["time_us"]["p50"] if len(rows) > 1 else None
        for at, row in enumerate(rows):
            time_us, need = row["time_us"]["p50"], [_floor(each) / each["bytes"] for each in rows[at:] if _floor(each)]
            yield Call(
                notes.title(row),
                f"n {row['n']}",
                time_us,
                row["bytes"],
                rate=f"{fitted(row['gbps'], 7)} GB/s",
                floor_us=_floor(row),
                need_us=row["bytes"] * min(need) if need else None,
                least_us=least,
                **_versus(row),
            )


def _bytes(row: Row) -> float:
    return float(row["bytes"])


def _floor(row: Row) -> Any:
    return row["of_copy"] and row["of_copy"] * row["time_us"]["p50"]


def _versus(row: Row) -> dict[str, Any]:
    """Return who is compared with ours; a second line of ours is no other."""
    versus = row["versus"]
    found = None if versus is None or versus["of"] == row["candidate"] else versus
    return {"beside": found["of"] if found else "", "versus": found}


def kernel(document: Document) -> list[Block]:
    """Return what is said of a kernel."""
    document = in_order(document, "n")
    pictures = [Picture(panels[0].title, panels) for panels in grid(document)]
    return [*pictures, *analysed(list(kernel_calls(document)), "copy"), *every_row(ProfileView(document, WIDTH))]


def attention_calls(document: Document) -> Iterator[Call]:
    """Yield the calls of ours, or of who is there where there is none; the floor is the ceiling of the command."""
    view, decodes = AttentionView(document, WIDTH), document["config"]["phase"] == "decode"
    timed = [row for row in document["rows"] if row["role"] == OURS and row["time_us"]]
    first = [next(iter(of)) for of in grouped(timed, lambda row: (_title(view, row), row["batch"], row["length"]))]
    for found in grouped(first, lambda row: _title(view, row)):
        rows = sorted(found, key=_bytes)
        least = rows[0]["time_us"]["p50"] if len(rows) > 1 else None
        for row in rows:
            time_us = row["time_us"]["p50"]
            floor = row["of_ceiling"] and row["of_ceiling"] * time_us
            yield Call(
                _title(view, row),
                f"{row['batch']} x {counted(row['length'], 'token')}",
                time_us,
                row["bytes"],
                work=count_text(row["flops"]),
                rate=f"{fitted(row['gbps'], 7)} GB/s" if decodes else f"{fitted(row['tflops'], 7)} TFLOP/s",
                floor_of=BYTES if decodes else WORK,
                floor_us=floor,
                need_us=floor,
                least_us=least,
                **_versus(row),
            )


def _title(view: AttentionView, row: Row) -> str:
    return view.title([row])


def attention(document: Document) -> list[Block]:
    """Return what is said of one phase of attention."""
    document = in_order(document, "bytes", "batch")
    view = AttentionView(document, WIDTH)
    floor = "read of K and V" if document["config"]["phase"] == "decode" else "matrix product"
    timed = [row for row in document["rows"] if row["time_us"]]
    pictures = [
        Picture(view.title(rows), [_bars(case) for case in grouped(rows, lambda row: (row["batch"], row["length"]))])
        for rows in grouped(timed, lambda row: view.title([row]))
    ]
    return [*analysed(list(attention_calls(document)), floor), *pictures, *every_row(view)]


def _bars(rows: list[Row]) -> Panel:
    times = {f"{row['candidate']}  {fitted(row['time_us']['p50'], 8)}": row["time_us"]["p50"] for row in rows}
    return Panel(f"{rows[0]['batch']} x {counted(rows[0]['length'], 'token')}", "latency, µs", bars=times)


def radix_calls(document: Document) -> Iterator[Call]:
    """Yield the calls of ours; nothing is measured that they could not go below."""
    for rows in grouped(document["rows"], lambda row: (row["operation"], row["tokens"], row["detail"])):
        ours, *others = sorted(rows, key=lambda row: row["to_ours"] or 0.0)
        best = next((row for row in others if not row["candidate"].startswith("commlib")), None)
        yield Call(
            "calls from Python, one thread",
            f"{ours['operation']}: {counted(ours['tokens'], 'token')}, {ours['detail']}",
            ours["median_us"],
            rate=f"{fitted(ours['gbps'], 7)} GB/s" if ours["gbps"] else "",
            beside=best["candidate"] if best else "",
            versus=best and _apart(ours, best),
        )


def _apart(ours: Row, best: Row) -> Row:
    """Return the ratio of two medians, and what it is at least and at most by the fastest block of either."""
    return {
        "ratio": best["median_us"] / ours["median_us"],
        "low": best["least_us"] / ours["median_us"],
        "high": best["median_us"] / ours["least_us"],
    }


def radix(document: Document) -> list[Block]:
    """Return what is said of the radix cache."""
    said = "An interval is of the medians and of the fastest blocks."
    return [Text(said), *analysed(list(radix_calls(document)), "none"), *every_row(RadixView(document, WIDTH))]
