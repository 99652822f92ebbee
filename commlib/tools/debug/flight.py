"""Dumps as PyTorch's flight recorder writes them: torch.distributed.flight_recorder.fr_trace reads them unchanged."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from commlib.debug.jobs import Job, Rank
from commlib.debug.record import Call, Slot

VERSION = "2.10"  # of torch's format
# How torch names an operation, and how many blocks of `count` elements go in and come out: 0 is one for each rank.
_NAMES = {
    "all_reduce": ("all_reduce", 1, 1),
    "all_reduce_rms_norm": ("all_reduce", 1, 1),
    "all_reduce_epilogue": ("all_reduce", 1, 1),
    "reduce": ("reduce", 1, 1),
    "broadcast": ("broadcast", 1, 1),
    "all_gather": ("_all_gather_base", 1, 0),
    "all_gatherv": ("_all_gather_base", 1, 1),
    "reduce_scatter": ("_reduce_scatter_base", 0, 1),
    "reduce_scatterv": ("REDUCE_SCATTER_coalesced", 1, 1),
    "all_to_all": ("all_to_all", 0, 0),
    "all_to_allv": ("all_to_all", 1, 1),
    "gather": ("gather", 1, 0),
    "scatter": ("scatter", 0, 1),
    "barrier": ("all_reduce_barrier", 1, 1),
}
Entry = dict[str, Any]
Members = tuple[int, ...]


def flights(job: Job) -> dict[int, bytes]:
    since = _since(job)
    dumps = {}
    for rank in job.ranks.values():
        rows = sorted(_rows(job, rank, since), key=lambda row: (row[1]["time_created_ns"], row[1]["collective_seq_id"]))
        if rank.slots:
            entries = [{"record_id": number, **entry} for number, (_, entry) in enumerate(rows)]
            groups = {
                entry["process_group"][0]: {
                    "name": entry["process_group"][0],
                    "desc": entry["process_group"][1],
                    "ranks": str(list(members)),
                }
                for members, entry in rows
            }
            dump = {"version": VERSION, "entries": entries, "pg_config": groups, "pg_status": {}, "rank": rank.number}
            dumps[rank.number] = pickle.dumps(dump)
    return dumps


def _rows(job: Job, rank: Rank, since: Mapping[str, int]) -> Iterator[tuple[Members, Entry]]:
    """Yield the calls of a rank, each with the ranks that make it, from where all of these have theirs."""
    for slot in rank.slots:
        order = list(job.communicators)
        if slot.closed or slot.id not in order:
            continue
        name = str(order.index(slot.id))
        members = tuple(job.name(slot, peer) for peer in range(slot.world))
        for call in slot.calls.values():
            if call.number >= since[name]:
                yield members, _entry(call, slot, name)
        for call in slot.messages.values():
            pair = _pair(slot, call, name)
            if call.root != slot.rank and call.stream >= since[pair]:
                yield tuple(members[at] for at in sorted((slot.rank, call.root))), _message(call, slot, pair)


def _since(job: Job) -> dict[str, int]:
    """Return, for each process group, the first number that all ranks which have some of it still have."""
    since: dict[str, int] = {}
    for name, slots in enumerate(job.communicators.values()):
        for slot in slots:
            firsts = [(str(name), min(slot.calls, default=0))]
            streams: dict[str, int] = {}
            for call in slot.messages.values():
                pair = _pair(slot, call, str(name))
                streams[pair] = min(call.stream, streams.get(pair, call.stream))
            for group, first in [*firsts, *streams.items()]:
                since[group] = max(since.get(group, 0), first)
    return since


def _pair(slot: Slot, call: Call, name: str) -> str:
    """Return the process group of a message: each direction of a pair has one, as only those two ranks take part."""
    ends = (slot.rank, call.root) if call.sends else (call.root, slot.rank)
    return f"{name}:{ends[0]}->{ends[1]}"


def _entry(call: Call, slot: Slot, name: str) -> Entry:
    name_in_torch, blocks_in, blocks_out = _NAMES.get(call.op, (call.op, 1, 1))
    return _fields(call, call.number <= slot.finished) | {
        "process_group": (name, slot.backend),
        "collective_seq_id": call.number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"nccl:{name_in_torch}",  # the analyser does not know us
        "input_sizes": [[call.count * (blocks_in or slot.world)]],
        "output_sizes": [[call.count * (blocks_out or slot.world)]],
    }


def _message(call: Call, slot: Slot, pair: str) -> Entry:
    us, peer = (int(at > other) for at, other in ((slot.rank, call.root), (call.root, slot.rank)))
    return _fields(call, bool(call.finished_ns)) | {
        "process_group": (pair, "messages"),
        "collective_seq_id": call.stream,
        "p2p_seq_id": call.stream,
        "is_p2p": True,
        "profiling_name": f"nccl:send {us}->{peer}" if call.sends else f"nccl:recv {us}<-{peer}",
        "input_sizes": [[call.count]],
        "output_sizes": [[call.count]],
    }


def _fields(call: Call, done: bool) -> Entry:
    file, _, line = call.site.rpartition(":")
    return {
        "pg_id": 0,
        "op_id": call.number,
        "time_created_ns": call.entered_ns,
        "duration_ms": (call.finished_ns - call.entered_ns) * 1e-6 if call.finished_ns else None,
        "input_dtypes": [call.dtype],
        "output_dtypes": [call.dtype],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": call.entered_ns,
        "time_discovered_completed_ns": call.finished_ns or None,
        "retired": done,
        "timeout_ms": 0,
        "frames": [{"name": call.op, "filename": file, "line": int(line)}] if file else [],
    }
