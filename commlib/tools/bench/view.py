"""How a result of `commlib bench` is shown: nccl-tests' columns and ours; and who is the fastest at which size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

from commlib.counts import counted
from commlib.tools.bench.result import (
    AGREE,
    FASTER,
    PLACES,
    bounds,
    chosen,
    compared,
    label,
    library,
    measured,
    median_us,
    rivals,
    series_of,
    steady,
    title,
    with_speedups,
)
from commlib.tools.report.chart import OURS as THICK
from commlib.tools.report.chart import Line, Panel, look
from commlib.tools.report.document import Row
from commlib.tools.report.formats import Column, csv_text, fitted, fold, interval_text, ratio_text, size_text
from commlib.tools.report.view import View, grouped

SOFTWARE = {"driver": "driver", "nccl": "NCCL", "cuda": "CUDA", "torch": "torch", "python": "Python"}
NAME, CELL = 20, 14  # characters of a collective, and of a time with the ratio behind it
SIZES, NAMED = 6, 6  # of the page of text at most: columns, and calls that others win
Pair = tuple[Row, Row | None]  # what commlib's choice takes at one size, and the fastest of the others


class BenchView(View):
    """nccl-tests' table, one line per algorithm and form."""

    forms: ClassVar = ("table", "page", "md", "csv", "json")

    def opening(self) -> list[str]:
        """Return the lines above the table; the document may have no rows yet, and before the start no peers."""
        document = self.document
        config, plan, machine = document["config"], document["plan"], document["fingerprint"]
        bound = "each on a core of its own" if config["cores_per_rank"] == 1 else "not bound to cores"
        few = "; -n N starts more" if config["ranks"] == 1 else f", {bound}"
        gpus = [f"{machine.get('gpus') or 1} x {machine['gpu']}"] if machine.get("gpu") else []
        settings = [f"{name}={value}" for name, value in machine["settings"].items()]
        versions = [f"{name} {machine[key]}" for key, name in SOFTWARE.items() if machine.get(key)]
        block = counted(config["iterations"], "iteration") if config["iterations"] else f"{config['block_us']:.0f} us"
        graph = " of replayed CUDA graphs" if config["mode"] == "graph" else ""
        low, high = config["blocks"]
        lines = [
            f"commlib {machine['commlib']} bench: {counted(config['ranks'], 'rank')} on {config['backend']}{few}",
            ", ".join([*gpus, machine["cpu"], counted(machine["cores"], "core"), f"Linux {machine['kernel']}"]),
            ", ".join([*versions, *settings]),
            f"{_duration(config)}; values are {'' if config['check'] else 'not '}checked",
            f"time: median of {low} to {high} interleaved blocks of {block}{graph}, slowest rank, per call",
            f"plan {plan['digest']} from {plan['source']}, {_origin(plan, config['ranks'])}; * marks its choice",
        ]
        lines += document["notes"]
        if config["peers"]:
            what = (
                "speed-up: the time of the fastest other library over this time [over the middle four fifths of blocks]"
            )
            lines.append(f"{what}; ~: blocks differ by more than {AGREE:.0%}")
        return [f"# {line}" for line in lines]

    def columns(self) -> list[Column]:
        """Return the columns of a row; what does not fit goes by `spare`, the highest first."""
        config = self.document["config"]
        hosts = config["backend"] == "nccl" and config["mode"] != "graph"  # else the host is all
        return [
            Column("size", lambda row: str(row["size"]), 10, "(B)"),
            Column("count", lambda row: str(row["count"]), 10, "(elts)", spare=8),
            Column("type", lambda row: row["type"], 13, spare=7),
            Column("redop", lambda row: row["redop"] or "none", 5, spare=9),
            Column("root", lambda row: str(-1 if row["root"] is None else row["root"]), 4, spare=10),
            Column("algorithm", lambda row: label(row) + "~" * (not row["ours"] and not steady(row)), 20, left=True),
            Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2),
            Column("time", lambda row: fitted(median_us(row), 6), 6, "(us)"),
            Column("algbw", lambda row: fitted(row["algbw"], 5), 5, "GB/s", spare=8),
            Column("busbw", lambda row: fitted(row["busbw"], 5), 5, "GB/s", spare=1),
            Column("#wrong", lambda row: "N/A" if row["wrong"] is None else str(row["wrong"]), 6, spare=3),
            *([Column("host", lambda row: fitted(row.get("host_us"), 5), 5, "(us)", spare=6)] * hosts),
            *(
                [Column("speed-up", lambda row: interval_text(row["speedup"]), 16, "x best", spare=4)]
                * bool(config["peers"])
            ),
        ]

    def closing(self) -> list[str]:
        """Return the lines below the table: what others make faster, what was skipped, and what is wrong."""
        skipped = (row for row in self.document["rows"] if "skipped" in row)
        texts = {f"# skipped {label(row)} {PLACES[row['in_place']]}: {row['skipped']}": row for row in skipped}
        return ["#", *texts, *others(self.document), *bounds(self.document)]

    def series(self, row: Row) -> tuple[Any, ...]:
        return series_of(row)

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def items(self, rows: Sequence[Row]) -> list[Row]:
        return with_speedups(measured(rows))

    def csv(self) -> str:
        return csv_text(with_speedups(self.document["rows"]))

    def page(self) -> str:
        return "\n".join([*fold(self.opening(), self.width), *self.page_rest()])

    def page_rest(self) -> list[str]:
        return lines(self.document, self.width)

    def panels(self) -> list[list[Panel]]:
        return panels(self.document)

    def chart_title(self) -> str:
        return chart_title(self.document)


def _duration(config: Mapping[str, Any]) -> str:
    seconds, start_s = config["seconds"], config.get("start_s")
    return f"about {start_s + seconds:.0f} s, {start_s:.0f} of them to start" if start_s else f"about {seconds:g} s"


def _origin(plan: Mapping[str, Any], ranks: int) -> str:
    match = plan.get("match", "shipped")
    if match == "here":
        return "measured on this machine"
    other = "" if match == "shipped" else f" but with {match}"
    return f"not measured on this machine{other}" + f" → commlib tune -n {ranks}" * (ranks > 1)


# --- who is the fastest at which size


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
    on_cpu = f"{counted(config['ranks'], 'rank')} on {config['backend']}, {machine['cpu']}"
    where = f"{config['ranks']} × {machine['gpu']}" if machine.get("gpu") else on_cpu
    return f"{next(iter(ops)) if len(ops) == 1 else 'Collectives'}, {where}"
