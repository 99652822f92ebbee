"""COMMLIB_METRICS: what a rank has done and waited for, in a file as Prometheus reads it (its text format)."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from commlib import env
from commlib.debug.jobs import Job, Rank, look
from commlib.debug.record import Slot

EVERY_S = 5.0
_LOG = logging.getLogger("commlib")
_FAMILIES = {
    "calls_total": ("counter", "Collectives that the rank has entered."),
    "large_calls_total": ("counter", "Collectives of 64 KiB and more that have ended, by operation."),
    "large_bytes_total": ("counter", "Bytes of these: elements of the call times their size."),
    "large_seconds_total": ("counter", "Time in these, waits for other ranks included."),
    "waits_total": ("counter", "Waits for a peer that outlasted the spin."),
    "wait_seconds_total": ("counter", "Time in these waits."),
    "waiting_seconds": ("gauge", "How long the longest wait under way has lasted; 0: there is none."),
    "ended": ("gauge", "1: an error has ended the communicator."),
}
_FAILED: dict[int, bool] = {}  # by the process whose file is written: whether the last attempt failed


def start() -> None:
    """Write the file of this rank every few seconds from now on, and when the process ends."""
    if not env.METRICS.get() or os.getpid() in _FAILED:
        return
    _FAILED.clear()  # a forked child has its parent's entry, and none of its threads
    _FAILED[os.getpid()] = False
    threading.Thread(target=_serve, name="commlib-metrics", daemon=True).start()
    atexit.register(write)


def _serve() -> None:
    while os.getpid() in _FAILED:
        write()
        time.sleep(EVERY_S)


def write() -> bool:
    """Write the file; return whether that worked. There is one warning until it works again."""
    pid = os.getpid()
    if pid not in _FAILED:
        return False
    job = look([pid])
    rank = job.ranks.get(pid)
    if rank is None or not rank.slots:
        return True
    try:
        _replace(path_of(env.METRICS.get(), rank.number), metrics_text(job, rank))
    except (OSError, ValueError) as error:
        if not _FAILED[pid]:
            named, text = env.METRICS.get(), "%s=%s: the file of rank %d cannot be written: %s; it is tried again"
            _LOG.warning(text, env.METRICS.name, named, rank.number, error)
        _FAILED[pid] = True
        return False
    _FAILED[pid] = False
    return True


def _replace(path: Path, text: str) -> None:
    """Write a file that readers never see in part."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with made.open("x", encoding="utf-8") as file:  # a link that somebody put there is not followed
            file.write(text)
        made.replace(path)
    except OSError:
        with suppress(OSError):
            made.unlink()
        raise


def path_of(named: str, rank: int) -> Path:
    """Return the file of a rank: {rank} in the name stands for its number, which else goes before the suffix."""
    if "{rank}" in named:
        return Path(named.replace("{rank}", str(rank)))
    path = Path(named)
    return path.with_name(f"{path.stem}.{rank}{path.suffix}")


def metrics_text(job: Job, rank: Rank) -> str:
    samples = [sample for number, slot in enumerate(rank.slots, 1) for sample in _samples(job, rank, slot, number)]
    lines = []
    for name, (kind, text) in _FAMILIES.items():
        lines += [f"# HELP commlib_{name} {text}", f"# TYPE commlib_{name} {kind}"]
        lines += [f"commlib_{name}{{{labels}}} {value:.9g}" for family, labels, value in samples if family == name]
    return "\n".join(lines) + "\n"


def _samples(job: Job, rank: Rank, slot: Slot, number: int) -> Iterator[tuple[str, str, float]]:
    base = {"rank": rank.number, "communicator": number, "ranks": slot.world, "backend": slot.backend}
    yield "calls_total", _labels(base), slot.entered
    for op, total in slot.large.items():
        labels = _labels({**base, "op": op})
        yield "large_calls_total", labels, total.calls
        yield "large_bytes_total", labels, total.bytes
        yield "large_seconds_total", labels, total.ns / 1e9
    for at, peer in enumerate(slot.peers):
        if at != slot.rank:
            labels = _labels({**base, "peer": job.name(slot, at)})
            yield "waits_total", labels, peer.waits
            yield "wait_seconds_total", labels, peer.waited_ns / 1e9
    yield "waiting_seconds", _labels(base), max((job.seconds_since(wait.since_ns) for wait in slot.waits), default=0.0)
    yield "ended", _labels({**base, "kind": slot.ended_kind}), bool(slot.ended_kind)


def _labels(values: Mapping[str, object]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())
