"""The # lines of `commlib profile`: what is measured and how above the table, what follows from it below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from commlib.counts import counted
from commlib.tools.baselines.kernels.case import OURS
from commlib.tools.report.document import Row
from commlib.tools.report.figures import about, ratio_text
from commlib.tools.report.view import grouped


def title(row: Row, pattern: str | None = None) -> str:
    """Name the series of a row: store fp8, dim 128, bfloat16, random, cold, CUDA graph."""
    words = [f"{row['kernel']} {row['variant']}".strip(), f"dim {row['dim']}", row["type"]]
    words += [row["pattern"] if pattern is None else pattern, row["heat"]]
    words += ["CUDA graph"] if row["mode"] == "graph" else []
    return ", ".join(filter(None, words))


def opening(document: dict[str, Any]) -> list[str]:
    """Return the lines above the table; the document may have no rows yet."""
    config, machine = document["config"], document["fingerprint"]
    on_gpu = config["device"] == "cuda"
    where = machine["device"] if on_gpu else f"{machine['cpu']}, {config['threads']} thread"
    cuda = f"CUDA {machine['cuda']}, driver {machine['driver']}, " if on_gpu and machine.get("cuda") else ""
    lines = [
        f"commlib {machine['commlib']} profile {config['kernel']}: {where}",
        f"torch {machine['torch']}, {cuda}Python {machine['python']}, Linux {machine['kernel']}",
        f"cases: {config['cases']}, measured for about {config['seconds']:g} s after preparation; values are compared",
        *(_on_gpu(config) if on_gpu else ["time: calls back to back, median of interleaved blocks"]),
        "rate: bytes read and written; %copy: 100 is torch's copy_ of as many bytes; copies and probes are not peers",
        "ratio: time of a call over ours, with its 95 % interval; the line of ours (*) has the best peer's",
    ]
    return [f"# {line}" for line in lines]


def _on_gpu(config: dict[str, Any]) -> Iterator[str]:
    cold = (
        f"cold: sets in rotation, {about(config['cold_bytes'])} in all, at most {counted(config['most_sets'], 'set')}"
    )
    yield "time: a call in a replayed CUDA graph, median of interleaved replays; host, wall: eager calls back to back"
    yield cold + ("; the cache is flushed before each replay" if config["flush"] else "")


def closing(document: dict[str, Any]) -> list[str]:
    """Return the lines below the table."""
    rows, found, copy = document["rows"], document["out_of_bounds"], document["copy"]
    lines = [f"copy: {copy['gbps']:.1f} GB/s at best, of {about(copy['bytes'])} read and written"] if copy else []
    lines += [*_slower(rows), *_small_sets(document), *document["notes"], *_skipped(rows)]
    lines += [f"Out of bounds values : {found['count']} {'OK' if found['okay'] else 'FAILED'}"]
    return ["#", *(f"# {line}" for line in lines)]


def _slower(rows: Sequence[Row]) -> Iterator[str]:
    """Name the peers that beat ours, where the interval leaves no doubt."""
    ours = [row for row in rows if row["role"] == OURS and row["versus"]]
    # A second line of ours is compared with the first, which is no peer.
    sure = [row for row in ours if row["versus"]["high"] < 1 and row["versus"]["of"] != row["candidate"]]
    for lost in grouped(sure, lambda row: row["versus"]["of"]):
        places = [f"n {row['n']}, dim {row['dim']}, {row['pattern']}, {row['heat']}" for row in lost]
        found = [f"{ratio_text(row['versus']['ratio'])} at {place}" for row, place in zip(lost, places, strict=True)]
        yield f"{lost[0]['versus']['of']} is faster than ours: {'; '.join(found)}"


def _small_sets(document: dict[str, Any]) -> Iterator[str]:
    """Name the cold cases that were not: their sets are too small to fill the cache."""
    config = document["config"]
    cold = [row for row in document["rows"] if row["heat"] == "cold"]
    small = sorted({row["n"] for row in cold if row["sets"] * row["bytes"] < config["cold_bytes"]})
    if small and config["device"] == "cuda" and not config["flush"]:
        numbers = ", ".join(map(str, small))
        yield f"n {numbers}: with short rows, all sets together fit into the cache; --flush empties it"


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    left_out = [row for row in rows if row["skipped"]]
    for same in grouped(left_out, lambda row: (row["candidate"], row["skipped"])):
        times = f" ({len(same)} cases)" if len(same) > 1 else ""
        yield f"skipped {same[0]['candidate']}: {same[0]['skipped']}{times}"
