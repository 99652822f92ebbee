"""What differs between two documents of `commlib bench`: which rows, by how much, and whether they compare at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from commlib.bench.rows import measured, median_us
from commlib.report.document import Row

KEYS = ("op", "size", "type", "redop", "root", "algorithm", "placement", "in_place", "mode")
SIDES = (("ours", True), ("others", False))
VERDICTS = ("wrong", "worse", "better", "same")
# What makes times of two runs different things, in the fingerprint and in the configuration, and what may.
MACHINE = ("cpu", "cores", "machine", "gpu", "gpus")
SETUP = ("ranks", "backend", "mode", "cores_per_rank", "check")
SOFTWARE = ("kernel", "python", "torch", "commlib", "settings", "driver", "nccl", "cuda")
Document = dict[str, Any]


def difference(before: tuple[str, Document], after: tuple[str, Document], threshold: float) -> Document:
    """Match the rows of two named documents; two that share none cannot be compared.

    A row is that of the second run, with the times of both and a verdict: more than the JSON of a comparison has.
    """
    (name_a, a), (name_b, b) = before, after
    rows_a, rows_b = _by_key(a), _by_key(b)
    rows = [_pair(rows_a[key], row, threshold) for key, row in rows_b.items() if key in rows_a]
    if not rows:
        sides = f"{name_a} ({_content(a)}) and {name_b} ({_content(b)})"
        raise ValueError(f"{sides} share no row: measure the same in both")
    of_side = {name: [row for row in rows if row["ours"] == ours] for name, ours in SIDES}
    return {
        "schema": "commlib.bench.compare",
        "version": 1,
        "files": {"a": name_a, "b": name_b},
        "threshold": threshold,
        "warnings": list(_warnings(a, b)),
        "rows": rows,
        "only_in": {
            "a": [_key(row) for key, row in rows_a.items() if key not in rows_b],
            "b": [_key(row) for key, row in rows_b.items() if key not in rows_a],
        },
        # What other libraries do is none of our failures.
        "regressions": sum(row["ours"] and row["verdict"] in ("wrong", "worse") for row in rows),
        "summary": {name: _summed(of) for name, of in of_side.items() if of},
    }


def _pair(before: Row, after: Row, threshold: float) -> Row:
    """Return a row of both runs; `apart`: the middle four fifths of the blocks of one lie beyond those of the other."""
    a, b = before["time_us"], after["time_us"]
    ratio = b["p50"] / a["p50"]
    beyond = not 1 / (1 + threshold) <= ratio <= 1 + threshold
    apart = b["p10"] > a["p90"] or b["p90"] < a["p10"]
    verdict = ("worse" if ratio > 1 else "better") if beyond and apart else "same"
    if (after["wrong"] or 0) > (before["wrong"] or 0):
        verdict = "wrong"
    within = beyond and not apart
    return {**after, "a_us": a["p50"], "b_us": b["p50"], "ratio": ratio, "verdict": verdict, "within_spread": within}


def _summed(rows: Sequence[Row]) -> dict[str, Any]:
    """Count the verdicts, and return the geometric mean of the ratios."""
    verdicts = [row["verdict"] for row in rows]
    return {
        "rows": len(rows),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in VERDICTS},
        "within_spread": sum(row["within_spread"] for row in rows),
        "mean_ratio": math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows)),
    }


def _key(row: Row) -> Row:
    return {key: row[key] for key in KEYS}


def _by_key(document: Document) -> dict[tuple[Any, ...], Row]:
    rows = (row for row in measured(document["rows"]) if median_us(row))
    return {tuple(_key(row).values()): row for row in rows}


def _content(document: Document) -> str:
    rows = measured(document["rows"])
    return f"{len(rows)} rows of {', '.join(sorted({row['op'] for row in rows}))}" if rows else "no rows"


def _warnings(a: Document, b: Document) -> Iterator[str]:
    for what, part, keys in (("machines", "fingerprint", MACHINE), ("runs", "config", SETUP)):
        if changed := _changed(a[part], b[part], keys):
            yield f"{what} differ: {changed}: times are not comparable"
    if changed := _changed(a["fingerprint"], b["fingerprint"], SOFTWARE):
        yield f"software differs: {changed}"
    if changed := _changed(a["environment"], b["environment"], sorted({*a["environment"], *b["environment"]})):
        yield f"environment differs: {changed}"
    if a["plan"]["digest"] != b["plan"]["digest"]:
        sides = (f"{plan['digest']} from {plan['source']}" for plan in (a["plan"], b["plan"]))
        yield f"plans differ: {' / '.join(sides)}"
    for name, document in (("A", a), ("B", b)):
        if not document["complete"]:
            yield f"{name} is not complete: {document['ended'] or 'ended early'}"


def _changed(a: Document, b: Document, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {_side(a.get(key))} / {_side(b.get(key))}" for key in keys if a.get(key) != b.get(key))


def _side(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return "none" if value is None else str(value)
