"""Documents of `commlib bench`, made up: what a run on two ranks writes, without the run."""

import json
from pathlib import Path
from typing import Any

SIZES = tuple(8 << (3 * step) for step in range(8))  # 8 B to 16 MiB
# Label: placement, ours, µs of any call, GB/s of a long one.
WAYS = {
    "shm_oneshot": ("plain", True, 0.9, 2.4),
    "shm_twoshot": ("plain", True, 2.1, 3.3),
    "lsa_ll128_exchange": ("plain", True, 4.0, 2.9),
    "shm_symmetric": ("symmetric", True, 1.2, 6.5),
    "torch": ("plain", False, 180.0, 0.9),
    "mpich": ("plain", False, 1.1, 1.8),
}
SOFTWARE = {"kernel": "6.1", "python": "3.11.7", "torch": "2.13.0", "commlib": "0.1.0"}
MACHINE = {"cpu": "A CPU", "cores": 2, "machine": "x86_64", **SOFTWARE, "settings": {"OMP_NUM_THREADS": "1"}}
PROTOCOL = {"block_us": 200.0, "blocks": [5, 41], "iterations": None, "warmup": 3, "buffers": 3}
RULES = {"plain": "rules[0][{}]", "symmetric": "rules[3][{}]"}


def document(*ops: str, sizes: Any = SIZES, **changes: Any) -> dict[str, Any]:
    """Return a document with rows of these operations, `changes` on top of its first level."""
    series = [_series(op, sizes) for op in ops or ("all_reduce",)]
    rows = [row for of_op in series for row in of_op]
    return {
        "schema": "commlib.bench",
        "version": 1,
        "command": f"commlib bench {' '.join(ops)}".strip(),
        "created": "2026-01-01T00:00:00+00:00",
        "complete": True,
        "ended": "",
        "fingerprint": {**MACHINE},
        "environment": {"OMP_NUM_THREADS": "1"},
        "config": config(sizes),
        "plan": {"digest": "0123456789ab", "source": "shm.json"},
        "rows": rows,
        "notes": ["skipped: band of float32 is not defined"],
        "out_of_bounds": {"count": 0, "okay": True},
        **changes,
    }


def config(sizes: tuple[int, ...]) -> dict[str, Any]:
    ranks = {"ranks": 2, "backend": "shm", "mode": "eager", "cores_per_rank": 1}
    asked = {"sizes": list(sizes), "check": True, "seconds": 5.0, "peers": ["torch", "mpich"]}
    return {**ranks, **PROTOCOL, **asked}


def _series(op: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        chosen = {"plain": "shm_oneshot" if size <= 4096 else "shm_twoshot", "symmetric": "shm_symmetric"}
        for name, (placement, ours, _, _) in WAYS.items():
            picked = ours and chosen[placement] == name
            rule = RULES[placement].format(int(size > 4096)) if picked else None
            for in_place in (False, True):
                shared = {"op": op, "size": size, "count": size // 4, "type": "float32"}
                shared |= {"redop": None if op == "broadcast" else "sum", "root": 0 if op == "broadcast" else None}
                shared |= {"algorithm": name, "ours": ours, "placement": placement, "chosen": picked, "rule": rule}
                shared |= {"why": None, "mode": "eager", "in_place": in_place}
                rows.append({**shared, **_figures(name, size, in_place)})
    return rows


def _figures(name: str, size: int, in_place: bool) -> dict[str, Any]:
    if name == "mpich" and in_place:
        return {"skipped": "MPICH has no in-place form of it"}
    time_us = _time(name, size, in_place)
    return {
        "time_us": times(time_us),
        "iterations": max(1, int(200 / time_us)),
        "blocks": 41,
        "algbw": size / time_us / 1e3,
        "busbw": size / time_us / 1e3,
        "wrong": 0,
    }


def times(time_us: float) -> dict[str, float]:
    """Return percentiles around a median, a few percent apart."""
    factors = {"p0": 0.97, "p10": 0.98, "p50": 1.0, "p90": 1.03, "p100": 1.4}
    return {name: time_us * factor for name, factor in factors.items()}


def _time(name: str, size: int, in_place: bool) -> float:
    _, _, latency_us, gbps = WAYS[name]
    return (latency_us + size / gbps / 1e3) * (0.9 if in_place else 1.0)


def saved(folder: Path, found: Any, name: str = "report.json") -> Path:
    """Write a document, or any text, to a file."""
    path = folder / name
    path.write_text(found if isinstance(found, str) else json.dumps(found, indent=1), encoding="utf-8")
    return path
