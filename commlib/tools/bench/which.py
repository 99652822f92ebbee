"""Which library at which size: who is the fastest at each size of each collective, as pages and charts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.result import (
    AGREE,
    FASTER,
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
    type_text,
    versus,
)
from commlib.tools.report.chart import OURS as THICK
from commlib.tools.report.chart import Bar, Line, Panel, look
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, percent_text, ratio_text, size_text
from commlib.tools.report.measured import ENOUGH, outcome
from commlib.tools.report.page import GOOD, WARN, Section, Table, html
from commlib.tools.report.table import Column, fold
from commlib.tools.report.view import device, grouped, unfinished

OURS, LEVEL, UNCLEAR, ALONE = "commlib", "within 5 %", "too noisy to tell", "no other library"
UNDER = {"color": "0.75", "linewidth": 7, "zorder": 2}  # below the lines: it shows on both sides of one
NOBODY = (LEVEL, UNCLEAR, ALONE)
NAME, TIME, RATIO = 20, 8, 7  # characters of a collective, a time, and what follows it, on the page of text
NOISY = "noisy"  # in the place of a ratio
SIZES, NAMED = 6, 6  # of that page at most: columns, and calls that others win
MARKS = {OURS: "", LEVEL: " =", UNCLEAR: " ?"}  # behind the ratio; another library's name stands there
RULE = (
    "The number is the time of the fastest other library divided by commlib's: above 1 commlib is faster. A name "
    f"behind it is the library that is the fastest; = {LEVEL}; ? {UNCLEAR}.",
    "commlib is what the plan picks on ordinary tensors. Another library has the fastest of its ways to make the call, "
    "also on memory that was registered with it. Each has its faster form, in place or out of place.",
    f"One is faster if the other's median is at least {ENOUGH:g} times as long and nine tenths of its blocks are "
    f"faster than nine tenths of the other's. ~ stands where the blocks of one of the two differ by more than "
    f"{AGREE:.0%}.",
)


@dataclass(frozen=True)
class Call:
    """What commlib's choice takes at one size, next to the fastest of each library."""

    ours: Row
    best: Row | None
    others: Mapping[str, Row] = field(default_factory=dict)  # the fastest of each library
    interval: Mapping[str, float] | None = None  # how many times as long the best other takes, if the rows have it

    @property
    def versus(self) -> Mapping[str, float] | None:
        """How many times as long the best other takes: ratio, low, high."""
        return self.interval or (versus(self.ours, self.best) if self.best else None)

    @property
    def fastest(self) -> str:
        if self.best is None or self.versus is None:
            return ALONE
        level = LEVEL if 1 / ENOUGH < self.versus["ratio"] < ENOUGH else UNCLEAR
        return {"faster": OURS, "slower": library(self.best), "level": level}[outcome(self.versus)]

    @property
    def ratio(self) -> str:
        if self.best is None:
            return "-"
        about = "" if steady(self.ours) and steady(self.best) else "~"
        mark = MARKS.get(self.fastest, f" {self.fastest}")
        return f"{about}{ratio_text(median_us(self.best) / median_us(self.ours))}{mark}"

    @property
    def look(self) -> str:
        return GOOD if self.fastest == OURS else "" if self.fastest in NOBODY else WARN


def calls(document: Mapping[str, Any]) -> list[list[Call]]:
    """Return, for each series, the sizes at which the plan's choice was measured."""
    series = grouped(measured(document["rows"]), series_of)
    every = ([call for of in _by_size(rows).values() if (call := _call(of))] for rows in series)
    return [of_series for of_series in every if of_series]


def _by_size(rows: Sequence[Row]) -> dict[int, list[Row]]:
    return {of[0]["size"]: of for of in sorted(grouped(rows, itemgetter("size")), key=lambda of: int(of[0]["size"]))}


def _call(rows: Sequence[Row]) -> Call | None:
    ours, best = compared(rows)
    right = [row for row in rivals(rows) if not row["wrong"]]
    others = {library(of[0]): min(of, key=median_us) for of in grouped(right, library)}
    return Call(ours, best, others) if ours is not None else None


def nearest(size: int, asked: Sequence[int]) -> int:
    """Return the size that was asked for: a call has whole elements for each rank, 12 B where 8 were asked for."""
    return min(asked, key=lambda each: abs(math.log((size + 1) / (each + 1))))


def head(document: Mapping[str, Any]) -> Iterator[str]:
    config, machine, plan = document["config"], document["fingerprint"], document["plan"]
    types = ", ".join(config.get("types") or dict.fromkeys(row["type"] for row in document["rows"]))
    graphs = ", replayed CUDA graphs" if config["mode"] == "graph" else ""
    ranks = counted(config["ranks"], "rank")
    yield f"commlib {machine['commlib']} on {ranks} of backend {config['backend']}, {types}{graphs}"
    gpus = [f"{machine.get('gpus') or 1} x {machine['gpu']}"] if machine.get("gpu") else []
    yield ", ".join([*gpus, machine["cpu"], counted(machine["cores"], "core"), f"torch {machine['torch']}"])
    match = plan.get("match", "shipped")
    origins = {"here": ", measured on this machine", "shipped": ": comes with commlib"}
    yield f"plan {plan['source']} ({plan['digest']}){origins.get(match, f': measured with {match}')}"
    if match != "here":
        remedy = f" → commlib tune -n {config['ranks']}" if config["ranks"] > 1 else ""
        yield f"not measured on this machine{remedy}"


# --- the page of text


def lines(document: Mapping[str, Any], width: int) -> list[str]:
    series = calls(document)
    ending = [*_findings(document, series), *(line.removeprefix("# ") for line in unfinished(document))]
    return ["", *_table(document, series, width), "", *folded(ending, width)]


def where(path: Path | None, picture: Path | None, width: int) -> list[str]:
    """Say where the rest is; a path is not broken, as it is there to be copied."""
    if path is None:
        return folded(["every row: --full; -o FILE.json keeps them, --plot FILE.png draws them"], width)
    again = [f"every row: commlib bench show {path}"] if path.suffix == ".json" else []
    return [f"results: {path}", *again, *([f"picture: {picture}"] if picture else [])]


def folded(texts: Iterable[str], width: int) -> list[str]:
    """Break what is too long for the terminal; what is broken off is indented."""
    marked = fold((f"# {text}" for text in texts), width + 2)
    return [("  " if line.startswith("#   ") else "") + line.removeprefix("#   ").removeprefix("# ") for line in marked]


def _table(document: Mapping[str, Any], series: Sequence[Sequence[Call]], width: int) -> Iterator[str]:
    asked = document["config"]["sizes"]
    room, last = min(SIZES, max(1, (width - NAME) // (TIME + RATIO))), len(asked) - 1
    sizes = dict.fromkeys(asked[-(-at * last // max(room - 1, 1))] for at in range(room))
    yield from folded(["us per call by the plan, then how many times as long the best other takes"], width)
    yield (" " * NAME + "".join(f"{_size_text(size):>{TIME}}{' ' * RATIO}" for size in sizes)).rstrip()
    several = len({of[0].ours["type"] for of in series}) > 1
    for of in series:
        op, kind = of[0].ours["op"], type_text(of[0].ours["type"])
        at = {nearest(call.ours["size"], asked): call for call in of}
        shown = [at.get(size) for size in sizes] if of[0].ours["size"] else of[:1]  # a barrier has no data
        cells = map(_text_cell, shown)
        yield f"{(f'{op} {kind}' if several else op)[: NAME - 1]:{NAME}}{''.join(cells)}".rstrip()


def _text_cell(call: Call | None) -> str:
    if call is None:
        return f"{'-':>{TIME}} {'':{RATIO - 1}}"
    return f"{fitted(median_us(call.ours), TIME - 1):>{TIME}} {_text_ratio(call) if call.best else '-':{RATIO - 1}}"


def _text_ratio(call: Call, inverse: bool = False) -> str:
    """Return how many times as long the best other takes, or commlib; blocks that do not agree give none."""
    if call.best is None or not steady(call.best):
        return NOISY
    ratio = median_us(call.best) / median_us(call.ours)
    return f"{ratio_text(1 / ratio if inverse else ratio)}x"


def _findings(document: Mapping[str, Any], series: Sequence[Sequence[Call]]) -> Iterator[str]:
    rows, config = measured(document["rows"]), document["config"]
    values = f"{counted(document['out_of_bounds']['count'], 'wrong element')}; {counted(len(rows), 'row')} compared"
    yield f"values: {values if config['check'] else 'not compared'}"
    pairs = [
        (median_us(call.ours) / median_us(call.best), call, call.best) for of in series for call in of if call.best
    ]
    won = [
        f"{call.ours['op']} {_size_text(call.ours['size'])} ({best['algorithm']}, {_text_ratio(call, inverse=True)})"
        for ratio, call, best in sorted(pairs, key=lambda pair: -pair[0])
        if ratio > FASTER
    ]
    others = ", ".join(dict.fromkeys(row["algorithm"] for row in rivals(rows)))
    if others:
        more = f" and {len(won) - NAMED} more" if len(won) > NAMED else ""
        yield f"others: {others}; faster than ours: {', '.join(won[:NAMED]) or 'none of them'}{more}"
    if not all(steady(best) for _, _, best in pairs):
        agree = config.get("agree", 0.3)
        yield f"{NOISY}: the best other's blocks differ by more than {agree:.0%}, too much for a ratio"
    yield from document["notes"]


def _size_text(size: int) -> str:
    text = size_text(size)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"


# --- the page of HTML


def page(document: Mapping[str, Any]) -> str:
    what, *_ = head(document)
    when = document["created"][:16].replace("T", " ")
    made = Section("made", "How this was measured", code=[document["command"]], notes=[*head(document), *RULE[1:]])
    return html(f"Which library at which size: {device(document)}", f"{what}; {when} UTC", [*sections(document), made])


def sections(document: Mapping[str, Any], chart: str = "") -> list[Section]:
    series = calls(document)
    text = [("", verdict([call for of in series for call in of])), *((WARN, text) for text in _problems(document))]
    tables = [_overview(series, document["config"]["sizes"])] if series else []
    several = {library(of[0]) for of in grouped(rivals(document["rows"]), library) if len(set(map(label, of))) > 1}
    return [
        Section("collectives", "Collectives", chart, [*text, ("", RULE[0])], tables),
        Section("figures", "Collectives: figures", tables=[_figures(of, several) for of in series]),
    ]


def verdict(every: Sequence[Call]) -> str:
    counts = Counter(call.fastest for call in every)
    total = counts.total() - counts.pop(ALONE, 0)
    if not total:
        return "Nothing can be compared: no call has both commlib's time, by its plan, and that of another library."
    rest = [f"{name} in {count}" for name, count in counts.most_common() if name not in (OURS, *NOBODY)]
    text = ", ".join([f"commlib is the fastest in {counts[OURS]} of {counted(total, 'call')}", *rest])
    return f"{text}; {LEVEL}: {counts[LEVEL]}, {UNCLEAR}: {counts[UNCLEAR]}."


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    yield from (line.removeprefix("# ") for line in unfinished(document))
    yield from (note for note in document["notes"] if note.startswith("skipped: peer "))
    if count := document["out_of_bounds"]["count"]:
        yield f"{counted(count, 'wrong element')} in this run."
    shown = {series_of(row) for row in chosen(document["rows"])}
    left_out = [title(of[0]) for of in grouped(document["rows"], series_of) if series_of(of[0]) not in shown]
    if left_out:
        yield f"Not shown, because the plan's choice was not measured: {'; '.join(left_out)}."


def _overview(series: Sequence[Sequence[Call]], sizes: Sequence[int]) -> Table:
    lines = [(title(of[0].ours), {nearest(call.ours["size"], sizes): call for call in of}) for of in series]

    def cell(size: int, line: tuple[str, Mapping[int, Call]]) -> str:
        return line[1][size].ratio if size in line[1] else ""

    columns = [Column(size_text(size), partial(cell, size)) for size in sizes]

    def looks(line: tuple[str, Mapping[int, Call]], column: Column) -> str:
        return next((call.look for size, call in line[1].items() if size_text(size) == column.name), "")

    name = "The fastest library at each size, and how many times as long the best other takes"
    return Table(name, [Column("collective", itemgetter(0), left=True), *columns], lines, looks)


def _figures(of_series: Sequence[Call], several: set[str]) -> Table:
    """Return the figures of a collective; of a library with several ways, each figure names its own."""
    names = dict.fromkeys(name for call in of_series for name in call.others)
    columns = [
        Column("size", lambda call: size_text(call.ours["size"]) if call.ours["size"] else "no data"),
        Column("fastest", lambda call: call.fastest, left=True),
        Column("ratio", lambda call: call.ratio.split(" ")[0], unit="best other / commlib"),
        Column("commlib", lambda call: fitted(median_us(call.ours), 9), unit="µs"),
        Column("by its algorithm", lambda call: call.ours["algorithm"], left=True),
        Column("of the limit", lambda call: percent_text(call.ours.get("of_limit")), unit="%"),
        *(Column(name, partial(_theirs, name, name in several), unit="µs") for name in names),
    ]
    return Table(
        title(of_series[0].ours), columns, of_series, lambda call, column: call.look * (column.name == "fastest")
    )


def _theirs(name: str, named: bool, call: Call) -> str:
    row = call.others.get(name)
    return "-" if row is None else fitted(median_us(row), 9) + f" {row['algorithm']}" * named


# --- charts


def panels(document: Mapping[str, Any]) -> list[list[Panel]]:
    """Return two panels for each series: next to other libraries latency and ratio, alone latency and bandwidth."""
    timed = [row for row in measured(document["rows"]) if median_us(row)]  # a logarithm needs more than nothing
    libraries, algorithms = dict.fromkeys(map(library, rivals(timed))), dict.fromkeys(row["algorithm"] for row in timed)
    looks = {name: look(at) for at, name in enumerate(algorithms, len(libraries) + 1)}
    looks |= {name: look(at, linestyle="--") for at, name in enumerate(libraries, 1)}
    limit = document["limit"]["busbw"]
    return [_pair(rows, looks, limit) if rows[-1]["size"] else [_bars(rows)] for rows in grouped(timed, series_of)]


def _fastest(rows: Sequence[Row], figure: Any = median_us, best: Any = min) -> dict[float, float]:
    return {size: best(map(figure, of)) for size, of in _by_size(rows).items()}


def _bars(rows: Sequence[Row]) -> Panel:
    ordered = sorted(rows, key=median_us)
    bars = [Bar(f"{label(row)}  {fitted(median_us(row), 8)} µs", "", 0.0, median_us(row)) for row in ordered]
    return Panel(f"{title(rows[0])} (* the plan's choice)", bars=bars, xlabel="latency, µs")


def _pair(rows: list[Row], looks: Mapping[str, Mapping[str, Any]], limit: float | None) -> list[Panel]:
    """Compare the plan's choice with each library; where there is none, show each algorithm in one form."""
    ours, others, name = chosen(rows) or [row for row in rows if row["chosen"]], rivals(rows), library
    mine, style = "commlib", THICK
    if alone := not (ours and others):
        others, name = min(grouped(rows, _form), key=lambda of: _form(of[0])), lambda row: str(row["algorithm"])
        ours, mine, style = [row for row in others if row["chosen"]], "the plan's choice", UNDER

    def lines(figure: Any, best: Any) -> list[Line]:
        named = {name(of[0]): _fastest(of, figure, best) for of in grouped(others, name)}
        return [Line(mine, _fastest(ours, figure, best), style), *(Line(of, named[of], looks[of]) for of in named)]

    latency = Panel(title(rows[0]), "latency, µs", lines(median_us, min), log_y=True)
    if alone:
        above = f"limit: {limit:.3g} GB/s" if limit else ""
        busbw = lines(lambda row: float(row["busbw"]), max)
        return [latency, Panel(above, "bus bandwidth, GB/s", busbw, bottom=0, level=limit)]
    best, choice = _fastest(others), _fastest(ours)
    ratio = [Line(None, {size: best[size] / choice[size] for size in choice if size in best}, THICK)]
    return [latency, Panel("commlib next to the best other library", "times as fast", ratio, bottom=0, level=1)]


def _form(row: Row) -> tuple[bool, bool]:
    """Return what orders forms: on plain tensors out of place comes first."""
    return row["placement"] == "symmetric", row["in_place"]


def chart_title(document: Mapping[str, Any]) -> str:
    ops = dict.fromkeys(row["op"] for row in document["rows"])
    ended = "" if document["complete"] else ", not complete"
    return f"{next(iter(ops)) if len(ops) == 1 else 'Collectives'}, {device(document)}{ended}"
