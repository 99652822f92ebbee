"""A document of `commlib bench` as text: the table, OSU's layout, markdown, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from commlib.cli.bench.columns import fold
from commlib.cli.bench.rows import (
    PLACES,
    Row,
    by_call,
    by_series,
    by_way,
    fitted,
    measured,
    median_us,
    percent_text,
    ratio_text,
    size_text,
    title,
    type_text,
    wrong_text,
)
from commlib.cli.bench.table import Table, closing, opening

FORMS = ("table", "osu", "md", "csv", "json")
_TIME, _BANDWIDTH = 8, 7  # characters of figures where columns do not bound them


def render(document: dict[str, Any], form: str, width: int) -> str:
    """Render a document as one of FORMS; the table and OSU's layout keep within `width`. No newline at the end."""
    return _RENDERERS[form](document, width)


def _table(document: dict[str, Any], width: int) -> str:
    table = Table(width, document["config"])
    lines = fold(opening(document), width)
    for series in by_series(document["rows"]):
        lines += table.head(series)
        lines += [line for call in by_call(series) for line in table.body(call)]
    return "\n".join([*lines, *fold(closing(document), width)])


def _osu(document: dict[str, Any], width: int) -> str:
    """Render OSU's columns, one table for each algorithm in each form."""
    lines: list[str] = []
    for series in by_series(document["rows"]):
        for way in _ways(measured(series)):
            lines += ["", *fold(_osu_head(way[0]), width), *(_osu_line(row)[:width] for row in way)]
    return "\n".join([*fold(opening(document), width), *lines])


def _ways(rows: Sequence[Row]) -> Iterator[list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["algorithm"], row["placement"], row["in_place"]), []).append(row)
    yield from groups.values()


def _osu_head(row: Row) -> list[str]:
    op = row["op"].replace("_", "") if row["op"].startswith("all_") else row["op"]
    parts = [f"{row['algorithm']} on {row['placement']} tensors, {PLACES[row['in_place']]}"]
    parts += [row["redop"]] if row["redop"] else []
    parts += [f"root {row['root']}"] if row["root"] is not None else []
    parts += ["CUDA graph"] if row["mode"] == "graph" else []
    return [
        f"# commlib {op.capitalize()} Latency Test",
        f"# Datatype: {type_text(row['type'])}.",
        f"# Algorithm: {', '.join(parts)}.",
        "# Avg is the median of the blocks, Min and Max are the fastest and the slowest.",
        f"{'# Size':<10}{'Avg Latency(us)':>18}{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>12}",
    ]


def _osu_line(row: Row) -> str:
    times = "".join(f"{row['time_us'][name]:>18.2f}" for name in ("p50", "p0", "p100"))
    return f"{row['size']:<10}{times}{row['iterations'] * row['blocks']:>12}"


def _markdown(document: dict[str, Any], width: int) -> str:
    baseline = document["config"]["baseline"]
    lines = [f"- {_escaped(line[2:])}" for line in opening(document)]
    for series in by_series(document["rows"]):
        lines += ["", f"### {title(series[0])}", "", *_markdown_head(baseline)]
        for call in by_call(series):
            lines += [_markdown_line(forms, baseline) for forms in by_way(measured(call))]
    notes = [line.removeprefix("#").strip() for line in closing(document)]
    return "\n".join([*lines, "", *(f"- {_escaped(note)}" for note in notes if note)])


def _markdown_head(baseline: str | None) -> list[str]:
    names = ["size", "algorithm", "out of place, µs", "busbw, GB/s", "in place, µs", "busbw, GB/s", "% of limit"]
    names += ["#wrong", *([f"× {baseline}"] if baseline else [])]
    return [_cells(names), _cells(["---:", ":---", *["---:"] * (len(names) - 2)])]


def _markdown_line(forms: dict[bool, Row], baseline: str | None) -> str:
    first = forms[min(forms)]
    name = f"`{first['algorithm']}`"
    cells = [size_text(first["size"]), f"**{name}**" if first["chosen"] else name]
    for in_place in PLACES:
        row = forms.get(in_place)
        cells += [fitted(median_us(row), _TIME), fitted(row["busbw"], _BANDWIDTH)] if row else ["–", "–"]
    cells += [
        percent_text(first["of_limit"]).replace("-", "–"),
        ", ".join(dict.fromkeys(wrong_text(row) for row in forms.values())),
    ]
    return _cells([*cells, *([_interval(first["speedup"])] if baseline else [])])


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "\\<").replace("#", "\\#")


def _interval(speedup: dict[str, Any] | None) -> str:
    if speedup is None:
        return "–"
    return f"{ratio_text(speedup['ratio'])} [{ratio_text(speedup['low'])}–{ratio_text(speedup['high'])}]"


_NAMES = ("op", "size", "count", "type", "redop", "root", "algorithm", "ours", "placement", "chosen", "rule", "why")
_PERCENTILES = ("p0", "p10", "p50", "p90", "p100")
_FIGURES = ("iterations", "blocks", "algbw", "busbw", "of_limit", "wrong")
_SPEEDUP = ("over", "ratio", "low", "high")


def _csv(document: dict[str, Any], width: int) -> str:
    """Render RFC 4180: one header, one line for each row, nothing for what a row does not have."""
    text = io.StringIO()
    writer = csv.writer(text)
    speedup = ["speedup_over", "speedup", "speedup_low", "speedup_high"]
    names = [*_NAMES, "mode", "in_place", "skipped", *(f"{name}_us" for name in _PERCENTILES), *_FIGURES, *speedup]
    writer.writerow(names)
    for row in document["rows"]:
        times, against = row.get("time_us", {}), row.get("speedup") or {}
        values = [row.get(name) for name in (*_NAMES, "mode", "in_place", "skipped")]
        values += [times.get(name) for name in _PERCENTILES] + [row.get(name) for name in _FIGURES]
        writer.writerow([_plain(value) for value in [*values, *(against.get(name) for name in _SPEEDUP)]])
    return text.getvalue().removesuffix("\r\n")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())  # a row is a line, also for readers that know no quotes
    return str(value).lower() if isinstance(value, bool) else value


def _json(document: dict[str, Any], width: int) -> str:
    return json.dumps(document, indent=1)


_RENDERERS: dict[str, Callable[[dict[str, Any], int], str]] = {
    "table": _table,
    "osu": _osu,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
}
