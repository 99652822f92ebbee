"""Tables of a GPU run: µs per candidate, the best peer against ours, and the goals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

K, M = 1 << 10, 1 << 20
# All-reduce in graphs, µs, by ranks and bytes: what this hardware should reach.
GOALS: dict[int, dict[int, float]] = {
    2: {K: 2.3, 16 * K: 2.5, 64 * K: 2.9, 256 * K: 3.9, M: 6.5, 4 * M: 16, 16 * M: 51, 64 * M: 195, 256 * M: 770},
    4: {K: 2.9, 16 * K: 3.4, 64 * K: 4.5, 256 * K: 7, M: 10, 4 * M: 23, 16 * M: 80, 64 * M: 300, 256 * M: 1130},
}
BEST_VARIANTS = 4
Row = dict[str, Any]


def tables(document: dict[str, Any]) -> str:
    """Return everything a run found as text."""
    return "\n".join(_lines(document))


def _lines(document: dict[str, Any]) -> Iterator[str]:
    rows, ranks = document["rows"], document["ranks"]
    machine = document["fingerprint"]
    yield f"# {document['command']}"
    yield f"# {ranks} × {machine.get('gpu', machine['cpu'])}, torch {machine['torch']}, NCCL {machine.get('nccl', '–')}"
    yield f"# plan {machine.get('plan', '')}; µs per call, medians of blocks, slowest rank"
    for op, mode in dict.fromkeys((row["op"], row["mode"]) for row in rows):
        part = [row for row in rows if row["op"] == op and row["mode"] == mode]
        yield f"\n{op} bfloat16 sum, {mode}"
        yield from _table(part, op, mode, ranks)
        if mode == "eager":
            yield f"\n{op}, eager: µs of the host for each call"
            yield from _host(part)
        if any(row["variant"] for row in part):
            yield f"\n{op}, {mode}: the best parameters"
            yield from _best_variants(part)
    yield from _left_out(rows)


def _table(rows: Sequence[Row], op: str, mode: str, ranks: int) -> Iterator[str]:
    labels = _labels(rows)
    goals = GOALS.get(ranks, {}) if op == "all_reduce" and mode == "graph" else {}
    yield _row("bytes", *labels, "best peer", "peer/auto", "goal" if goals else "") + "  auto runs"
    for size in dict.fromkeys(row["bytes"] for row in rows):
        found = {row["candidate"]: row for row in rows if row["bytes"] == size and not row["variant"]}
        ours = _time(found.get("auto"))
        right = {k: row for k, row in found.items() if not row["ours"] and not row.get("wrong")}
        peers = {k: t for k, row in right.items() if (t := _time(row)) is not None}
        best = min(peers, key=lambda label: peers[label], default="")
        ratio = f"{peers[best] / ours:.2f}" if best and ours else "–"
        cells = [_us(_time(found.get(label))) + _flag(found.get(label)) for label in labels]
        chosen = found.get("auto", {}).get("algorithm", "")
        yield _row(_bytes(size), *cells, best or "–", ratio, _goal(goals.get(size), ours)) + f"  {chosen}"


def _host(rows: Sequence[Row]) -> Iterator[str]:
    labels = _labels(rows)
    yield _row("bytes", *labels)
    for size in dict.fromkeys(row["bytes"] for row in rows):
        found = {row["candidate"]: row for row in rows if row["bytes"] == size}
        yield _row(_bytes(size), *(_us(found.get(label, {}).get("host_p50_us")) for label in labels))


def _best_variants(rows: Sequence[Row]) -> Iterator[str]:
    for size in dict.fromkeys(row["bytes"] for row in rows):
        at_size = [row for row in rows if row["bytes"] == size and row.get("p50_us")]
        best = sorted((row for row in at_size if row["variant"]), key=lambda row: row["p50_us"])
        auto = next((_us(row["p50_us"]) for row in at_size if row["candidate"] == "auto"), "–")
        yield f"{_bytes(size):>9}  auto {auto}; " + "; ".join(_named(row) for row in best[:BEST_VARIANTS])
        for name in dict.fromkeys(row["algorithm"] for row in best):
            yield f"{'':>9}    {_named(next(row for row in best if row['algorithm'] == name))}"


def _left_out(rows: Sequence[Row]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if "skipped" in row:
            reasons.setdefault((row["candidate"], row["skipped"]), []).append(row["bytes"])
    if reasons:
        yield "\nleft out"
    for (label, reason), sizes in reasons.items():
        yield f"  {label} at {len(sizes)} sizes from {_bytes(min(sizes))}: {reason}"
    for row in rows:
        if row.get("wrong"):
            yield f"WRONG: {row['op']} {_bytes(row['bytes'])} {row['candidate']}: {row['wrong']} elements"


def _labels(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["candidate"] for row in rows if not row["variant"]))


def _named(row: Row) -> str:
    return f"{row['candidate']} {_us(row['p50_us'])}{_flag(row)}"


def _time(row: Row | None) -> float | None:
    return None if row is None or row.get("p50_us") is None else float(row["p50_us"])


def _flag(row: Row | None) -> str:
    return "!" if row and row.get("wrong") else ""


def _goal(goal: float | None, ours: float | None) -> str:
    if goal is None or ours is None:
        return ""
    return f"{goal:g} {'ok' if ours <= goal else 'miss'}"


def _row(*cells: str) -> str:
    return " ".join(cell.rjust(14 if at else 9) for at, cell in enumerate(cells))


def _us(time: float | None) -> str:
    return "–" if time is None else f"{time:.2f}" if time < 100 else f"{time:.0f}"


def _bytes(size: int) -> str:
    for unit, name in ((M, "MiB"), (K, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())))
