"""Differences: the first call of a communicator that its ranks did not make alike, and which of them is the odd one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from commlib.counts import counted
from commlib.debug.format import left_text, ranks_text, where_text
from commlib.debug.jobs import Job
from commlib.debug.record_types import Call, Slot


@dataclass(frozen=True)
class Difference:
    """Ranks that differ from the others in a call, or all where none is in the majority."""

    ranks: tuple[int, ...]
    number: int
    text: str


def first_difference(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare calls, then graphs, then where GPUs were when the communicator ended."""
    return _in_calls(job, slots) or _in_graphs(job, slots) or _where_left(job, slots)


def _in_calls(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare the last calls of the ranks, number by number."""
    for number in sorted(set().union(*(slot.calls for slot in slots))):
        made = {slot.rank: slot.calls[number] for slot in slots if number in slot.calls}
        if len({call.what for call in made.values()}) > 1:
            return _of_call(job, slots, number, made)
    return None


def _of_call(job: Job, slots: list[Slot], number: int, made: dict[int, Call]) -> Difference:
    odd, clear = _minority({rank: call.what for rank, call in made.items()})
    slot = slots[0]
    groups: dict[int, list[int]] = {}
    for rank, call in made.items():
        groups.setdefault(call.what, []).append(rank)
    parts = []
    for ranks in sorted(groups.values(), key=len):
        call = made[ranks[0]]
        at = _at(", ".join(sorted({made[rank].site for rank in ranks if made[rank].site})))
        graph = f" in graph {call.graph}" if call.graph else ""
        parts.append(f"{ranks_text(job.name(slot, rank) for rank in ranks)} made {call}{graph}{at}")
    other = next(rank for rank in made if made[rank].what != made[odd[0]].what)
    hint = _hint(slots, number, odd[0], other) if clear else ""
    differs = _fields_that_differ(made[odd[0]], made[other])
    text = f"ranks differ in call #{number}{where_text(job, slot)}, in its {differs}: {'; '.join(parts)}{hint}"
    return Difference(_names(job, slot, odd), number, text)


def _minority(values: dict[int, Hashable]) -> tuple[list[int], bool]:
    """Return the ranks whose value is not the usual one, or all where none is; and whether one is."""
    (common, count), (_, second) = Counter(values.values()).most_common(2)
    return [rank for rank, value in values.items() if count == second or value != common], count > second


def _names(job: Job, slot: Slot, ranks: list[int]) -> tuple[int, ...]:
    return tuple(sorted(job.name(slot, rank) for rank in ranks))


def _fields_that_differ(mine: Call, theirs: Call) -> str:
    fields = {
        "operation": (mine.op, theirs.op),
        "type": (mine.dtype, theirs.dtype),
        "size": (mine.count, theirs.count),
        "reduction": (mine.redop, theirs.redop),
        "root": (mine.root, theirs.root),
    }
    names = [name for name, (one, other) in fields.items() if one != other]
    return "operation" if "operation" in names else " and ".join(names) or "arguments"


def _hint(slots: list[Slot], number: int, odd: int, other: int) -> str:
    """Say what the calls around it look like: one left out, one made twice, two in another order."""
    calls = {slot.rank: {at: call.what for at, call in slot.calls.items()} for slot in slots}
    mine, theirs = calls[odd], calls[other]
    ahead, behind = mine.get(number) == theirs.get(number + 1), theirs.get(number) == mine.get(number + 1)
    if ahead and behind and number + 1 in mine:
        return ". It made two calls in another order"
    if ahead and number + 1 in theirs:
        return ". It left out a call"
    if (behind and number + 1 in mine) or mine.get(number) == mine.get(number - 1):
        return ". It made one more call, as it seems"
    return ""


def _in_graphs(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare the graphs that have been captured, also those whose calls are no longer in the record."""
    for number in sorted(set().union(*(slot.graphs for slot in slots))):
        graphs = {slot.rank: (slot.graphs[number], max(slot.graphs)) for slot in slots if number in slot.graphs}
        # The newest one may be under way, or, not replayed yet, not be whole.
        whole = {rank: graph for rank, (graph, newest) in graphs.items() if graph.over or number < newest}
        if len({(graph.what, graph.calls) for graph in whole.values()}) > 1:
            texts = {rank: f"captured {counted(graph.calls, 'call')}{_at(graph.site)}" for rank, graph in whole.items()}
            first = min(graph.first for graph in whole.values())
            values: dict[int, Hashable] = {rank: (graph.what, graph.calls) for rank, graph in whole.items()}
            return _of_all(job, slots[0], values, texts, first, f"ranks differ in the calls of graph {number}")
    return None


def _where_left(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare what the GPUs were in when the communicator ended, where they had come equally far."""
    left = {slot.rank: slot for slot in slots if slot.gpu.left_in}
    values: dict[int, Hashable] = {
        rank: (slot.gpu.left_what, slot.gpu.left_graph, slot.gpu.left_of_graph) for rank, slot in left.items()
    }
    if len(set(values.values())) < 2 or len({slot.gpu.left_in for slot in left.values()}) > 1:
        return None
    texts, number = {rank: left_text(slot) for rank, slot in left.items()}, next(iter(left.values())).gpu.left_in
    return _of_all(job, slots[0], values, texts, number, "GPUs were in different calls when the communicator ended")


def _of_all(
    job: Job, slot: Slot, values: dict[int, Hashable], texts: dict[int, str], number: int, head: str
) -> Difference:
    """Say what each rank did."""
    each = "; ".join(f"{ranks_text([job.name(slot, rank)])} {text}" for rank, text in texts.items())
    return Difference(_names(job, slot, _minority(values)[0]), number, f"{head}{where_text(job, slot)}: {each}")


def _at(site: str) -> str:
    return f" at {site}" if site else ""
