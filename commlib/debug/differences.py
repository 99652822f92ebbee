"""Differences: the first call of a communicator that its ranks did not make alike, and which of them is the odd one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from commlib.counts import counted
from commlib.debug.jobs import Job
from commlib.debug.kept import Call, Slot
from commlib.debug.words import difference_text, left_text, ranks_text, where_text


@dataclass(frozen=True)
class Difference:
    """Ranks that differ from the others in a call, or all where none is in the majority."""

    ranks: tuple[int, ...]
    number: int
    text: str


def differences(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare the calls that the ranks have kept, number by number."""
    for number in sorted(set().union(*(slot.calls for slot in slots))):
        made = {slot.rank: slot.calls[number] for slot in slots if number in slot.calls}
        kinds = Counter(call.what for call in made.values())
        if len(kinds) > 1:
            return _told(job, slots, number, made, kinds)
    return None


def _told(job: Job, slots: list[Slot], number: int, made: dict[int, Call], kinds: Counter[int]) -> Difference:
    (common, most), (_, second) = kinds.most_common(2)
    slot = slots[0]
    groups = {what: [rank for rank, call in made.items() if call.what == what] for what in kinds}
    said = []
    for ranks in sorted(groups.values(), key=len):
        call = made[ranks[0]]
        at = _at(", ".join(sorted({made[rank].site for rank in ranks if made[rank].site})))
        graph = f" in graph {call.graph}" if call.graph else ""
        said.append(f"{ranks_text(job.name(slot, rank) for rank in ranks)} made {call}{graph}{at}")
    odd = [rank for rank, call in made.items() if most == second or call.what != common]
    others = next(rank for rank in made if made[rank].what != made[odd[0]].what)
    hint = _hint(slots, number, odd[0], others) if most > second else ""
    differs = difference_text(made[odd[0]], made[others])
    text = f"ranks differ in call #{number}{where_text(job, slot)}, in its {differs}"
    return Difference(tuple(sorted(job.name(slot, rank) for rank in odd)), number, f"{text}: {'; '.join(said)}{hint}")


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


def graph_differences(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare the graphs that have been captured, also those whose calls are no longer kept."""
    for number in sorted(set().union(*(slot.graphs for slot in slots))):
        # The newest may be under way.
        # The newest one that has not been replayed may not be whole.
        known = [slot for slot in slots if number in slot.graphs]
        whole = {
            slot.rank: slot.graphs[number] for slot in known if slot.graphs[number].over or number < max(slot.graphs)
        }
        if len({(of.what, of.calls) for of in whole.values()}) > 1:
            said = {
                rank: (of.what, f"captured {counted(of.calls, 'call')}{_at(of.site)}") for rank, of in whole.items()
            }
            first = min(of.first for of in whole.values())
            return _grouped(job, slots, said, first, f"ranks differ in the calls of graph {number}")
    return None


def left_differently(job: Job, slots: list[Slot]) -> Difference | None:
    """Compare what the GPUs were in when the communicator ended, where they had come equally far."""
    left = {slot.rank: slot for slot in slots if slot.gpu.left_in}
    first = min((slot.gpu.left_in for slot in left.values()), default=0)
    said = {}
    for rank, slot in left.items():
        gpu = slot.gpu
        said[rank] = (hash((gpu.left_what, gpu.left_graph, gpu.left_of_graph)), left_text(slot))
    if len({what for what, _ in said.values()}) < 2 or any(slot.gpu.left_in > first for slot in left.values()):
        return None
    return _grouped(job, slots, said, first, "GPUs were in different calls when the communicator ended")


def _grouped(job: Job, slots: list[Slot], said: dict[int, tuple[int, str]], number: int, head: str) -> Difference:
    """Say what each rank did, and which of them are in the minority, or all where none is."""
    kinds = Counter(what for what, _ in said.values())
    (common, most), (_, second) = kinds.most_common(2)
    odd = [rank for rank, (what, _) in said.items() if most == second or what != common]
    words = "; ".join(f"{ranks_text([job.name(slots[0], rank)])} {text}" for rank, (_, text) in said.items())
    named = tuple(sorted(job.name(slots[0], rank) for rank in odd))
    return Difference(named, number, f"{head}{where_text(job, slots[0])}: {words}")


def _at(site: str) -> str:
    return f" at {site}" if site else ""
