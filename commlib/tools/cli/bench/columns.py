"""The columns of `commlib bench`: nccl-tests' for wide terminals, fewer for narrow ones, those of markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commlib.tools.bench.rows import PLACES, TYPE_WIDTH, label, median_us, steady, type_text, wrong_text
from commlib.tools.report.document import Row
from commlib.tools.report.figures import (
    count_text,
    fitted,
    interval_text,
    percent_text,
    plus_minus_text,
    size_text,
    whole_text,
)
from commlib.tools.report.table import Column

TIME, WIDTH, WRONG = 6, 5, 6  # characters of a time, a bandwidth, a number of wrong elements
ALGORITHM = 20  # lsa_lamport_oneshot and its star
MOST_DIGITS, FEW_DIGITS = 10, 8  # of a size in bytes; where they do not do, 268435456 is 256M
FIRST = ("rate", "compute", "both", "overlap", "host", "%lim", "speed-up")  # of the first form that there is
TIMES = ("time", "min", "p99", "busbw")
NARROW = ("size", "shape", "algorithm", "form", *TIMES, *FIRST[:4], "%lim", "#wrong", "host", "speed-up")
CALL = ("size", "shape", "count", "type", "redop", "root", "algorithm")
FORM = ("time", "algbw", "busbw", "#wrong")
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


def narrow(config: dict[str, Any]) -> list[Column]:
    """Return columns of a row: one form of a call."""
    of_row = _columns(config, FEW_DIGITS)
    return [of_row[name] for name in NARROW if name in of_row]


def wide(config: dict[str, Any]) -> list[list[Column]]:
    """Return columns of a way, widest first; the others have one #wrong for both forms and short intervals."""
    longest = max(6, len(str(max(config["sizes"], default=0))))
    most, few = min(longest, MOST_DIGITS), min(longest, FEW_DIGITS)
    short = [_wide(_columns(config, digits, short=True), FORM[:-1]) for digits in (most, few)]
    return [_wide(_columns(config, most), FORM), *short]


def markdown(baseline: str | None) -> list[Column]:
    """Return the columns of a way in markdown."""
    bold = {False: "`{}`", True: "**`{}`**"}
    name = Column("algorithm", lambda row: bold[row["chosen"]].format(row["algorithm"]), left=True)
    busbw = Column("busbw", lambda row: fitted(row["busbw"], 7), unit="GB/s")
    columns = [_of_way(Column("size", lambda row: size_text(row["size"]))), _of_way(name)]
    for form, words in PLACES.items():
        time = Column(words, lambda row: fitted(median_us(row), 8), unit="µs")
        columns += [_of_way(time, form, "–"), _of_way(busbw, form, "–")]
    columns += [_of_way(Column("% of limit", lambda row: percent_text(row["of_limit"])), nothing="–")]
    columns += [Column("#wrong", lambda way: ", ".join({wrong_text(row["wrong"]): row for row in way.values()}))]
    speedup = Column(f"× {baseline}", lambda row: interval_text(row["speedup"]))
    return [*columns, _of_way(speedup, nothing="–")] if baseline else columns


def _columns(config: dict[str, Any], digits: int, short: bool = False) -> dict[str, Column]:
    """Return all columns of a row by name."""
    baseline, on_gpu = config["baseline"], config["backend"] == "nccl"
    values = (config.get("params") or {}).items()
    params = sum(len(name) + 2 + max(map(len, map(str, of_name))) for name, of_name in values)
    ratio, width = (plus_minus_text, 11) if short else (interval_text, 16)
    columns = [
        Column("size", lambda row: whole_text(row["size"], digits), digits, "(B)"),
        Column("count", lambda row: whole_text(row["count"], digits), digits, "(elts)"),
        Column("type", lambda row: type_text(row["type"]), TYPE_WIDTH),
        Column("redop", lambda row: row["redop"] or "none", 5),
        Column("root", lambda row: str(-1 if row["root"] is None else row["root"]), 4),
        Column("algorithm", lambda row: label(row) + _mark(row, config), ALGORITHM + params, left=True),
        Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2),
        Column("time", lambda row: fitted(median_us(row), TIME), TIME, "(us)"),
        *(_percentiles() if config.get("percentiles") else ()),
        Column("algbw", lambda row: fitted(row["algbw"], WIDTH), WIDTH, "GB/s"),
        Column("busbw", lambda row: fitted(row["busbw"], WIDTH), WIDTH, "GB/s", spare=1),
        Column("#wrong", lambda row: wrong_text(row["wrong"]), WRONG, spare=3),
        Column("%lim", lambda row: percent_text(row["of_limit"]), 4, spare=5),
    ]
    if any(shapes := config.get("shapes") or []):
        columns[1] = Column("shape", lambda row: row.get("shape", "-"), max(5, *map(len, shapes)))
    if config.get("window"):
        columns.append(Column("rate", lambda row: count_text(row["messages_s"]), 6, "msg/s"))
    if config.get("overlap"):
        columns.append(Column("compute", lambda row: fitted(row["overlap"]["compute_us"], TIME), 7, "(us)"))
        columns.append(Column("both", lambda row: fitted(row["overlap"]["both_us"], TIME), TIME, "(us)"))
        columns.append(Column("overlap", lambda row: percent_text(row["overlap"]["share"]), 7, "%"))
    if on_gpu and config["mode"] != "graph":  # what a call takes the host, where that is not all of it
        columns.append(Column("host", lambda row: fitted(row.get("host_us"), WIDTH), WIDTH, "(us)", spare=6))
    if baseline:
        columns.append(Column("speed-up", lambda row: ratio(row["speedup"]), width, f"x {baseline}", spare=4))
    return {column.name: column for column in columns}


def _mark(row: Row, config: dict[str, Any]) -> str:
    return "~" if "agree" in config and not row["ours"] and not steady(row) else ""


def _percentiles() -> list[Column]:
    return [
        Column("min", lambda row: fitted(row["time_us"]["p0"], TIME), TIME, "(us)"),
        Column("p99", lambda row: fitted(row["time_us"].get("p99"), TIME), TIME, "(us)"),
    ]


def _wide(of_row: dict[str, Column], of_form: Sequence[str]) -> list[Column]:
    call, first = ([_of_way(of_row[name]) for name in names if name in of_row] for names in (CALL, FIRST))
    forms = [_of_way(of_row[name], form) for form in PLACES for name in of_form]
    wrong = [] if "#wrong" in of_form else [Column("#wrong", _both_wrong, WRONG)]
    return [*call, *forms, *wrong, *first]


def _of_way(column: Column, form: bool | None = None, nothing: str = "-") -> Column:
    """Return the column of a way that reads its row of that form, or of the first that there is."""

    def read(way: Way) -> str:
        row = way.get(min(way) if form is None else form)
        text = "-" if row is None else column.read(row)
        return nothing if text == "-" else text

    return replace(column, read=read, group="" if form is None else PLACES[form].replace(" ", "-"))


def _both_wrong(way: Way) -> str:
    counts = [row["wrong"] for row in way.values() if row["wrong"] is not None]
    return wrong_text(sum(counts) if counts else None)
