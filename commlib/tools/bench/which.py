"""Which library at which size: a page of one run, with a strip for each collective and its figures in a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.page import head
from commlib.tools.bench.rows import (
    AGREE,
    chosen,
    compared,
    library,
    measured,
    median_us,
    rivals,
    series_of,
    steady,
    title,
    versus,
)
from commlib.tools.report.document import Row
from commlib.tools.report.figures import about, fitted, ratio_text, size_text
from commlib.tools.report.html import html
from commlib.tools.report.measured import ENOUGH, outcome
from commlib.tools.report.page import GOOD, WARN, Code, Grid, Picture, Points, Section, Text
from commlib.tools.report.plot import Panel, Tile
from commlib.tools.report.table import Column
from commlib.tools.report.view import grouped, unfinished

OURS, LEVEL, UNCLEAR, ALONE = "commlib", "level", "unclear", "no other here"
NOBODY = {LEVEL: "level", UNCLEAR: "unclear", ALONE: "alone"}  # and the class of each in a page
COLOURS = 10  # of a page
RULE = (
    "commlib is what the plan picks on ordinary tensors. Another library has the fastest of its ways to make the call, "
    "also on memory that was registered with it. Each has its faster form, in place or out of place.",
    f"One of the two is the fastest if the other's median is at least {ENOUGH:g} times as long and their blocks lie "
    f"apart: nine tenths of its blocks are faster than nine tenths of the other's. They are {LEVEL} if their medians "
    f"differ by less. It is {UNCLEAR} if these differ by more and the blocks overlap: the noise is too large to tell.",
    "The number is the time of the best other divided by commlib's: above 1 commlib is faster. ~ stands before it "
    f"where the blocks of one of the two differ by more than {AGREE:.0%}.",
)


@dataclass(frozen=True)
class Size:
    """One call of commlib, and those of the others."""

    ours: Row
    best: Row | None
    others: Mapping[str, Row]  # the fastest of each library

    @property
    def fastest(self) -> str:
        """The library that is the fastest by the rule, or why it is nobody."""
        if self.best is None:
            return ALONE
        found = versus(self.ours, self.best)
        level = LEVEL if 1 / ENOUGH < found["ratio"] < ENOUGH else UNCLEAR
        return {"faster": OURS, "slower": library(self.best), "level": level}[outcome(found)]

    @property
    def ratio(self) -> str:
        """How many times as long the best other takes."""
        if self.best is None:
            return "-"
        unsteady = not (steady(self.ours) and steady(self.best))
        return "~" * unsteady + ratio_text(median_us(self.best) / median_us(self.ours))


def page(document: dict[str, Any]) -> str:
    """Return the page as HTML."""
    machine = document["fingerprint"]
    where = f"{machine.get('gpus') or 1} x {machine['gpu']}" if machine.get("gpu") else machine["cpu"]
    what, *_ = head(document)
    when = document["created"][:16].replace("T", " ")
    return html(f"Which library at which size: {where}", f"{what}; measured {when} UTC", list(_sections(document)))


def _sections(document: dict[str, Any]) -> Iterator[Section]:
    series = [found for rows in grouped(measured(document["rows"]), series_of) if (found := _sizes(rows))]
    looks = _looks(document)
    strips = [_strip(sizes, looks) for sizes in series]
    picture = [Picture("The fastest library at each size, and how many times as long the best other takes", strips)]
    problems = [Text(text, WARN) for text in _problems(document)]
    yield Section("summary", "Summary", [Text(_verdict(series)), *problems, *(picture if strips else []), Points(RULE)])
    ways = grouped(rivals(document["rows"]), library)
    several = {library(of[0]) for of in ways if len({row["algorithm"] for row in of}) > 1}
    yield Section("figures", "Figures", [_table(sizes, several) for sizes in series])
    made = Points([*head(document), *document["notes"]])
    yield Section("made", "How this was measured", [made, Code([document["command"]])])


def _sizes(rows: Sequence[Row]) -> list[Size]:
    """Return the sizes at which the plan's choice was measured."""
    calls = sorted(grouped(rows, lambda row: int(row["size"])), key=lambda call: int(call[0]["size"]))
    pairs = [(call, *compared(call)) for call in calls]
    return [Size(ours, best, _others(call)) for call, ours, best in pairs if ours is not None]


def _others(call: Sequence[Row]) -> dict[str, Row]:
    right = [row for row in rivals(call) if not row["wrong"]]
    return {library(of[0]): min(of, key=median_us) for of in grouped(right, library)}


def _looks(document: dict[str, Any]) -> dict[str, str]:
    """Return the look of each name in the whole page."""
    names = dict.fromkeys([OURS, *map(library, rivals(document["rows"]))])
    return {name: f"mark c{at % COLOURS}" for at, name in enumerate(names)} | NOBODY


def _strip(sizes: Sequence[Size], looks: Mapping[str, str]) -> Panel:
    tiles = [Tile(size.fastest, looks[size.fastest], size.ratio, _bytes(size, about)) for size in sizes]
    return Panel(title(sizes[0].ours), xlabel=f"{OURS}: {', then '.join(_algorithms(sizes))}", tiles=tiles)


def _algorithms(sizes: Sequence[Size]) -> Iterator[str]:
    """Name what the plan picks, each with the last size of it; the last has none."""
    *parts, last = [(name, list(of)) for name, of in groupby(sizes, lambda size: str(size.ours["algorithm"]))]
    yield from (f"{name} to {_bytes(of[-1], about)}" for name, of in parts)
    yield last[0]


def _bytes(size: Size, write: Callable[[float], str] = size_text) -> str:
    return write(size.ours["size"]) if size.ours["size"] else "no data"


def _verdict(series: Sequence[Sequence[Size]]) -> str:
    """Count who is the fastest."""
    found = Counter(size.fastest for sizes in series for size in sizes)
    calls = found.total() - found[ALONE]
    if not calls:
        return "Nothing can be compared: no call has both commlib's time, by its plan, and that of another library."
    won = [f"{name} in {count}" for name, count in found.most_common() if name not in (OURS, *NOBODY)]
    said = [f"commlib is the fastest in {found[OURS]}", *won]
    return f"Of {counted(calls, 'call')}, {', '.join(said)}; {found[LEVEL]} {LEVEL}, {found[UNCLEAR]} {UNCLEAR}."


def _problems(document: dict[str, Any]) -> Iterator[str]:
    """Say what the strips do not show."""
    yield from (line.removeprefix("# ") for line in unfinished(document))
    yield from (note for note in document["notes"] if note.startswith("skipped: peer "))
    if count := document["out_of_bounds"]["count"]:
        yield f"{counted(count, 'wrong element')} in this run."
    shown = {series_of(row) for row in chosen(document["rows"])}
    left_out = [title(of[0]) for of in grouped(document["rows"], series_of) if series_of(of[0]) not in shown]
    if left_out:
        yield f"Not drawn, because the plan's choice was not measured: {'; '.join(left_out)}."


def _table(sizes: Sequence[Size], several: set[str]) -> Grid:
    """Return the figures of a collective; of a library with several ways, each figure names its own."""
    names = dict.fromkeys(name for size in sizes for name in size.others)
    columns = [
        Column("size", _bytes),
        Column("fastest", lambda size: size.fastest, left=True),
        Column("ratio", lambda size: size.ratio, unit="best other / commlib"),
        Column("commlib", lambda size: fitted(median_us(size.ours), 9), unit="µs"),
        Column("by its algorithm", lambda size: size.ours["algorithm"], left=True),
        *(Column(name, partial(_theirs, name, name in several), unit="µs") for name in names),
    ]
    return Grid(title(sizes[0].ours), columns, sizes, _tone)


def _theirs(name: str, named: bool, size: Size) -> str:
    row = size.others.get(name)
    return "-" if row is None else fitted(median_us(row), 9) + f" {row['algorithm']}" * named


def _tone(size: Size) -> str:
    return GOOD if size.fastest == OURS else "" if size.fastest in NOBODY else WARN
