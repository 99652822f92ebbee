"""The page that ends a run of all collectives: a line for each, who is faster, which plan is in force."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.rows import FASTER, compared, measured, median_us, rivals, series_of, steady, type_text
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, ratio_text, size_text
from commlib.tools.report.table import fold
from commlib.tools.report.view import grouped, unfinished

NAME, TIME, BESIDE = 20, 8, 7  # characters of a collective, a time, and what stands beside it
NOISY = "noisy"  # in the place of a ratio
MOST_SIZES = 6
MOST_NAMED = 6  # calls that others win


def lines(document: dict[str, Any], width: int) -> list[str]:
    """Return the page, no wider than the terminal; it is one screen of fifty lines for all collectives."""
    series = list(grouped(document["rows"], series_of))
    return [
        *_folded(head(document), width),
        "",
        *_table(document, series, width),
        "",
        *_folded([*_findings(document), *(line.removeprefix("# ") for line in unfinished(document))], width),
    ]


def where(path: Path | None, picture: Path | None, width: int) -> list[str]:
    """Say where the rest is; a path is not broken, as it is there to be copied."""
    if path is None:
        return _folded(["every row: --full; -o FILE.json keeps them, --plot FILE.png draws them"], width)
    again = [f"every row: commlib bench show {path}"] if path.suffix == ".json" else []
    return [f"results: {path}", *again, *([f"picture: {picture}"] if picture else [])]


def _folded(texts: Iterable[str], width: int) -> list[str]:
    """Break what is too long for the terminal; what is broken off is indented."""
    marked = fold((f"# {text}" for text in texts), width + 2)
    return [("  " if line.startswith("#   ") else "") + line.removeprefix("#   ").removeprefix("# ") for line in marked]


def head(document: dict[str, Any]) -> Iterator[str]:
    """Say what was measured, where, and by which plan."""
    config, machine = document["config"], document["fingerprint"]
    types = ", ".join(dict.fromkeys(row["type"] for row in document["rows"]))
    ranks = counted(config["ranks"], "rank")
    graphs = ", replayed CUDA graphs" if config["mode"] == "graph" else ""
    yield f"commlib {machine['commlib']} on {ranks} of backend {config['backend']}, {types}{graphs}"
    gpus = [f"{machine.get('gpus') or 1} x {machine['gpu']}"] if machine.get("gpu") else []
    yield ", ".join([*gpus, machine["cpu"], counted(machine["cores"], "core"), f"torch {machine['torch']}"])
    yield from _plan(document)


def _plan(document: dict[str, Any]) -> Iterator[str]:
    plan = document["plan"]
    match = plan.get("match", "shipped")
    name = f"plan {plan['source']} ({plan['digest']})"
    if match == "here":
        yield f"{name}, measured on this machine"
        return
    yield f"{name}: comes with commlib" if match == "shipped" else f"{name}: measured with {match}"
    ranks = document["config"]["ranks"]
    yield "not measured on this machine" + (f" → commlib tune -n {ranks}" if ranks > 1 else "")


def _table(document: dict[str, Any], series: Sequence[Sequence[Row]], width: int) -> Iterator[str]:
    asked = document["config"]["sizes"]
    sizes = _sizes(asked, min(MOST_SIZES, max(1, (width - NAME) // (TIME + BESIDE))))
    yield from _folded(["us per call by the plan, then how many times as long the best other takes"], width)
    heads = (f"{_words(size):>{TIME}} {'':{BESIDE - 1}}" for size in sizes)
    yield f"{'':{NAME}}{''.join(heads)}".rstrip()
    several = len({row["type"] for rows in series for row in rows}) > 1
    for rows in series:
        name = f"{rows[0]['op']} {type_text(rows[0]['type'])}" if several else rows[0]["op"]
        yield f"{name[: NAME - 1]:{NAME}}{''.join(_cells(rows, asked, sizes))}".rstrip()


def _sizes(asked: Sequence[int], room: int) -> list[int]:
    """Return as many sizes as there is room for, from the least to the largest."""
    last = len(asked) - 1
    return list(dict.fromkeys(asked[-(-at * last // max(room - 1, 1))] for at in range(room)))


def _cells(rows: Sequence[Row], asked: Sequence[int], sizes: Sequence[int]) -> Iterator[str]:
    calls = {int(of[0]["size"]): of for of in grouped(measured(rows), lambda row: int(row["size"]))}
    if set(calls) == {0}:  # a barrier
        yield _cell(calls[0])
        return
    at = {nearest(size, asked): call for size, call in calls.items()}
    for size in sizes:
        yield _cell(at[size]) if size in at else f"{'-':>{TIME}} {'':{BESIDE - 1}}"


def nearest(size: int, asked: Sequence[int]) -> int:
    """Return the size that was asked for: a call has whole elements for each rank, 12 B where 8 were asked for."""
    return min(asked, key=lambda each: abs(math.log((size + 1) / (each + 1))))


def _cell(call: Sequence[Row]) -> str:
    ours, best = compared(call)
    time = fitted(median_us(ours), TIME - 1) if ours else "-"
    return f"{time:>{TIME}} {_beside(ours, best):{BESIDE - 1}}"


def _beside(ours: Row | None, best: Row | None) -> str:
    if best is None or ours is None:
        return "-"
    return f"{ratio_text(median_us(best) / median_us(ours))}x" if steady(best) else NOISY


def _findings(document: dict[str, Any]) -> Iterator[str]:
    rows = measured(document["rows"])
    checked = document["config"]["check"]
    count = document["out_of_bounds"]["count"]
    values = f"{counted(count, 'wrong element')}; {counted(len(rows), 'row')} compared" if checked else "not compared"
    yield f"values: {values}"
    pairs = [pair for call in grouped(rows, lambda row: (series_of(row), row["size"])) if all(pair := compared(call))]
    won = [f"{_name(ours)} ({best['algorithm']}, {_by(best, ratio)})" for ours, best, ratio in _won(pairs)]
    others = ", ".join(dict.fromkeys(row["algorithm"] for row in rivals(rows)))
    if others:
        more = f" and {len(won) - MOST_NAMED} more" if len(won) > MOST_NAMED else ""
        yield f"others: {others}; faster than ours: {', '.join(islice(won, MOST_NAMED)) or 'none of them'}{more}"
    if any(not steady(best) for _, best in pairs if best):
        agree = document["config"].get("agree", 0.3)
        yield f"{NOISY}: the best other's blocks differ by more than {agree:.0%}, too much for a ratio"
    yield from document["notes"]


def _won(pairs: Sequence[tuple[Any, Any]]) -> Iterator[tuple[Row, Row, float]]:
    """Yield what another makes faster, and how many times; the worst for us first."""
    found = [(ours, best, median_us(ours) / median_us(best)) for ours, best in pairs]
    yield from (each for each in sorted(found, key=lambda each: -each[2]) if each[2] > FASTER)


def _by(best: Row, ratio: float) -> str:
    return f"{ratio_text(ratio)}x" if steady(best) else NOISY


def _name(row: Row) -> str:
    return f"{row['op']} {_words(row['size'])}"


def _words(size: int) -> str:
    text = size_text(size)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"
