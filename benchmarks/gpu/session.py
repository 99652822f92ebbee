"""Session: what each rank holds while run.py measures: commlib's communicator, the peers, their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import custom_peer
import eager_clock
import graph_clock
import nccl_peer
import torch
import torch_peer
from candidate import Candidate, Entry, Memory
from case import DTYPE, Case
from ours import Ours, Sweep

from commlib.communicator import Communicator
from commlib.timing.graph import Starter


@dataclass(frozen=True)
class Options:
    """What run.py asks of every rank."""

    mode: str
    max_bytes: int
    peers: bool
    custom_peer: str
    only: tuple[str, ...]  # labels; none: all
    sweep: Sweep
    least_blocks: int
    most_blocks: int


class Session:
    """Peers and memory of one rank, kept from size to size."""

    def __init__(self, comm: Communicator, options: Options) -> None:
        self.comm, self.options = comm, options
        if comm.device.type == "cuda":
            # On the default stream a replayed graph of NCCL's calls takes 2 to 4 times as long: its nodes that keep
            # order with calls outside the graph wait for each other there.
            torch.cuda.set_stream(torch.cuda.Stream(comm.device))
        self.plain = Memory(partial(torch.empty, dtype=DTYPE, device=comm.device), options.max_bytes)
        self.ours = Ours(comm, self.plain)
        self.torch_reason = "left out by --no-peers"
        self.nccl: nccl_peer.Nccl | str = self.torch_reason
        self.custom: custom_peer.Custom | str = "no library: give --custom-peer"
        if options.peers:
            self._start_peers()
        self.shared = Memory(partial(torch_peer.symmetric, comm), options.max_bytes)
        self.windows = None if isinstance(self.nccl, str) else Memory(self.nccl.window, options.max_bytes)
        self.registered = None if isinstance(self.custom, str) else Memory(self.custom.registered, options.max_bytes)
        gpu = comm.device.type == "cuda" and options.mode == "graph"
        self.starter = Starter(comm) if gpu else None

    def _start_peers(self) -> None:
        started = self._together(lambda: torch_peer.start(self.comm))
        self.torch_reason = started if isinstance(started, str) else ""
        if self.comm.device.type != "cuda":
            self.nccl = self.custom = "needs GPUs"
            return
        self.nccl = self._together(lambda: nccl_peer.Nccl(self.comm))
        path = self.options.custom_peer
        if path:
            self.custom = self._together(lambda: custom_peer.Custom(self.comm, path))

    def _together(self, make: Callable[[], Any]) -> Any:
        """Make something that every rank has or none; return it, or a reason."""
        made, reason = None, ""
        try:
            made = make()
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        reasons = [r for r in self.comm.all_gather_object(reason) if r]
        return reasons[0] if reasons else made

    def candidates(self, case: Case) -> list[Candidate]:
        """Return everybody who makes this call."""
        found = list(self.ours.candidates(case, self.options.mode, self.options.sweep))
        if self.options.peers:
            found += torch_peer.candidates(self.torch_reason, self.plain, self.shared, case)
            found += nccl_peer.candidates(self.nccl, self.plain, self.windows, case)
            found += custom_peer.candidates(self.custom, self.plain, self.registered, case)
        only = self.options.only
        return [c for c in found if not only or c.label in only or c.variant]

    def measure(self, op: str, num_bytes: int, seconds: float) -> list[dict[str, Any]]:
        """Measure one size and return its rows."""
        case = Case(op, num_bytes, self.comm.rank, self.comm.size, self.comm.device)
        entries = [Entry(candidate, case) for candidate in self.candidates(case)]
        budget = graph_clock.Budget(seconds, self.options.least_blocks, self.options.most_blocks)
        if self.starter is not None:
            graph_clock.measure(self.comm, entries, self.starter, budget, self.ours.restore)
        else:
            eager_clock.measure(self.comm, entries, budget, self.ours.restore)
        return [{**entry.row(), "mode": self.options.mode} for entry in entries]

    def close(self) -> None:
        """End the peers: graphs are gone by now, and NCCL's destroy waits for them."""
        if self.starter is not None:
            self.starter.close()
        for memory in (self.shared, self.windows, self.registered):
            if memory is not None:
                memory.clear()
        self.comm.barrier()
        for peer in (self.custom, self.nccl):
            if not isinstance(peer, str):
                peer.close()
        torch_peer.stop()
        self.comm.barrier()


_live: dict[str, Session] = {}  # of this rank's process, from call to call


def start(comm: Communicator, options: Options) -> dict[str, Any]:
    """Make this rank's session; return what the figures depend on."""
    _live["session"] = session = Session(comm, options)
    facts: dict[str, Any] = {"plan": comm.plan.digest, "plan_source": Path(comm.plan.source).name}
    if comm.device.type == "cuda":
        facts |= {
            "gpu": torch.cuda.get_device_name(comm.device),
            "gpus": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": _driver(),
        }
    peers = {"torch": session.torch_reason, "nccl": session.nccl, "vllm": session.custom}
    facts["without"] = {name: peer for name, peer in peers.items() if isinstance(peer, str) and peer}
    return facts


def measure(comm: Communicator, op: str, num_bytes: int, seconds: float) -> list[dict[str, Any]]:
    """Measure one size on the live session."""
    return _live["session"].measure(op, num_bytes, seconds)


def stop(comm: Communicator) -> None:
    """End the session."""
    _live.pop("session").close()


def _driver() -> str:
    """Return the driver's version as it tells it."""
    version = Path("/proc/driver/nvidia/version")
    words: Sequence[str] = version.read_text().split() if version.exists() else ()
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), "")
