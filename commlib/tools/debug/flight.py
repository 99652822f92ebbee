"""Dumps of collectives as PyTorch's flight recorder writes them, for torch.distributed.flight_recorder.fr_trace."""

from __future__ import annotations

import pickle
from typing import Any

from commlib.debug.jobs import Job
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


def flights(job: Job) -> dict[int, bytes]:
    """Return a dump for each rank, of its collectives from where all ranks of a communicator have theirs."""
    order = list(job.communicators)
    since = [max(min(slot.calls, default=0) for slot in slots) for slots in job.communicators.values()]
    dumps = {}
    for rank in (rank for rank in job.ranks.values() if rank.slots):
        entries, groups = [], {}
        for slot in rank.slots:
            if slot.closed or slot.id not in order:
                continue
            name = str(order.index(slot.id))
            members = [job.name(slot, peer) for peer in range(slot.world)]
            groups[name] = {"name": name, "desc": slot.backend, "ranks": str(members)}
            calls = (call for call in slot.calls.values() if call.number >= since[int(name)])
            entries += [_entry(call, slot, name) for call in calls]
        entries.sort(key=lambda entry: (entry["time_created_ns"], entry["collective_seq_id"]))
        entries = [{"record_id": number, **entry} for number, entry in enumerate(entries)]
        dump = {"version": VERSION, "entries": entries, "pg_config": groups, "pg_status": {}, "rank": rank.number}
        dumps[rank.number] = pickle.dumps(dump)
    return dumps


def _entry(call: Call, slot: Slot, name: str) -> Entry:
    name_in_torch, blocks_in, blocks_out = _NAMES.get(call.op, (call.op, 1, 1))
    file, _, line = call.site.rpartition(":")
    done = call.number <= slot.finished
    return {
        "pg_id": 0,
        "process_group": (name, slot.backend),
        "collective_seq_id": call.number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "op_id": call.number,
        "profiling_name": f"nccl:{name_in_torch}",  # the analyser does not know us
        "time_created_ns": call.entered_ns,
        "duration_ms": (call.finished_ns - call.entered_ns) * 1e-6 if call.finished_ns else None,
        "input_sizes": [[call.count * (blocks_in or slot.world)]],
        "output_sizes": [[call.count * (blocks_out or slot.world)]],
        "input_dtypes": [call.dtype],
        "output_dtypes": [call.dtype],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": call.entered_ns,
        "time_discovered_completed_ns": call.finished_ns or None,
        "retired": done,
        "timeout_ms": 0,
        "frames": [{"name": call.op, "filename": file, "line": int(line)}] if file else [],
    }
