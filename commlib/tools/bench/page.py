"""The page that ends a run of all collectives: a line for each, who is faster, which plan is in force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.rows import FASTER, measured, median_us, rivals, steady, type_text
from commlib.tools.bench.which import Call, calls, head, nearest
from commlib.tools.report.figures import fitted, ratio_text, size_text
from commlib.tools.report.table import fold
from commlib.tools.report.view import unfinished

NAME, TIME, RATIO = 20, 8, 7  # characters of a collective, a time, and what follows it
NOISY = "noisy"  # in the place of a ratio
SIZES, NAMED = 6, 6  # at most: columns, and calls that others win


def lines(document: dict[str, Any], width: int) -> list[str]:
    """Return the page, no wider than the terminal; it is one screen of fifty lines for all collectives."""
    series = calls(document)
    return [
        *_folded(head(document), width),
        "",
        *_table(document, series, width),
        "",
        *_folded([*_findings(document, series), *(line.removeprefix("# ") for line in unfinished(document))], width),
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


def _table(document: dict[str, Any], series: Sequence[Sequence[Call]], width: int) -> Iterator[str]:
    asked = document["config"]["sizes"]
    room, last = min(SIZES, max(1, (width - NAME) // (TIME + RATIO))), len(asked) - 1
    sizes = dict.fromkeys(asked[-(-at * last // max(room - 1, 1))] for at in range(room))
    yield from _folded(["us per call by the plan, then how many times as long the best other takes"], width)
    yield (" " * NAME + "".join(f"{_bytes(size):>{TIME}}{' ' * RATIO}" for size in sizes)).rstrip()
    several = len({of[0].ours["type"] for of in series}) > 1
    for of in series:
        op, kind = of[0].ours["op"], type_text(of[0].ours["type"])
        at = {nearest(call.ours["size"], asked): call for call in of}
        cells = [_cell(of[0])] if not of[0].ours["size"] else [_cell(at.get(size)) for size in sizes]  # a barrier
        yield f"{(f'{op} {kind}' if several else op)[: NAME - 1]:{NAME}}{''.join(cells)}".rstrip()


def _cell(call: Call | None) -> str:
    if call is None:
        return f"{'-':>{TIME}} {'':{RATIO - 1}}"
    return f"{fitted(median_us(call.ours), TIME - 1):>{TIME}} {_ratio(call) if call.best else '-':{RATIO - 1}}"


def _ratio(call: Call, inverse: bool = False) -> str:
    """Return how many times as long the best other takes, or commlib; blocks that do not agree give none."""
    if call.best is None or not steady(call.best):
        return NOISY
    ratio = median_us(call.best) / median_us(call.ours)
    return f"{ratio_text(1 / ratio if inverse else ratio)}x"


def _findings(document: dict[str, Any], series: Sequence[Sequence[Call]]) -> Iterator[str]:
    rows, config = measured(document["rows"]), document["config"]
    values = f"{counted(document['out_of_bounds']['count'], 'wrong element')}; {counted(len(rows), 'row')} compared"
    yield f"values: {values if config['check'] else 'not compared'}"
    pairs = [
        (median_us(call.ours) / median_us(call.best), call, call.best) for of in series for call in of if call.best
    ]
    won = [
        f"{call.ours['op']} {_bytes(call.ours['size'])} ({best['algorithm']}, {_ratio(call, inverse=True)})"
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


def _bytes(size: int) -> str:
    text = size_text(size)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"
