"""What differs between two documents of `commlib bench`: which rows, by how much, and whether they compare at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
Rows = dict[tuple[Any, ...], Row]  # by KEYS


@dataclass(frozen=True)
class Pair:
    """The same call in both runs."""

    before: Row
    after: Row
    threshold: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes in the second run."""
        return median_us(self.after) / median_us(self.before)

    @property
    def beyond(self) -> bool:
        """Whether the medians differ by more than the threshold."""
        return not 1 / (1 + self.threshold) <= self.ratio <= 1 + self.threshold

    @property
    def apart(self) -> bool:
        """Whether the middle four fifths of the blocks of one run lie beyond those of the other."""
        a, b = self.before["time_us"], self.after["time_us"]
        return bool(b["p10"] > a["p90"] or b["p90"] < a["p10"])

    @property
    def verdict(self) -> str:
        """Say what became of the call: one of VERDICTS."""
        if (self.after["wrong"] or 0) > (self.before["wrong"] or 0):
            return "wrong"
        if not (self.beyond and self.apart):
            return "same"
        return "worse" if self.ratio > 1 else "better"


@dataclass(frozen=True)
class Difference:
    """The rows of both runs, those of one only, and what speaks against comparing them."""

    names: tuple[str, str]
    threshold: float
    pairs: tuple[Pair, ...]
    only: tuple[list[Row], list[Row]]
    warnings: tuple[str, ...]

    @property
    def regressions(self) -> int:
        """How many rows of ours became slower or wrong; what other libraries do is none of our failures."""
        return sum(pair.after["ours"] and pair.verdict in ("wrong", "worse") for pair in self.pairs)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Sum up the rows of ours and of others, where there are any: verdicts, and the geometric mean of ratios."""
        sides = {name: [pair for pair in self.pairs if pair.after["ours"] == ours] for name, ours in SIDES}
        return {name: _summed(pairs) for name, pairs in sides.items() if pairs}

    def listed(self, every: bool) -> list[Pair]:
        """Return what is worth a line: all, or what differs."""
        return [pair for pair in self.pairs if every or pair.verdict != "same"]

    def document(self, every: bool) -> Document:
        """Return all of it for programs."""
        return {
            "schema": "commlib.bench.compare",
            "version": 1,
            "files": dict(zip("ab", self.names, strict=True)),
            "threshold": self.threshold,
            "warnings": self.warnings,
            "rows": [_flat(pair) for pair in self.listed(every)],
            "only_in": {name: [_key(row) for row in rows] for name, rows in zip("ab", self.only, strict=True)},
            "regressions": self.regressions,
            "summary": self.summary(),
        }


def difference(before: tuple[str, Document], after: tuple[str, Document], threshold: float) -> Difference:
    """Match the rows of two named documents; two that share none cannot be compared."""
    (name_a, a), (name_b, b) = before, after
    rows_a, rows_b = _by_key(a), _by_key(b)
    pairs = tuple(Pair(rows_a[key], row, threshold) for key, row in rows_b.items() if key in rows_a)
    if not pairs:
        sides = f"{name_a} ({_content(a)}) and {name_b} ({_content(b)})"
        raise ValueError(f"{sides} share no row: measure the same in both")
    only = _without(rows_a, rows_b), _without(rows_b, rows_a)
    return Difference((name_a, name_b), threshold, pairs, only, tuple(_warnings(a, b)))


def _without(rows: Rows, others: Rows) -> list[Row]:
    return [row for key, row in rows.items() if key not in others]


def _summed(pairs: Sequence[Pair]) -> dict[str, Any]:
    verdicts = [pair.verdict for pair in pairs]
    return {
        "rows": len(pairs),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in VERDICTS},
        "within_spread": sum(pair.beyond and not pair.apart for pair in pairs),
        "mean_ratio": math.exp(sum(math.log(pair.ratio) for pair in pairs) / len(pairs)),
    }


def _flat(pair: Pair) -> Row:
    times = {"a_us": median_us(pair.before), "b_us": median_us(pair.after)}
    return {**_key(pair.after), **times, "ratio": round(pair.ratio, 4), "verdict": pair.verdict}


def _key(row: Row) -> Row:
    return {key: row[key] for key in KEYS}


def _by_key(document: Document) -> Rows:
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
