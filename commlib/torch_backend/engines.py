"""What serves a group's tensors, by device.

An engine has the methods of a c10d backend. For a device that the group was made with "commlib" for, it is one of
ours, over a Communicator; for any other ("cpu:commlib,cuda:nccl") it is torch's. Those of the CPU are made with the
group, as a message between two of its ranks may be the first call. A GPU's communicator is made by the first collective
on it, which all ranks make; messages between GPUs do not need it.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from commlib.backends.torch_dist import begin_record
from commlib.bootstrap.store import StoreWorld
from commlib.bootstrap.world import Identity, World
from commlib.communicator import Communicator, create
from commlib.errors import CommTimeout
from commlib.native import library
from commlib.redops import CODES
from commlib.torch_backend.arguments import SIGNATURES, first_tensor
from commlib.torch_backend.engine import OPS, Engine
from commlib.torch_backend.point_to_point import GpuMessages, HostMessages

_C10D: Any = dist.distributed_c10d  # declares little of what it has
OURS = "commlib"
BACKENDS = {"cpu": "shm", "cuda": "nccl"}  # by device, as plans name them
_NAP_S = 0.001


@dataclass(frozen=True)
class Place:
    """Which ranks a group has, and where they meet."""

    store: Any
    rank: int
    size: int
    timeout: datetime.timedelta


class Engines:
    """The engines of one group; `settings` are arguments of commlib.init()."""

    def __init__(self, place: Place, kinds: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        self._place, self.kinds, self._settings = place, kinds, settings
        self._communicators: dict[str, Communicator] = {}
        self._torchs: list[Any] = []
        self._records: dict[str, library.Recorder | None] = {}  # of devices that torch's engines serve
        self._ended = ""
        self.cuda: Any = None
        self.cpu: Any = self._make("cpu", None) if "cpu" in kinds else None
        self._messages: dict[str, Any] = {}

    def of(self, device: torch.device) -> Any:
        kind = device.type
        if kind not in ("cpu", "cuda") or kind not in self.kinds:
            raise RuntimeError(f"this process group serves tensors on {', '.join(self.kinds)}, not on {kind}")
        if self._ended:
            raise RuntimeError(self._ended)
        if kind == "cpu":
            return self.cpu
        self.cuda = self.cuda or self._make(kind, device.index)
        return self.cuda

    def record_delegated(self, device: torch.device, name: str, arguments: tuple[Any, ...]) -> None:
        """Record for `commlib debug` a call of a group's method that goes to an engine of torch's, options last."""
        record = self._records.get(device.type)
        if record is None:
            return
        x, opts = first_tensor(arguments[:-1]), arguments[-1]
        op = OPS.get(hash(opts.reduceOp)) if hasattr(opts, "reduceOp") else None
        dtype = "uint8" if x is None else str(x.dtype).removeprefix("torch.")
        count, redop = 0 if x is None else x.numel(), -1 if op is None else CODES[op]
        record.enter(SIGNATURES[name].call, dtype, count, redop, getattr(opts, "rootRank", -1))

    def messages(self, device: torch.device) -> Any:
        kind = device.type
        if self._ended or kind not in self._messages:
            self._messages[kind] = self._make_messages(device)
        return self._messages[kind]

    def communicator(self, device: torch.device) -> Communicator:
        self.of(device)
        if device.type not in self._communicators:
            served = self.kinds[device.type]
            raise ValueError(f"device is {device.type!r}, which backend {served!r} serves in this group")
        return self._communicators[device.type]

    def end(self, why: str, how: str) -> None:
        """End all; `how` is the method of torch's: shutdown or abort."""
        self._ended = self._ended or why
        self.cpu = self.cuda = None
        self._messages.clear()
        communicators, self._communicators = self._communicators, {}
        torchs, self._torchs = self._torchs, []
        for comm in communicators.values():
            if how == "abort":
                comm.abort(f"rank {comm.rank} aborted its process group")
            comm.close()
        for engine in torchs:
            getattr(engine, how)()
        for record in self._records.values():
            if record is not None:
                record.close()

    def _make(self, kind: str, index: int | None) -> Any:
        if self.kinds[kind] == OURS:
            with torch.cuda.device(index) if kind == "cuda" else nullcontext():  # afterwards the program's is current
                return self._ours(kind)
        world = self._world(kind, None)
        try:
            return self._recorded(world, self.kinds[kind], kind)
        finally:
            world.close()

    def _world(self, kind: str, local: int | None) -> StoreWorld:
        place = self._place
        store = _C10D.PrefixStore(f"commlib/{kind}", place.store)
        return StoreWorld(
            "torch.distributed", store, Identity(place.rank, place.size, local), place.timeout.total_seconds()
        )

    def _recorded(self, world: World, name: str, kind: str) -> Any:
        """Make an engine of torch's for a device, and begin its record."""
        engine = self._torch(name, kind)
        _, self._records[kind] = begin_record(world, f"torch {name}", self._place.timeout.total_seconds())
        return engine

    def _make_messages(self, device: torch.device) -> Any:
        if device.type == "cuda" and self.kinds.get("cuda") == OURS:
            return GpuMessages(lambda: self._torch("nccl", "messages"))
        engine = self.of(device)
        return HostMessages(engine.comm) if isinstance(engine, Engine) else engine

    def _ours(self, kind: str) -> Any:
        """Make a communicator over the group's store; the world behind it has done its part then."""
        timeout_s = self._place.timeout.total_seconds()
        world = self._world(kind, torch.cuda.current_device() if kind == "cuda" else None)
        settings = {"timeout_s": timeout_s, **self._settings}
        if _C10D.get_debug_level() == _C10D.DebugLevel.DETAIL:
            settings["checked"] = True
        try:
            if kind == "cuda" and len(world.hosts()) > 1:
                return self._recorded(world, "nccl", kind)  # NCCL serves GPUs of several hosts, inside them too
            backend = "nccl" if kind == "cuda" else "auto"
            here = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
            served = [other for other, name in self.kinds.items() if name == OURS and other in here]
            settings["other_backends"] = [BACKENDS[other] for other in served if other != kind]
            comm = create(world, backend=backend, cpus=kind == "cpu", **settings)
        finally:
            world.close()
        self._communicators[kind] = comm
        return Engine(comm)

    def _torch(self, name: str, use: str) -> Any:
        place, store = self._place, _C10D.PrefixStore(f"{name}/{use}", self._place.store)
        if name == "gloo":
            engine: Any = dist.ProcessGroupGloo(store, place.rank, place.size, place.timeout)
        elif name == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = place.timeout
            engine = dist.ProcessGroupNCCL(store, place.rank, place.size, options)
        else:
            raise NotImplementedError(
                f'backend {name!r} for {use} next to "commlib" is not possible, only gloo and nccl are; '
                "make a separate group for it"
            )
        self._torchs.append(engine)
        return engine


# --- monitored_barrier: on the host, over the store, so it knows who is missing; errors read as torch's ---------------


def monitored_barrier(
    store: Any, rank: int, size: int, timeout: datetime.timedelta, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks; rank 0 says who did not come, the first one or all, and the others that it failed."""
    deadline = time.monotonic() + timeout.total_seconds()
    if rank != 0:
        store.set(f"{rank}", "")
        while not (came := store.check(["answer"])) and time.monotonic() <= deadline:
            time.sleep(_NAP_S)
        failure = store.get("answer").decode() if came else f"it did not come within {timeout.total_seconds():g} s"
        if failure:
            raise CommTimeout(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: {failure}"
            )
        return
    missing = list(range(1, size))
    while missing and time.monotonic() <= deadline:
        missing = [peer for peer in missing if not store.check([f"{peer}"])]
        time.sleep(_NAP_S if missing else 0)
    failure = ""
    if missing:
        named = missing if wait_all_ranks else missing[:1]
        failure = f"Rank{'s' * (len(named) > 1)} {', '.join(map(str, named))} failed to pass monitoredBarrier"
    store.set("answer", failure)
    if failure:
        raise CommTimeout(f"Rank 0 timed out in monitoredBarrier after {timeout.total_seconds():g} s: {failure}")
