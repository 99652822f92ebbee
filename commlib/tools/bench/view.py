"""How a result of `commlib bench` is shown: nccl-tests' table, OSU's layout, markdown, CSV, JSON, pages, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from commlib.tools.bench import notes, result, which
from commlib.tools.report import figures
from commlib.tools.report.chart import Panel
from commlib.tools.report.document import Row
from commlib.tools.report.formats import csv_text, json_text
from commlib.tools.report.table import Column, fold
from commlib.tools.report.view import View, grouped, unfinished

WIDE = 120  # columns from which both forms fit on a line
DIGITS = 8  # of a size in bytes; where they do not do, 268435456 is 256M
ALGORITHM = 20  # characters: lsa_lamport_oneshot and its star
FORM = ("time", "algbw", "busbw")  # columns that each form has, where both are on a line
COUNT, OSU_WIDTH = "Iterations", (18, 12)  # characters of a figure of OSU's, and of that
Way = dict[bool, Row]  # one way to make a call: its row out of place (False) and in place (True)
CSV = {
    **{name: name for name in ("op", "size", "shape", "count", "type", "redop", "root", "algorithm", "ours")},
    **{name: name for name in ("placement", "chosen", "rule", "why", "mode", "in_place", "skipped")},
    **{f"p{p}_us": f"time_us.p{p}" for p in (0, 10, 50, 90, 99, 100)},
    **{name: name for name in ("iterations", "blocks", "algbw", "busbw", "of_limit", "wrong", "host_us")},
    **{"speedup_over": "speedup.over", "speedup": "speedup.ratio"},
    **{f"speedup_{end}": f"speedup.{end}" for end in ("low", "high")},
    **{name: name for name in ("window", "pairs", "messages_s")},
    **{name: f"overlap.{name}" for name in ("compute_us", "both_us")},
    "overlap": "overlap.share",
}


class BenchView(View):
    """nccl-tests' table, one line per algorithm."""

    forms: ClassVar = ("table", "page", "osu", "md", "csv", "json", "html")

    def __init__(self, document: dict[str, Any], width: int | None = None) -> None:
        super().__init__(result.with_speedups(document), width)
        self._read = document

    @property
    def abreast(self) -> bool:
        return self.width >= WIDE and not self.document["config"].get("percentiles")

    def layouts(self) -> list[list[Column]]:
        """Return the columns of a way: on a wide terminal with both of its forms, else with the one it has."""
        columns = list(_columns(self.document["config"], self.abreast))
        if not self.abreast:
            return [[_of_way(column) for column in columns]]
        first = next(at for at, column in enumerate(columns) if column.name in FORM)
        rest = [_of_way(column) for column in columns if column.name not in (*FORM, "form")]
        forms = [_of_way(column, form) for form in result.PLACES for column in columns if column.name in FORM]
        return [[*rest[: first - 1], *forms, *rest[first - 1 :]]]

    def columns(self) -> list[Column]:
        return list(_markdown(self.document["config"]["baseline"]))

    def opening(self) -> list[str]:
        return notes.opening(self.document)

    def closing(self) -> list[str]:
        return notes.closing(self.document)

    def series(self, row: Row) -> tuple[Any, ...]:
        return result.series_of(row)

    def title(self, rows: Sequence[Row]) -> str:
        return result.title(rows[0])

    def items(self, rows: Sequence[Row]) -> list[Way]:
        calls = grouped(result.measured(rows), itemgetter("size"))
        ways = (way for call in calls for way in grouped(call, itemgetter("algorithm", "placement")))
        return [{row["in_place"]: row for row in way} for way in ways]

    def body(self, rows: Sequence[Row]) -> list[str]:
        ways = self.items(rows)
        each = ways if self.abreast else [{form: way[form]} for way in ways for form in sorted(way)]
        return [self.layout.line(way) for way in each]

    def json(self) -> str:
        return json_text(self._read)

    def csv(self) -> str:
        return csv_text(self.rows(), CSV)

    def osu(self) -> str:
        lines = fold(self.opening(), self.width)
        for series in self.by_series():
            for way in grouped(result.measured(series), itemgetter("algorithm", "placement", "in_place")):
                lines += ["", *fold(_osu_head(way[0]), self.width), *(_osu_line(row)[: self.width] for row in way)]
        return "\n".join([*lines, *unfinished(self.document)])

    def page(self) -> str:
        return "\n".join([*self.page_head(), *self.page_rest()])

    def page_head(self) -> list[str]:
        return which.folded(which.head(self.document), self.width)

    def page_rest(self) -> list[str]:
        return which.lines(self.document, self.width)

    def where(self, path: Path | None, picture: Path | None) -> list[str]:
        return which.where(path, picture, self.width)

    def html(self) -> str:
        return which.page(self.document)

    def panels(self) -> list[list[Panel]]:
        return which.panels(self.document)

    def chart_title(self) -> str:
        return which.chart_title(self.document)


# --- columns: each reads a row; a table reads them of ways


def _columns(config: dict[str, Any], abreast: bool) -> Iterator[Column]:
    """Yield the columns of a row; what does not fit goes by `spare`, the highest first."""
    values = (config.get("params") or {}).items()
    params = sum(len(name) + 2 + max(map(len, map(str, of_name))) for name, of_name in values)
    yield Column("size", lambda row: figures.whole_text(row["size"], DIGITS), DIGITS, "(B)")
    if any(shapes := config.get("shapes") or []):
        yield Column("shape", lambda row: row.get("shape", "-"), max(5, *map(len, shapes)))
    else:
        yield Column("count", lambda row: figures.whole_text(row["count"], DIGITS), DIGITS, "(elts)", spare=8)
    yield Column("type", lambda row: result.type_text(row["type"]), result.TYPE_WIDTH, spare=7)
    yield Column("redop", lambda row: row["redop"] or "none", 5, spare=9)
    yield Column("root", lambda row: str(-1 if row["root"] is None else row["root"]), 4, spare=10)
    mark = "agree" in config
    yield Column("algorithm", lambda row: result.label(row) + _mark(row) * mark, ALGORITHM + params, left=True)
    yield Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2)
    yield Column("time", lambda row: figures.fitted(result.median_us(row), 6), 6, "(us)")
    if config.get("percentiles"):
        yield Column("min", lambda row: figures.fitted(row["time_us"]["p0"], 6), 6, "(us)")
        yield Column("p99", lambda row: figures.fitted(row["time_us"].get("p99"), 6), 6, "(us)")
    yield Column("algbw", lambda row: figures.fitted(row["algbw"], 5), 5, "GB/s", spare=8)
    yield Column("busbw", lambda row: figures.fitted(row["busbw"], 5), 5, "GB/s", spare=1)
    if config.get("window"):
        yield Column("rate", lambda row: figures.count_text(row["messages_s"]), 6, "msg/s")
    if config.get("overlap"):
        yield Column("compute", lambda row: figures.fitted(row["overlap"]["compute_us"], 6), 7, "(us)")
        yield Column("both", lambda row: figures.fitted(row["overlap"]["both_us"], 6), 6, "(us)")
        yield Column("overlap", lambda row: figures.percent_text(row["overlap"]["share"]), 7, "%")
    yield Column("%lim", lambda row: figures.percent_text(row["of_limit"]), 4, spare=5)
    yield Column("#wrong", lambda row: _wrong_text(row["wrong"]), 6, spare=3)
    if config["backend"] == "nccl" and config["mode"] != "graph":  # what a call takes the host, if that is not all
        yield Column("host", lambda row: figures.fitted(row.get("host_us"), 5), 5, "(us)", spare=6)
    if baseline := config["baseline"]:
        ratio, width = (figures.plus_minus_text, 11) if abreast else (figures.interval_text, 16)
        yield Column("speed-up", lambda row: ratio(row["speedup"]), width, f"x {baseline}", spare=4)


def _markdown(baseline: str | None) -> Iterator[Column]:
    bold = {False: "`{}`", True: "**`{}`**"}
    yield _of_way(Column("size", lambda row: figures.size_text(row["size"])))
    yield _of_way(Column("algorithm", lambda row: bold[row["chosen"]].format(row["algorithm"]), left=True))
    for form, place in result.PLACES.items():
        yield _of_way(Column(place, lambda row: figures.fitted(result.median_us(row), 8), unit="µs"), form, "–")
        yield _of_way(Column("busbw", lambda row: figures.fitted(row["busbw"], 7), unit="GB/s"), form, "–")
    yield _of_way(Column("% of limit", lambda row: figures.percent_text(row["of_limit"])), nothing="–")
    yield _of_way(Column("#wrong", lambda row: _wrong_text(row["wrong"])))
    if baseline:
        yield _of_way(Column(f"× {baseline}", lambda row: figures.interval_text(row["speedup"])), nothing="–")


def _of_way(column: Column, form: bool | None = None, nothing: str = "-") -> Column:
    """Return the column of a way that reads its row of that form, or of the first that there is."""

    def read(way: Way) -> str:
        if column.name == "#wrong":
            counts = [row["wrong"] for row in way.values() if row["wrong"] is not None]
            return _wrong_text(sum(counts) if counts else None)
        row = way.get(min(way) if form is None else form)
        text = "-" if row is None else column.read(row)
        return nothing if text == "-" else text

    return replace(column, read=read, group="" if form is None else result.PLACES[form].replace(" ", "-"))


def _mark(row: Row) -> str:
    return "" if row["ours"] or result.steady(row) else "~"


def _wrong_text(wrong: int | None) -> str:
    return "N/A" if wrong is None else str(wrong) if wrong < 1e6 else f"{wrong:.0e}"


# --- OSU's columns: of a collective's latency, of messages in a window, of a call beside computing


def _osu_head(row: Row) -> list[str]:
    op = row["op"].replace("_", "") if row["op"].startswith("all_") else row["op"]
    what, figures = _osu(row)
    facts = [f"{row['algorithm']} on {row['placement']} tensors, {result.PLACES[row['in_place']]}"]
    facts += [row["redop"]] if row["redop"] else []
    facts += [f"root {row['root']}"] if row["root"] is not None else []
    facts += ["CUDA graph"] if row["mode"] == "graph" else []
    facts += [f"window {row['window']}{', pairs' * row['pairs']}"] if "window" in row else []
    average = ["# Avg is the median of the blocks, Min and Max are the fastest and the slowest."]
    return [
        f"# commlib {op.capitalize()} {what} Test",
        f"# Datatype: {result.type_text(row['type'])}.",
        f"# Algorithm: {', '.join(facts)}.",
        *average * (COUNT in figures),
        f"{'# Size':<10}" + "".join(f"{name:>{OSU_WIDTH[name == COUNT]}}" for name in figures),
    ]


def _osu_line(row: Row) -> str:
    figures = _osu(row)[1]
    cells = (f"{value:>12}" if name == COUNT else f"{value:>18.2f}" for name, value in figures.items())
    return f"{row['size']:<10}{''.join(cells)}"


def _osu(row: Row) -> tuple[str, dict[str, Any]]:
    """Return the name of OSU's benchmark, and its figures by their columns."""
    if "window" in row:
        return "Bandwidth", {"MB/s": row["algbw"] * 1e3, "Messages/s": row["messages_s"]}
    times = row["time_us"]
    if part := row.get("overlap"):
        both = {"Overall(us)": part["both_us"], "Compute(us)": part["compute_us"]}
        return "Overlap", {**both, "Pure Comm.(us)": times["p50"], "Overlap(%)": part["share"] * 100}
    named = {"Avg Latency(us)": "p50", "Min Latency(us)": "p0", "Max Latency(us)": "p100"}
    return "Latency", {**{name: times[p] for name, p in named.items()}, COUNT: row["iterations"] * row["blocks"]}
