"""The columns of `commlib bench`: nccl-tests' for wide terminals, fewer for narrow ones, those of markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commlib.bench.rows import PLACES, TYPE_WIDTH, Way, label, median_us, type_text, wrong_text
from commlib.report.document import Row
from commlib.report.figures import fitted, interval_text, percent_text, plus_minus_text, size_text, whole_text
from commlib.report.table import Column

TIME, WIDTH, WRONG = 6, 5, 6  # characters of a time, a bandwidth, a number of wrong elements
ALGORITHM = 19  # lsa_ll128_exchange and its star
MOST_DIGITS, FEW_DIGITS = 10, 8  # of a size in bytes; where they do not do, 268435456 is 256M
Read = Callable[[Row], str]

CSV = {
    **{
        name: name
        for name in (
            *("op", "size", "count", "type", "redop", "root", "algorithm", "ours", "placement", "chosen", "rule"),
            *("why", "mode", "in_place", "skipped"),
        )
    },
    **{f"p{p}_us": f"time_us.p{p}" for p in (0, 10, 50, 90, 100)},
    **{name: name for name in ("iterations", "blocks", "algbw", "busbw", "of_limit", "wrong", "host_us")},
    "speedup_over": "speedup.over",
    "speedup": "speedup.ratio",
    "speedup_low": "speedup.low",
    "speedup_high": "speedup.high",
}


def narrow(config: dict[str, Any]) -> list[list[Column]]:
    """Return columns of a row: one form of a call on a line."""
    return [
        [
            Column("size", lambda row: whole_text(row["size"], FEW_DIGITS), FEW_DIGITS, "(B)"),
            Column("algorithm", label, _algorithm_width(config), left=True),
            Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2),
            Column("time", _time, TIME, "(us)"),
            Column("busbw", _busbw, WIDTH, "GB/s", spare=1),
            Column("%lim", _limit, 4, spare=5),
            Column("#wrong", _wrong, WRONG, spare=3),
            *_host(config, lambda row: row),
            *_speedup(config["baseline"], 16, interval_text, lambda row: row),
        ]
    ]


def wide(config: dict[str, Any]) -> list[list[Column]]:
    """Return columns of a way, widest first; the others have one #wrong for both forms and short intervals."""
    longest = max(6, len(str(max(config["sizes"], default=0))))
    whole = [column for in_place in PLACES for column in _half(in_place)]
    merged = [column for column in whole if column.name != "#wrong"]
    merged.append(Column("#wrong", _both_wrong, WRONG))
    limits = [*_host(config, _first), Column("%lim", _of_first(_limit), 4, spare=5)]
    full, few = (_lead(min(longest, digits), _algorithm_width(config)) for digits in (MOST_DIGITS, FEW_DIGITS))
    long = [*limits, *_speedup(config["baseline"], 16, interval_text, _first)]
    short = [*limits, *_speedup(config["baseline"], 11, plus_minus_text, _first)]
    return [[*full, *whole, *long], [*full, *merged, *short], [*few, *merged, *short]]


def markdown(baseline: str | None) -> list[Column]:
    """Return the columns of a way in markdown."""
    return [
        Column("size", _of_first(lambda row: size_text(row["size"]))),
        Column(
            "algorithm",
            _of_first(lambda row: f"**`{row['algorithm']}`**" if row["chosen"] else f"`{row['algorithm']}`"),
            left=True,
        ),
        Column("out of place", _side(False, lambda row: fitted(median_us(row), 8), "–"), unit="µs"),
        Column("busbw", _side(False, lambda row: fitted(row["busbw"], 7), "–"), unit="GB/s"),
        Column("in place", _side(True, lambda row: fitted(median_us(row), 8), "–"), unit="µs"),
        Column("busbw", _side(True, lambda row: fitted(row["busbw"], 7), "–"), unit="GB/s"),
        Column("% of limit", lambda way: _limit(_first(way)).replace("-", "–")),
        Column("#wrong", lambda way: ", ".join(dict.fromkeys(_wrong(row) for row in way.values()))),
        *(
            [Column(f"× {baseline}", lambda way: interval_text(_first(way)["speedup"]).replace("-", "–"))]
            if baseline
            else []
        ),
    ]


def _lead(digits: int, algorithm: int) -> list[Column]:
    return [
        Column("size", _of_first(lambda row: whole_text(row["size"], digits)), digits, "(B)"),
        Column("count", _of_first(lambda row: whole_text(row["count"], digits)), digits, "(elts)"),
        Column("type", _of_first(lambda row: type_text(row["type"])), TYPE_WIDTH),
        Column("redop", _of_first(lambda row: row["redop"] or "none"), 5),
        Column("root", _of_first(lambda row: str(-1 if row["root"] is None else row["root"])), 4),
        Column("algorithm", _of_first(label), algorithm, left=True),
    ]


def _half(in_place: bool) -> list[Column]:
    group = "in-place" if in_place else "out-of-place"
    return [
        Column("time", _side(in_place, _time), TIME, "(us)", group),
        Column("algbw", _side(in_place, lambda row: fitted(row["algbw"], WIDTH)), WIDTH, "GB/s", group),
        Column("busbw", _side(in_place, _busbw), WIDTH, "GB/s", group),
        Column("#wrong", _side(in_place, _wrong), WRONG, "", group),
    ]


def _speedup(
    baseline: str | None, width: int, write: Callable[[Any], str], row_of: Callable[[Any], Row]
) -> list[Column]:
    if not baseline:
        return []
    return [Column("speed-up", lambda item: write(row_of(item)["speedup"]), width, f"x {baseline}", spare=4)]


def _host(config: dict[str, Any], row_of: Callable[[Any], Row]) -> list[Column]:
    """Return the column of what a call takes the host, where that is not all of it."""
    if config["backend"] != "nccl" or config["mode"] == "graph":
        return []
    return [Column("host", lambda item: fitted(row_of(item).get("host_us"), WIDTH), WIDTH, "(us)", spare=6)]


def _algorithm_width(config: dict[str, Any]) -> int:
    values = config.get("params") or {}
    return ALGORITHM + sum(len(name) + 2 + max(map(len, map(str, of_name))) for name, of_name in values.items())


def _first(way: Way) -> Row:
    return way[min(way)]


def _of_first(read: Read) -> Callable[[Way], str]:
    return lambda way: read(_first(way))


def _side(in_place: bool, read: Read, nothing: str = "-") -> Callable[[Way], str]:
    return lambda way: read(way[in_place]) if in_place in way else nothing


def _time(row: Row) -> str:
    return fitted(median_us(row), TIME)


def _busbw(row: Row) -> str:
    return fitted(row["busbw"], WIDTH)


def _limit(row: Row) -> str:
    return percent_text(row["of_limit"])


def _wrong(row: Row) -> str:
    return wrong_text(row["wrong"])


def _both_wrong(way: Way) -> str:
    counts = [row["wrong"] for row in way.values() if row["wrong"] is not None]
    return wrong_text(sum(counts) if counts else None)
