"""The process group: torch's calls, each handed to the engine of the device that its tensors are on.

An engine has the methods of a c10d backend. For a device that the group was made with "commlib" for, it is one of
ours, over a Communicator; for any other ("cpu:commlib,cuda:nccl") it is torch's own. Engines are made by the first call
on their device, which all ranks make.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.neighbours import one_host
from commlib.bootstrap.store import StoreWorld
from commlib.communicator import Communicator
from commlib.torch_backend.barrier import monitored_barrier
from commlib.torch_backend.engine import Engine
from commlib.torch_backend.forms import FORMS, with_options
from commlib.torch_backend.works import Works

_C10D: Any = dist.distributed_c10d  # declares little of what it has
MESSAGES = ("send", "recv", "recv_anysource")
# What torch before 2.13 calls them.
OLD_NAMES = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}


@dataclass
class Options:
    """What `pg_options=` of init_process_group and new_group may say: as in commlib.init()."""

    plan: Any = "auto"
    max_bytes: int | str | None = None
    checked: bool | None = None
    # torch reads these of any backend's options.
    _timeout: datetime.timedelta | None = None
    group_name: str = ""
    global_ranks_in_group: Sequence[int] = field(default_factory=list)


class CommlibGroup(dist.ProcessGroup):
    """Ranks that torch.distributed has brought together; made by torch, never by hand."""

    supports_splitting = True
    supports_coalescing = False  # torch asks it of its own groups only
    supports_shrinking = False
    supports_time_estimate = False
    supports_tensor_alloc = False

    def __init__(
        self, store: Any, rank: int, size: int, timeout: datetime.timedelta, options: Options | None = None
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # of the two constructors the one that calls Python's methods from C++
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self.options = options or Options()
        self._name = self._desc = ""
        self._cpu: Any = None
        self._cuda: Any = None
        self._others: list[Any] = []  # torch's own engines
        self._communicators: dict[str, Communicator] = {}
        self._sequence = 0
        self._splits = 0
        self._barriers = 0
        self._coalescing: list[Any] | None = None
        self._ended = ""

    # --- who it is, by the names that torch's Python and C++ ask for ---------------------------------------------

    def rank(self) -> int:
        """Return this rank's number in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    getRank, getSize = rank, size  # what C++ calls

    def getBackendName(self) -> str:
        """Return the name that the backend is registered by."""
        return "commlib"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """Return the name torch knows the group by."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Take the name torch knows the group by."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Return what torch says the group is for."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Take what torch says the group is for."""
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def get_group_store(self) -> Any:
        """Return the store that the group was made with."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._backends()]

    def _get_backend(self, device: torch.device) -> Any:
        """Return what serves a device: this group itself for those that are commlib's."""
        kind = torch.device(device).type
        name = self._backends().get(kind)
        if name is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")  # torch's words
        if name != "commlib":
            return self._engine(kind)
        if device.index is not None and self.bound_device_id is None:
            self.bound_device_id = device  # init_process_group(device_id=…) says it to its backend alone
        return self

    def _backends(self) -> dict[str, str]:
        """Return the backend of each device, as the group was made: {"cpu": "commlib", "cuda": "nccl"}."""
        known = _C10D._world.pg_backend_config.get(self, "cpu:commlib,cuda:commlib")
        return dict(part.split(":") for part in known.split(","))

    # --- engines --------------------------------------------------------------------------------------------------

    def communicator(self, kind: str) -> Communicator:
        """Return the communicator of a device, made if need be."""
        self._engine(kind)
        if kind not in self._communicators:
            raise ValueError(f"device is {kind!r}, which backend {self._backends()[kind]!r} serves in this group")
        return self._communicators[kind]

    def _engine(self, kind: str, index: int | None = None) -> Any:
        backends = self._backends()
        if kind not in ("cpu", "cuda") or kind not in backends:
            raise RuntimeError(f"this process group serves tensors on {', '.join(backends)}, not on {kind}")
        found = self._cuda if kind == "cuda" else self._cpu
        if found is not None:
            return found
        if self._ended:
            raise RuntimeError(self._ended)
        name = backends[kind]
        engine = self._ours(kind, index) if name == "commlib" else self._torchs(kind, name)
        setattr(self, f"_{kind}", engine)
        return engine

    def _ours(self, kind: str, index: int | None) -> Engine:
        """Make a communicator over the group's store; the world behind it has done its part then."""
        timeout_s = self._timeout.total_seconds()
        store = _C10D.PrefixStore(f"commlib/{kind}", self._store)
        if kind == "cuda":
            torch.cuda.set_device(torch.cuda.current_device() if index is None else index)
        local = torch.cuda.current_device() if kind == "cuda" else None
        world = StoreWorld("torch.distributed", store, Identity(self._rank, self._size, local), timeout_s)
        checked = True if _C10D.get_debug_level() == _C10D.DebugLevel.DETAIL else self.options.checked
        try:
            comm = Communicator._create(
                world,
                backend="nccl" if kind == "cuda" else "shm" if one_host(world, timeout_s) else "torch",
                plan=self.options.plan,
                timeout_s=timeout_s,
                max_bytes=self.options.max_bytes,
                checked=checked,
            )
        finally:
            world.close()
        self._communicators[kind] = comm
        return Engine(comm)

    def _torchs(self, kind: str, name: str) -> Any:
        """Make torch's own engine for a device that the group was not made with "commlib" for."""
        store = _C10D.PrefixStore(f"{name}/{kind}", self._store)
        if name == "gloo":
            engine: Any = dist.ProcessGroupGloo(store, self._rank, self._size, self._timeout)
        elif name == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            engine = dist.ProcessGroupNCCL(store, self._rank, self._size, options)
        else:
            raise NotImplementedError(
                f'backend {name!r} for {kind} beside "commlib" is not possible, only gloo and nccl are; '
                "make a group of its own for it"
            )
        self._others.append(engine)
        return engine

    # --- calls ----------------------------------------------------------------------------------------------------

    def _engine_of(self, arguments: tuple[Any, ...]) -> Any:
        """Return the engine of the first tensor."""
        for argument in arguments:
            first = argument
            while type(first) is list and first:
                first = first[0]
            if isinstance(first, torch.Tensor):
                found = self._cuda if first.is_cuda else self._cpu if first.is_cpu else None
                return found or self._engine(first.device.type, first.device.index)
        raise ValueError("a collective of torch.distributed was given no tensor")

    def barrier(self, *arguments: Any, **named: Any) -> dist.Work:
        """Wait until every rank has come: on the host, and for a GPU's barrier also for the stream."""
        self._sequence += 1
        (opts,) = with_options("barrier", arguments, named)
        device = opts.device or torch.device(next(iter(self._backends())))
        work: dist.Work = self._kept(self._engine(device.type, device.index).barrier(opts))
        return work

    def _kept(self, work: Any) -> Any:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Do as barrier(), and say on rank 0 which ranks did not come within the timeout."""
        self._barriers += 1
        store = _C10D.PrefixStore(f"monitored/{self._barriers}", self._store)
        monitored_barrier(store, self._rank, self._size, timeout or self._timeout, wait_all_ranks)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works of the calls that follow; messages between GPUs go together."""
        engine = self._engine(device.type, device.index)
        if isinstance(engine, Engine):
            self._coalescing = []
            engine.mail.start_batch()
        else:
            engine._start_coalescing()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        engine = self._engine(device.type, device.index)
        if not isinstance(engine, Engine):
            work: dist.Work = engine._end_coalescing()
            return work
        works, self._coalescing = self._coalescing or [], None
        if (batch := engine.mail.end_batch()) is not None:
            works = [*(work for work in works if work is not batch), batch]
        return Works(works)

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """All ranks count from 0, so there is nothing to agree on."""

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """No hook of ours runs after a call."""

    def _enable_collectives_timing(self) -> None:
        raise NotImplementedError('backend "commlib" keeps no times of single calls; use torch.profiler')

    def _register_on_completion_hook(self, hook: Callable[..., None]) -> None:
        raise NotImplementedError('backend "commlib" has no completion hooks; use Work.get_future().then(hook)')

    # --- groups of the group --------------------------------------------------------------------------------------

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Make the communicator of a GPU now: what init_process_group(device_id=…) asks for."""
        self._engine(device.type, device.index)

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Ranks outside a new group have no part in it."""

    def comm_split_count(self) -> int:
        """Return how many groups were split from this one."""
        return self._splits

    def split_group(  # type: ignore[override]  # options are ours
        self,
        ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Options | None = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> CommlibGroup | None:
        """Return the group of some ranks of this one, None on the others."""
        self._splits += 1
        if self._rank not in ranks:
            return None
        store = _C10D.PrefixStore(f"split/{group_name}", self._store)
        made = CommlibGroup(
            store, list(ranks).index(self._rank), len(ranks), timeout or self._timeout, opts or self.options
        )
        made._name, made._desc = group_name or "", group_desc or ""
        return made

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the deadline of communicators to come; those that exist keep theirs."""
        if self._communicators:
            raise NotImplementedError("this group has communicators already, and they keep their deadline")
        self._timeout = timeout

    # --- its end --------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close the communicators; torch calls this in destroy_process_group."""
        self._end("this process group was destroyed", Communicator.close, "shutdown")

    def abort(self) -> None:
        """End the communicators on all ranks: calls under way and later ones raise."""
        self._end("this process group was aborted", _abort, "abort")

    def _end(self, why: str, end: Callable[[Communicator], None], others: str) -> None:
        self._ended = self._ended or why
        self._cpu = self._cuda = None
        communicators, self._communicators = self._communicators, {}
        engines, self._others = self._others, []
        for comm in communicators.values():
            end(comm)
        for engine in engines:
            getattr(engine, others)()


def _abort(comm: Communicator) -> None:
    comm.abort(f"rank {comm.rank} aborted its process group")
    comm.close()


def _collective(name: str) -> Callable[..., Any]:
    options = FORMS[name].options

    def call(self: CommlibGroup, *arguments: Any, **named: Any) -> Any:
        if named or type(arguments[-1]) is not options:
            arguments = with_options(name, arguments, named)
        self._sequence += 1
        return self._kept(getattr(self._engine_of(arguments), name)(*arguments))

    return call


def _message(name: str) -> Callable[..., Any]:
    def call(self: CommlibGroup, *arguments: Any) -> Any:
        return self._kept(getattr(self._engine_of(arguments), name)(*arguments))

    return call


for _name in FORMS:
    if _name != "barrier":
        setattr(CommlibGroup, _name, _collective(_name))
for _name in MESSAGES:
    setattr(CommlibGroup, _name, _message(_name))
for _old, _name in OLD_NAMES.items():
    setattr(CommlibGroup, _old, getattr(CommlibGroup, _name))
