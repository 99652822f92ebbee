"""Differences: the first call of a communicator that its ranks did not make alike, and which of them is the odd one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from commlib.debug.jobs import Job
from commlib.debug.record import Call, Slot
from commlib.debug.words import difference_text, ranks_text, where_text


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
        sites = sorted({made[rank].site for rank in ranks if made[rank].site})
        at = f" at {', '.join(sites)}" if sites else ""
        said.append(f"{ranks_text(job.name(slot, rank) for rank in ranks)} made {call}{at}")
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
