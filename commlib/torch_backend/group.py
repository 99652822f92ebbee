"""The process group: torch's calls, each handed to the engine of the device that its tensors are on (engines.py)."""

from __future__ import annotations

import datetime
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from commlib.collectives.all_reduce_rms_norm import normalised
from commlib.communicator import Communicator
from commlib.compile.operators import untraced
from commlib.torch_backend.arguments import SIGNATURES, first_tensor, with_options
from commlib.torch_backend.engine import Engine
from commlib.torch_backend.engines import OURS, Engines, Place, monitored_barrier
from commlib.torch_backend.works import Works

_C10D: Any = dist.distributed_c10d  # declares little of what it has
_grad_enabled = torch.is_grad_enabled
_profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
MESSAGES = ("send", "recv", "recv_anysource")
# Names of torch before 2.13, and those that later versions have as well.
OLD_NAMES = {
    "_allgather_base": "all_gather_single",
    "gather_into_tensor": "gather_single",
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
    max_sms: int | None = None
    # torch reads these of any backend's options.
    _timeout: datetime.timedelta | None = None
    group_name: str = ""
    global_ranks_in_group: Sequence[int] = field(default_factory=list)


class CommlibGroup(dist.ProcessGroup):
    """Ranks that torch.distributed has brought together; made by torch, never by hand."""

    supports_splitting = True
    supports_coalescing = False  # torch asks it of its groups only
    supports_shrinking = False
    supports_time_estimate = False
    supports_tensor_alloc = False
    supports_reconfigure = supports_window = False  # torch 2.14 asks these two

    def __init__(self, place: Place, kinds: Mapping[str, str], options: Options | None = None) -> None:
        # Of the two constructors the one that calls Python's methods from C++.
        super().__init__(place.rank, place.size)  # type: ignore[call-arg]
        self._place, self.options = place, options or Options()
        settings = {name: getattr(self.options, name) for name in ("plan", "max_bytes", "checked", "max_sms")}
        self._engines = Engines(place, kinds, settings)
        self._name = ""
        self._sequence = self._splits = self._barriers = 0
        self._coalescing: list[Any] | None = None

    # --- what torch's Python and C++ ask for, where its own answer needs a backend in C++ --------------------------

    def getBackendName(self) -> str:
        return OURS

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name, group_name = setGroupName, property(getGroupName)

    def get_group_store(self) -> Any:
        return self._place.store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._engines.kinds]

    def _get_backend(self, device: torch.device) -> Any:
        """Return what serves a device: this group itself for those that are commlib's."""
        device = torch.device(device)
        name = self._engines.kinds.get(device.type)
        if name is None:
            raise RuntimeError(f"No backend type associated with device type {device.type}")  # torch's message
        if name != OURS:
            return self._engines.of(device)
        if device.index is not None and self.bound_device_id is None:
            self.bound_device_id = device  # init_process_group(device_id=…) says it only to its backend
        return self

    get_backend = _get_backend  # torch 2.14's name

    def communicator(self, device: torch.device) -> Communicator:
        return self._engines.communicator(device)

    # --- calls ----------------------------------------------------------------------------------------------------

    def all_reduce_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, weight_bias: float
    ) -> tuple[torch.Tensor, ...]:
        """Do as a Communicator does, into new tensors: what `commlib.fuse` puts into graphs."""
        self._sequence += 1
        engine = self._engines.of(x.device)
        if isinstance(engine, Engine):
            y, h = x.new_empty(x.shape), x.new_empty(x.shape)
            call = engine.comm.all_reduce_rms_norm
            return call(x, residual, weight, eps, weight_bias=weight_bias, out=y, residual_out=h)
        h = x.clone(memory_format=torch.contiguous_format)  # on GPUs of several hosts torch's NCCL serves the group
        self._engines.record_delegated(x.device, "allreduce", ([h], dist.AllreduceOptions()))
        engine.allreduce([h], dist.AllreduceOptions()).wait()
        if residual is not None:
            h += residual
        return normalised(h, weight, eps, weight_bias, None, False).to(x.dtype), h

    def _engine_of(self, arguments: tuple[Any, ...]) -> Any:
        first = arguments[0]
        x = first[0] if type(first) is list and first else first
        if type(x) is not torch.Tensor:
            x = _first_tensor(arguments)
        engines = self._engines
        return (engines.cuda if x.is_cuda else engines.cpu if x.is_cpu else None) or engines.of(x.device)

    def barrier(self, *arguments: Any, **named: Any) -> dist.Work:
        """Wait until every rank has come: on the host, and for a GPU's barrier also for the stream."""
        self._sequence += 1
        (opts,) = with_options("barrier", arguments, named)
        device = opts.device or torch.device(next(iter(self._engines.kinds)))
        engine = self._engines.of(device)
        run = engine.barrier
        if type(engine) is not Engine:
            self._engines.record_delegated(device, "barrier", (opts,))
        work: dist.Work = run(opts) if not _profiling() else _recorded(f"{OURS}:barrier", run, (opts,))
        return work if self._coalescing is None else self._collected(work)

    def _collected(self, work: Any) -> Any:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Do as barrier(), and say on rank 0 which ranks did not come within the timeout."""
        self._barriers += 1
        place, store = self._place, _C10D.PrefixStore(f"monitored/{self._barriers}", self._place.store)
        within = place.timeout if timeout is None else timeout
        monitored_barrier(store, place.rank, place.size, within, wait_all_ranks)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works of the calls that follow; messages between GPUs go together."""
        if self._engines.kinds.get(device.type) != OURS:
            return self._engines.of(device)._start_coalescing()  # type: ignore[no-any-return]
        self._coalescing = []
        return self._engines.messages(device).start_batch()  # type: ignore[no-any-return]

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        if self._engines.kinds.get(device.type) != OURS:
            return self._engines.of(device)._end_coalescing()  # type: ignore[no-any-return]
        works, self._coalescing = self._coalescing or [], None
        if (batch := self._engines.messages(device).end_batch()) is not None:
            works = [*(work for work in works if work is not batch), batch]
        return Works(works)

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """All ranks count from 0, so there is nothing to agree on."""

    def _enable_collectives_timing(self) -> None:
        raise NotImplementedError('backend "commlib" keeps no times of single calls; use torch.profiler')

    def _register_on_completion_hook(self, hook: Callable[..., None]) -> None:
        raise NotImplementedError('backend "commlib" has no completion hooks; use Work.get_future().then(hook)')

    # --- groups of the group --------------------------------------------------------------------------------------

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._engines.of(device)

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Ranks outside a new group have no part in it."""

    def comm_split_count(self) -> int:
        return self._splits

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> CommlibGroup | None:
        self._splits += 1
        place = self._place
        if place.rank not in ranks:
            return None
        # Not the name, which torch before 2.14 makes from a count that ranks outside of a group do not share.
        store = _C10D.PrefixStore(f"split/{self._splits}/{'_'.join(map(str, ranks))}", place.store)
        types = {torch.device(device).type for device in device_types or self._device_types}
        kinds = {kind: name for kind, name in self._engines.kinds.items() if kind in types}
        where = Place(store, list(ranks).index(place.rank), len(ranks), timeout or place.timeout)
        # Before 2.14 torch passes a copy of the options of what serves the GPU, which may be its NCCL.
        made = CommlibGroup(where, kinds, opts if isinstance(opts, Options) else self.options)
        made.setGroupName(group_name or "")
        made._set_group_desc(group_desc or "")
        return made

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Warn, as torch does for backends with one timeout: trainers change it after the first step."""
        unchanged = f'the timeout of a "commlib" group stays {self._place.timeout}; new_group(timeout=…) sets another'
        warnings.warn(unchanged, stacklevel=3)

    # --- its end --------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        self._engines.end("this process group was destroyed", "shutdown")

    def abort(self) -> None:
        """End the communicators on all ranks: calls under way and later ones raise."""
        self._engines.end("this process group was aborted", "abort")


def _collective(name: str) -> Callable[..., Any]:
    options, label = SIGNATURES[name].options, f"{OURS}:{SIGNATURES[name].call}"

    def call(self: CommlibGroup, *arguments: Any, **named: Any) -> Any:
        if named or type(arguments[-1]) is not options:
            arguments = with_options(name, arguments, named)
        self._sequence += 1
        engine = self._engine_of(arguments)
        if type(engine) is Engine:
            run = getattr(engine, name)
        else:
            self._engines.record_delegated(_first_tensor(arguments).device, name, arguments)
            run = _method_of_torchs(engine, name)
        work = run(*arguments) if not _profiling() else _recorded(label, run, arguments)
        if _grad_enabled():
            _warn_in_backward(label, arguments[0])
        return work if self._coalescing is None else self._collected(work)

    return call


def _method_of_torchs(engine: Any, name: str) -> Callable[..., Any]:
    """Return a method of an engine of torch's, which before 2.14 has old names, and none for several tensors."""
    old = next((old for old, new in OLD_NAMES.items() if new == name), name)
    methods = [getattr(engine, each) for each in (name, old) if hasattr(engine, each)]
    if not methods and name.endswith("_coalesced"):
        single = _method_of_torchs(engine, name.removesuffix("_coalesced"))
        return lambda outs, xs, opts: Works([single(out, x, opts) for out, x in zip(outs, xs, strict=True)])
    return methods[0] if methods else getattr(engine, name)  # type: ignore[no-any-return]


def _warn_in_backward(label: str, written: Any) -> None:
    """Say in a backward pass that goes through what a call wrote that the call has none, as torch's groups do."""
    if type(written) is list:
        for each in written:
            _warn_in_backward(label, each)
    elif written.requires_grad:
        warning = f"{label} has no backward: gradients pass as if it had not been called, and may be wrong"
        node = torch.autograd.graph.get_gradient_edge(written).node
        node.register_prehook(lambda gradients: warnings.warn(warning, stacklevel=2))


def _message(name: str) -> Callable[..., Any]:
    def call(self: CommlibGroup, *arguments: Any) -> Any:
        run = getattr(self._engines.messages(arguments[0][0].device), name)
        return self._collected(run(*arguments) if not _profiling() else _recorded(f"{OURS}:{name}", run, arguments))

    return call


def _recorded(label: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make a call that profiles show; of an asynchronous one, its start."""
    with torch.profiler.record_function(label):
        return run(*arguments)


def _first_tensor(arguments: tuple[Any, ...]) -> torch.Tensor:
    if (x := first_tensor(arguments)) is None:
        raise ValueError("a collective of torch.distributed got no tensor")
    return x


_torchs_barrier: Any = dist.monitored_barrier  # refuses every backend but gloo by its name


@functools.wraps(_torchs_barrier)
def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    target: Any = group or dist.group.WORLD
    if not isinstance(target, CommlibGroup):
        _torchs_barrier(group, timeout, wait_all_ranks)
        return
    if isinstance(timeout, (int, float)):
        timeout = datetime.timedelta(seconds=timeout)
    target.monitored_barrier(timeout, wait_all_ranks)


for _name in SIGNATURES:
    if _name != "barrier":
        setattr(CommlibGroup, _name, _collective(_name))
for _name in MESSAGES:
    setattr(CommlibGroup, _name, _message(_name))
for _old, _name in OLD_NAMES.items():
    setattr(CommlibGroup, _old, getattr(CommlibGroup, _name))
untraced(CommlibGroup)
dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = _monitored_barrier
