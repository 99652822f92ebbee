"""`commlib bench send_recv --window W`: W messages in flight from each sender, as osu_bw, osu_bibw and osu_mbw_mr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from commlib.collectives import COLLECTIVES, Call, Collective
from commlib.counts import counted
from commlib.tools.timing import Prepare, Run

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.tools.baselines import Peer
    from commlib.tools.baselines.peer import Message

OP = "send_recv"
SYNC = "sync"  # behind the name of the algorithm whose calls return when their message may be changed
LARGEST = 1 << 20  # bytes of a message, unless more are asked for: a window of them has its own memory


def window_asked(ops: Sequence[str], options: Mapping[str, Any], ranks: int | None) -> Window | None:
    """Return what --window and --pairs ask for; they are of eager calls of send_recv."""
    if options["overlap"] and options["graph"]:
        raise ValueError("--overlap times asynchronous calls of the host; leave --graph out")
    if not options["window"] and not options["pairs"]:
        return None
    flag = "--window" if options["window"] else "--pairs"
    if tuple(ops) != (OP,):
        raise ValueError(f"{flag} is of {OP} alone: commlib bench {OP} {flag}" + " 64" * (flag == "--window"))
    for other in ("graph", "overlap"):
        if options[other]:
            raise ValueError(f"{flag} times messages that the host starts; leave --{other} out")
    window = Window(options["window"] or 1, options["pairs"])
    if ranks is not None and (fault := window.fault(ranks)):
        raise ValueError(fault)
    return window


@dataclass(frozen=True)
class Window:
    """How many messages each sender has in flight; `pairs`: rank r sends to r + n/2, else each to the next one."""

    messages: int
    pairs: bool = False

    def senders(self, ranks: int) -> int:
        """Return how many ranks send."""
        return ranks // 2 if self.pairs else ranks

    def peers(self, rank: int, ranks: int) -> tuple[int | None, int | None]:
        """Return whom a rank sends to, and whom it receives from."""
        if not self.pairs:
            return (rank + 1) % ranks, (rank - 1) % ranks
        half = ranks // 2
        return (rank + half, None) if rank < half else (None, rank - half)

    def collective(self) -> Collective:
        """Return send_recv with a window of messages for each call; its sizes are of one message."""
        return replace(COLLECTIVES[OP], shapes=self._shapes, reference=self._received, invoke=self._start)

    def theirs(self, peer: Peer) -> Prepare:
        """Return what makes the messages of another library ready."""

        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            return peer.messages(self._messages(x, out, call))

        return prepare

    def figures(self, seconds: float, ranks: int) -> dict[str, Any]:
        """Return what a row says beside its times."""
        rate = self.messages * self.senders(ranks) / seconds
        return {"window": self.messages, "pairs": self.pairs, "messages_s": round(rate, 1)}

    def note(self) -> str:
        """Return the line of the run's head."""
        whom = "rank r of the lower half to r + n/2" if self.pairs else "each rank to the next one"
        return (
            f"window: {counted(self.messages, 'message')} in flight, {whom}; time is that of all of them, algbw of "
            f"all senders together, busbw of one; {SYNC}: the same by calls that are not asynchronous"
        )

    def fault(self, ranks: int) -> str:
        """Say why so many ranks cannot, "" if they can."""
        if self.pairs and ranks % 2:
            return f"--pairs needs an even number of ranks, not {ranks}; the lower half sends to the upper half"
        return "--window needs ranks that send to each other: -n 2" if ranks == 1 else ""

    def _shapes(self, call: Call) -> tuple[int, int]:
        after, before = self.peers(call.rank, call.size)
        whole = self.messages * call.count
        return whole * (after is not None), whole * (before is not None)

    def _received(self, call: Call, inputs: Sequence[torch.Tensor], fold: object) -> torch.Tensor | None:
        before = self.peers(call.rank, call.size)[1]
        return None if before is None else inputs[before]

    def _start(self, comm: Communicator, x: torch.Tensor, out: torch.Tensor, call: Call) -> None:
        for part, rank, sends in self._messages(x, out, call):
            (comm.send if sends else comm.recv)(part, rank)

    def _messages(self, x: torch.Tensor, out: torch.Tensor, call: Call) -> list[Message]:
        """Return tensor, partner and direction; every second rank receives first: on a stream, calls wait in line."""
        after, before = self.peers(call.rank, call.size)
        sends = [] if after is None else [(part, after, True) for part in x.split(call.count)]
        receives = [] if before is None else [(part, before, False) for part in out.split(call.count)]
        return sends + receives if call.rank % 2 == 0 else receives + sends
