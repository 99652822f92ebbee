"""The tables of a peers run: times of each competitor, and ours against the better of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placement import placement

HEAD = ("bytes", "ours", "Open MPI", "ours", "MPICH", "gloo", "symm.", "× MPI", "× gloo", "symm. ×", "× MPI sym")
Rows = dict[tuple[str, str], dict[str, Any]]  # (MPI, candidate) → row


def tables(document: dict[str, Any]) -> str:
    """Return everything a run found as text."""
    return "\n".join(_lines(document))


def _lines(document: dict[str, Any]) -> Iterator[str]:
    machine = document["fingerprint"]
    yield f"# {document['command']}"
    yield f"# {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, torch {machine['torch']}"
    bound = f"{document['ranks']} ranks, bound to {document['bind']}"
    yield f"# {bound}; µs, medians; ratios within one job, > 1: ours is faster"
    for job in document["jobs"]:
        flags = sorted(ns for row in job["rows"] for ns in row["flag_ns"])
        where = f", a flag one way takes {flags[0]} to {flags[-1]} ns" if flags else ""
        yield f"# {job['mpi']}, {job['thread_level']}: {job['launcher']}{where}"
    series: dict[tuple[Any, ...], dict[int, Rows]] = {}
    for job in document["jobs"]:
        for row in job["rows"]:
            key = (row["op"], row["dtype"], row["in_place"])
            at = series.setdefault(key, {}).setdefault(row["bytes"], {})
            at[job["mpi"].partition(" ")[0], row["candidate"]] = row
    for (op, dtype, in_place), sizes in series.items():
        yield f"\n{op} {dtype}, {'in place' if in_place else 'out of place'}"
        yield _row(*HEAD) + "  cores"
        yield from (_series_row(size, rows) for size, rows in sizes.items())
    yield from _footer(document)


def _row(*cells: str) -> str:
    return " ".join(cell.rjust(9) for cell in cells)


def _series_row(size: int, rows: Rows) -> str:
    mpis = sorted({mpi for mpi, _ in rows}, key=lambda name: name != "Open")
    symmetric, gloo = (_mean(rows, mpis, name) for name in ("symmetric", "torch"))
    jobs = [_time(rows, mpi, candidate) for mpi in ("Open", "MPICH") for candidate in ("ours", "mpi")]
    places = [placement(rows[mpi, "ours"]["flag_ns"]) for mpi in mpis]
    where = " | ".join(places) if any(places) else ""
    wrong = sum(row["wrong"] or 0 for row in rows.values())
    return (
        _row(
            _bytes(size),
            *map(_us, jobs),
            _us(gloo),
            _us(symmetric),
            _factor(_ratios(rows, mpis, "mpi", "ours")),
            _factor(_ratios(rows, mpis, "torch", "ours")),
            _factor(_ratios(rows, mpis, "ours", "symmetric")),
            _factor(_ratios(rows, mpis, "mpi", "symmetric")),
        )
        + f"  {where}"
        + (f"  {wrong} WRONG" if wrong else "")
    )


def _time(rows: Rows, mpi: str, candidate: str) -> float | None:
    found = rows.get((mpi, candidate), {}).get("p50_us")
    return None if found is None else float(found)


def _mean(rows: Rows, mpis: list[str], candidate: str) -> float | None:
    times = [time for mpi in mpis if (time := _time(rows, mpi, candidate)) is not None]
    return sum(times) / len(times) if times else None


def _ratios(rows: Rows, mpis: list[str], theirs: str, ours: str) -> list[float]:
    pairs = [(_time(rows, mpi, theirs), _time(rows, mpi, ours)) for mpi in mpis]
    return [a / b for a, b in pairs if a is not None and b]


def _factor(ratios: list[float]) -> str:
    """Return the least favourable ratio: against the better of two competitors."""
    least = min(ratios, default=None)
    return "–" if least is None else f"{least:.2f}" if least < 10 else f"{least:.0f}"


def _us(time: float | None) -> str:
    return "–" if time is None else f"{time:.2f}" if time < 100 else f"{time:.0f}"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def _footer(document: dict[str, Any]) -> Iterator[str]:
    yield ""
    for job in document["jobs"]:
        calls = ", ".join(f"{name} {time:.2f}" for name, time in job["world_of_one_us"].items())
        waits = ", ".join(f"{name} {share:.0%}" for name, share in job["waiting_cpu_share"].items())
        yield f"{job['mpi']}: world of one, 8 B all_reduce, µs: {calls}; core used while waiting 50 ms: {waits}"


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text())))
