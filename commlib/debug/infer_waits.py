"""Waits of calls that torch's process groups make: they do not say for whom they wait, but the ranks' counts do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from commlib.debug.record_types import Slot, Wait

if TYPE_CHECKING:
    from commlib.debug.jobs import Rank


def add_waits(ranks: Mapping[int, Rank]) -> None:
    """Add what the ranks of such a communicator wait for, as far as it is known where these are."""
    waits = {
        (rank.pid, at): wait
        for rank in ranks.values()
        for at, slot in enumerate(rank.slots)
        if slot.by_torch and not slot.closed and not slot.waits and (wait := _wait(ranks, slot)) is not None
    }
    for (pid, at), wait in waits.items():
        ranks[pid].slots[at] = replace(ranks[pid].slots[at], waits=(wait,))


def _wait(ranks: Mapping[int, Rank], slot: Slot) -> Wait | None:
    call = slot.calls.get(slot.entered)
    if call is None or not (slot.handed_over or slot.under_way):
        return None
    late = next(_late(ranks, slot), None)
    return None if late is None else Wait(call.thread, late, call.number, call.entered_ns, 0)


def _late(ranks: Mapping[int, Rank], slot: Slot) -> Iterator[int]:
    """Yield who has not come to a rank's call: the one that is furthest behind first; then who is gone, or halted."""
    there = {peer: ranks[known.pid] for peer, known in enumerate(slot.peers) if known.pid in ranks}
    slots = {peer: theirs for peer, rank in there.items() if (theirs := rank.slot(slot.id)) is not None}
    behind = [peer for peer, theirs in slots.items() if theirs.entered < slot.entered]
    yield from sorted(behind, key=lambda peer: (slots[peer].entered, peer))
    yield from (peer for peer, rank in there.items() if rank.process.gone and peer != slot.rank)
    if not slot.handed_over:
        yield from (peer for peer, rank in there.items() if rank.process.halted and peer != slot.rank)
