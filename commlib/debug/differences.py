"""Differences: the first call of a communicator that its ranks did not make alike, and which of them is the odd one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from commlib.counts import counted, ranks_text
from commlib.debug.format import left_text, where_text
from commlib.debug.jobs import Job
from commlib.debug.record import Call, Slot

Difference = tuple[tuple[int, ...], int, str]
"""Ranks that differ from the others in a call, or all where none is in the majority; its number, and what they did."""

Did = dict[int, tuple[Hashable, str]]
"""By rank: what must be alike, and the same as text."""


def first_difference(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare calls, then graphs, then where GPUs were when the communicator ended."""
    return _in_calls(job, slots) or _in_graphs(job, slots) or _where_left(job, slots)


def _in_calls(job: Job, slots: list[Slot]) -> Difference | None:
    for number in sorted(set().union(*(slot.calls for slot in slots))):
        made = {slot.rank: slot.calls[number] for slot in slots if number in slot.calls}
        did: Did = {rank: (call.what, f"made {call}{_at(call.site, call.graph)}") for rank, call in made.items()}
        if len({call.what for call in made.values()}) > 1:
            odd = _minority(did)[0]
            other = next(rank for rank in made if made[rank].what != made[odd].what)
            fields = _fields_that_differ(made[odd], made[other])
            return _difference(job, slots[0], did, number, f"ranks differ in call #{number}{{}}, in its {fields}")
    return None


def _fields_that_differ(call: Call, other: Call) -> str:
    fields = {
        "operation": (call.op, other.op),
        "type": (call.dtype, other.dtype),
        "size": (call.count, other.count),
        "reduction": (call.redop, other.redop),
        "root": (call.root, other.root),
    }
    names = [name for name, pair in fields.items() if pair[0] != pair[1]]
    return "operation" if "operation" in names else " and ".join(names) or "arguments"


def _in_graphs(job: Job, slots: list[Slot]) -> Difference | None:
    for number in sorted(set().union(*(slot.graphs for slot in slots))):
        graphs = {slot.rank: (slot.graphs[number], max(slot.graphs)) for slot in slots if number in slot.graphs}
        # The newest one may be under way, or, not replayed yet, not be whole.
        whole = {rank: graph for rank, (graph, newest) in graphs.items() if graph.over or number < newest}
        if len({(graph.what, graph.calls) for graph in whole.values()}) > 1:
            did: Did = {
                rank: ((of.what, of.calls), f"captured {counted(of.calls, 'call')}{_at(of.site)}")
                for rank, of in whole.items()
            }
            first = min(graph.first for graph in whole.values())
            return _difference(job, slots[0], did, first, f"ranks differ in the calls of graph {number}{{}}")
    return None


def _where_left(job: Job, slots: list[Slot]) -> Difference | None:
    left = [slot for slot in slots if slot.gpu.left_in]
    did: Did = {
        slot.rank: ((slot.gpu.left_what, slot.gpu.left_graph, slot.gpu.left_of_graph), left_text(slot)) for slot in left
    }
    if len({value for value, _ in did.values()}) < 2 or len({slot.gpu.left_in for slot in left}) > 1:
        return None
    head = "GPUs were in different calls when the communicator ended{}"
    return _difference(job, slots[0], did, left[0].gpu.left_in, head)


def _minority(did: Did) -> list[int]:
    """Return the ranks that did not do the usual thing, or all where there is none."""
    (common, count), (_, second) = Counter(value for value, _ in did.values()).most_common(2)
    return [rank for rank, (value, _) in did.items() if count == second or value != common]


def _difference(job: Job, slot: Slot, did: Did, number: int, head: str) -> Difference:
    """Say what each rank did, of those that did the same in one part, the fewest first."""
    groups: dict[str, list[int]] = {}
    for rank, (_, text) in did.items():
        groups.setdefault(text, []).append(job.name(slot, rank))
    parts = [f"{ranks_text(names)} {text}" for text, names in sorted(groups.items(), key=lambda item: len(item[1]))]
    odd = tuple(sorted(job.name(slot, rank) for rank in _minority(did)))
    return (odd, number, f"{head.format(where_text(job, slot))}: {'; '.join(parts)}")


def _at(site: str, graph: int = 0) -> str:
    return f" in graph {graph}" * bool(graph) + f" at {site}" * bool(site)
