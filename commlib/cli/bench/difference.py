"""What differs between two documents of `commlib bench`: which rows, by how much, and whether they compare at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from commlib.cli.bench.rows import measured, median_us
from commlib.report.document import Row

KEYS = ("op", "size", "type", "redop", "root", "algorithm", "placement", "in_place", "mode")
SIDES = (("ours", True), ("others", False))
VERDICTS = ("wrong", "worse", "better", "same")
# What makes times of two runs different things, in the fingerprint and in the configuration, and what may.
MACHINE = ("cpu", "cores", "machine", "gpu", "gpus")
SETUP = ("ranks", "backend", "mode", "cores_per_rank", "check")
SOFTWARE = ("kernel", "python", "torch", "commlib", "settings", "driver", "nccl", "cuda")


@dataclass(frozen=True)
class Pair:
    """The same call in both runs."""

    before: Row
    after: Row
    verdict: str
    within_spread: bool  # beyond the threshold, but the blocks of the runs overlap

    @property
    def ratio(self) -> float:
        """How many times as long it takes in the second run."""
        return median_us(self.after) / median_us(self.before)


@dataclass(frozen=True)
class Summary:
    """How many pairs of each verdict, and the geometric mean of their ratios."""

    rows: int
    verdicts: dict[str, int]
    within_spread: int
    mean_ratio: float


@dataclass(frozen=True)
class Difference:
    """The rows of both runs, those of one only, and what speaks against comparing them."""

    names: tuple[str, str]
    threshold: float
    pairs: tuple[Pair, ...]
    only: tuple[tuple[Row, ...], tuple[Row, ...]]
    warnings: tuple[str, ...]

    @property
    def regressions(self) -> int:
        """How many rows of ours became slower or wrong; what other libraries do is none of our failures."""
        return sum(pair.after["ours"] and pair.verdict in ("wrong", "worse") for pair in self.pairs)

    def summary(self, ours: bool) -> Summary | None:
        """Sum up the rows of ours, or of other libraries, if there are any."""
        pairs = [pair for pair in self.pairs if pair.after["ours"] == ours]
        if not pairs:
            return None
        mean = math.exp(sum(math.log(pair.ratio) for pair in pairs) / len(pairs))
        counts = {verdict: sum(pair.verdict == verdict for pair in pairs) for verdict in VERDICTS}
        return Summary(len(pairs), counts, sum(pair.within_spread for pair in pairs), mean)

    def listed(self, every: bool) -> list[Pair]:
        """Return what is worth a line: all, or what differs."""
        return [pair for pair in self.pairs if every or pair.verdict != "same"]

    def document(self, every: bool) -> dict[str, Any]:
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
            "summary": {name: asdict(found) for name, ours in SIDES if (found := self.summary(ours))},
        }


def _flat(pair: Pair) -> dict[str, Any]:
    times = {"a_us": median_us(pair.before), "b_us": median_us(pair.after)}
    return {**_key(pair.after), **times, "ratio": round(pair.ratio, 4), "verdict": pair.verdict}


def _key(row: Row) -> dict[str, Any]:
    return {key: row[key] for key in KEYS}


def difference(before: tuple[str, dict[str, Any]], after: tuple[str, dict[str, Any]], threshold: float) -> Difference:
    """Match the rows of two named documents; two that share none cannot be compared."""
    (name_a, a), (name_b, b) = before, after
    rows_a, rows_b = _by_key(a), _by_key(b)
    pairs = tuple(_pair(rows_a[key], row, threshold) for key, row in rows_b.items() if key in rows_a)
    if not pairs:
        raise ValueError(
            f"{name_a} ({_content(a)}) and {name_b} ({_content(b)}) share no row: measure the same in both"
        )
    only_a = tuple(row for key, row in rows_a.items() if key not in rows_b)
    only_b = tuple(row for key, row in rows_b.items() if key not in rows_a)
    return Difference((name_a, name_b), threshold, pairs, (only_a, only_b), tuple(_warnings(a, b)))


def _by_key(document: dict[str, Any]) -> dict[tuple[Any, ...], Row]:
    rows = (row for row in measured(document["rows"]) if median_us(row))
    return {tuple(row[key] for key in KEYS): row for row in rows}


def _content(document: dict[str, Any]) -> str:
    rows = measured(document["rows"])
    ops = ", ".join(sorted({row["op"] for row in rows}))
    return f"{len(rows)} rows of {ops}" if rows else "no rows"


def _pair(before: Row, after: Row, threshold: float) -> Pair:
    ratio = median_us(after) / median_us(before)
    beyond = ratio > 1 + threshold or ratio < 1 / (1 + threshold)
    apart = _apart(before, after)
    verdict = "same"
    if (after["wrong"] or 0) > (before["wrong"] or 0):
        verdict = "wrong"
    elif beyond and apart:
        verdict = "worse" if ratio > 1 else "better"
    return Pair(before, after, verdict, beyond and not apart)


def _apart(before: Row, after: Row) -> bool:
    """Whether the middle four fifths of the blocks of one run lie beyond those of the other."""
    a, b = before["time_us"], after["time_us"]
    return bool(b["p10"] > a["p90"] or b["p90"] < a["p10"])


def _warnings(a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
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


def _changed(a: dict[str, Any], b: dict[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {_side(a.get(key))} / {_side(b.get(key))}" for key in keys if a.get(key) != b.get(key))


def _side(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return "none" if value is None else str(value)
