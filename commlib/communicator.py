"""Communicator: check the call, ask the plan, run the algorithm."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch

from commlib import backends, env, lifetime, objects
from commlib.agreement import agree, choose_plan, pin, settings
from commlib.backends.base import Backend, Options
from commlib.bootstrap import connect
from commlib.bootstrap.world import World
from commlib.collectives import COLLECTIVES, REDOPS, entry, introduce
from commlib.collectives.all_to_all import agree_splits, row_splits
from commlib.collectives.facts import facts
from commlib.errors import Closed
from commlib.plan import Explanation, Plan, Query
from commlib.redops import redop_code
from commlib.subworld import split
from commlib.work import COLLECTIVE_CALLS, Lanes, StreamLanes, StreamWork, Work

T = TypeVar("T")
_LOG = logging.getLogger("commlib")
LEAVE_S = 1.0  # for threads inside calls to come back when the process ends


def init(
    *,
    backend: Any = "auto",
    bootstrap: Any = "auto",
    plan: str | os.PathLike[str] | Plan = "auto",
    timeout_s: float | None = None,
    max_bytes: int | None = None,
    checked: bool | None = None,
) -> Communicator:
    """Join the ranks this process was started with; without a launcher, make a world of one.

    `backend` is a name, or an NCCL communicator of these ranks to run on: nccl4py's, a torch group's, an address.
    """
    options, _ = settings(backend, plan, timeout_s, max_bytes, checked)
    world = connect(bootstrap, timeout_s=options.timeout_s)
    try:
        return Communicator.create(world, backend=backend, plan=plan, **options.shared)
    except BaseException:
        world.close()
        raise


class Communicator:
    """The collectives of one group of ranks. Every rank makes the same calls in the same order."""

    rank: int
    size: int

    def __init__(self, world: World, backend: Backend, plan: Plan, options: Options) -> None:
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.backend, self.device, self.plan = backend.name, backend.device, plan
        self._world, self._backend, self._options = world, backend, options
        threads = backend.device.type == "cpu" or not backend.native
        self._lanes: Lanes | StreamLanes = Lanes() if threads else StreamLanes(backend.device)
        self._closed = self._queues = False
        self._bind()
        self.use(plan)
        lifetime.watch(self)

    def _bind(self) -> None:
        """Take the entry points once: a call then is one native call."""
        backend = self._backend
        # By reduction: a dictionary of strings and a call of one tensor are the shortest way there is.
        self._all_reduce = {op: entry(backend, f"all_reduce_{op}") for op in REDOPS}
        self._all_reduce_into = {op: entry(backend, f"all_reduce_{op}_into") for op in REDOPS}
        self._entries = {name: entry(backend, name) for name in COLLECTIVES if name not in ("all_reduce", "send_recv")}
        self._raw = dict(self._entries)
        self._enqueue_barrier = getattr(backend, "enqueue_barrier", self._raw["barrier"])
        self._send, self._recv = entry(backend, "send"), entry(backend, "recv")

    @classmethod
    def create(
        cls,
        world: World,
        *,
        backend: Any = "auto",
        plan: str | os.PathLike[str] | Plan = "auto",
        timeout_s: float | None = None,
        max_bytes: int | None = None,
        checked: bool | None = None,
    ) -> Communicator:
        """Make a communicator over a world that is already connected."""
        options, name = settings(backend, plan, timeout_s, max_bytes, checked)
        if env.BIND.get() == "core":
            pin(world)
        agree(world, options, name)
        made = introduce(backends.create(name, world, options))
        try:
            chosen = choose_plan(world, made.plan_name, plan, options.timeout_s)
            if world.rank == 0:
                where = f"{world.size} ranks by {world.name}, backend {made.name} on {made.device}"
                _LOG.info("%s, plan %s from %s", where, chosen.digest, chosen.source)
            return cls(world, made, chosen, options)
        except BaseException:
            made.close()
            raise

    # --- reductions ---------------------------------------------------------------------------------------------

    def all_reduce(
        self, x: torch.Tensor, op: Any = "sum", out: torch.Tensor | None = None, async_op: bool = False
    ) -> Any:
        """Reduce over all ranks, in place unless `out` is given; returns the result."""
        if async_op:
            return self._later("all_reduce", lambda: self.all_reduce(x, op, out))
        if out is not None:
            self._all_reduce_into[REDOPS[redop_code(op)]](out, x)
            return out
        try:
            reduce = self._all_reduce[op]
        except (KeyError, TypeError):
            reduce = self._all_reduce[REDOPS[redop_code(op)]]
        reduce(x)
        return x

    def reduce(
        self,
        x: torch.Tensor,
        dst: int,
        op: Any = "sum",
        out: torch.Tensor | None = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce to rank `dst`, into `out` or in place; other ranks' tensors stay as they are."""
        target = x if out is None else out
        return self._do("reduce", (target, x, dst, redop_code(op)), target, async_op)

    def reduce_scatter_tensor(self, out: torch.Tensor, x: torch.Tensor, op: Any = "sum", async_op: bool = False) -> Any:
        """Reduce over all ranks and keep block `rank` of the result."""
        if async_op:
            return self._do_later("reduce_scatter", (out, x, redop_code(op)), out)
        self._entries["reduce_scatter"](out, x, redop_code(op))
        return out

    def reduce_scatterv(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        sizes: Sequence[int],
        op: Any = "sum",
        async_op: bool = False,
    ) -> Any:
        """Reduce over all ranks and keep block `rank`, where block r has `sizes[r]` elements."""
        return self._do("reduce_scatterv", (out, x, tuple(sizes), redop_code(op)), out, async_op)

    # --- moves --------------------------------------------------------------------------------------------------

    def all_gather_into_tensor(self, out: torch.Tensor, x: torch.Tensor, async_op: bool = False) -> Any:
        """Put every rank's `x` into `out`, in rank order."""
        if async_op:
            return self._do_later("all_gather", (out, x), out)
        self._entries["all_gather"](out, x)
        return out

    def all_gatherv(self, out: torch.Tensor, x: torch.Tensor, sizes: Sequence[int], async_op: bool = False) -> Any:
        """Put every rank's `x` into `out`, where rank r's has `sizes[r]` elements."""
        return self._do("all_gatherv", (out, x, tuple(sizes)), out, async_op)

    all_gather_single = all_gather_into_tensor
    reduce_scatter_single = reduce_scatter_tensor

    def all_to_all_single(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send block j of `x` to rank j; splits are rows of the first dimension, equal blocks without them."""
        if out_splits is None and in_splits is None:
            if async_op:
                return self._do_later("all_to_all", (out, x), out)
            self._entries["all_to_all"](out, x)
            return out
        if async_op:
            return self._later("all_to_all", lambda: self.all_to_all_single(out, x, out_splits, in_splits))
        from_each, to_each = row_splits(out, out_splits, x, in_splits, self.size)
        longest = agree_splits(self, from_each, to_each) if self._backend.agrees_splits else max(from_each + to_each)
        self._entries["all_to_allv"](out, x, from_each, to_each, longest)
        return out

    def broadcast(self, x: torch.Tensor, src: int, async_op: bool = False) -> Any:
        """Make every rank's `x` a copy of rank `src`'s."""
        if async_op:
            return self._do_later("broadcast", (x, src), x)
        self._entries["broadcast"](x, src)
        return x

    def gather(self, x: torch.Tensor, dst: int, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """Stack every rank's `x` on rank `dst` and return it there; None elsewhere."""
        if self.rank != dst:
            return self._do("gather", (x, x, dst), None, async_op)
        target = x.new_empty((self.size, *x.shape)) if out is None else out
        return self._do("gather", (target, x, dst), target, async_op)

    def scatter(self, x: torch.Tensor | None, src: int, out: torch.Tensor | None = None, async_op: bool = False) -> Any:
        """Give rank r block r of rank `src`'s `x`; ranks other than `src` pass the `out` to fill."""
        if self.rank == src:
            if x is None:
                raise ValueError(f"scatter: rank {src} is the source and needs x")
            target = x.new_empty(x.shape[1:]) if out is None else out
            return self._do("scatter", (target, x, src), target, async_op)
        if out is None:
            raise ValueError(f"scatter: rank {self.rank} receives from rank {src} and needs out=")
        return self._do("scatter", (out, out, src), out, async_op)

    def send(self, x: torch.Tensor, dst: int, async_op: bool = False) -> Work | StreamWork | None:
        """Send to rank `dst`; pairs of send and recv match in the order of their calls."""
        return self._message("send", self._send, x, dst, async_op)

    def recv(self, x: torch.Tensor, src: int, async_op: bool = False) -> Any:
        """Receive from rank `src` into `x`."""
        return self._message("recv", self._recv, x, src, async_op) or x

    def barrier(self, async_op: bool = False) -> Work | StreamWork | None:
        """Return once every rank has called it."""
        if async_op:
            return self._later("barrier", self._enqueue_barrier)
        self._entries["barrier"]()
        return None

    # --- objects ------------------------------------------------------------------------------------------------

    def all_gather_object(self, obj: T) -> list[T]:
        """Return every rank's object, pickled between processes of this user."""
        return objects.all_gather(self, obj)

    def broadcast_object(self, obj: T | None, src: int) -> T:
        """Return rank `src`'s object on every rank."""
        return objects.broadcast(self, obj, src)

    # --- memory and choice --------------------------------------------------------------------------------------

    def empty(self, *shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor in symmetric memory: zero-copy algorithms apply to it."""
        if shape and isinstance(shape[-1], torch.dtype):
            *shape_list, dtype = shape
            shape = tuple(shape_list)
        dims = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        count = 1
        for n in dims:
            count *= n
        self._check_open()
        return self._backend.empty(count * dtype.itemsize).view(dtype).view(dims)

    def symmetric(self) -> AbstractContextManager[None]:
        """Put torch's own allocations into symmetric memory; only a GPU allocator can be redirected."""
        self._check_open()
        return self._backend.symmetric()

    def explain(
        self,
        op: str,
        num_bytes: int,
        dtype: torch.dtype | str = torch.float32,
        redop: str = "sum",
        *,
        placement: str = "plain",
        mode: str = "eager",
    ) -> Explanation:
        """Say which algorithm would run, by which rule of which plan."""
        if op not in COLLECTIVES:
            raise ValueError(f"unknown collective {op!r}; known: {', '.join(COLLECTIVES)}")
        call = Query(op, num_bytes, str(dtype).removeprefix("torch."), redop, self.size, placement, mode)
        return self.plan.explained(call, facts(self._backend.has_arena))

    def use(self, plan: Plan) -> None:
        """Switch to another plan; every rank calls it at the same place with the same plan."""
        self._check_open()
        self._lanes.drain(COLLECTIVE_CALLS)
        self._backend.set_plan(plan)
        self.plan = plan

    # --- life ---------------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make one communicator for each color, ranked by (key, rank); color None stays out and gets None."""
        make = partial(Communicator.create, backend=self.backend, plan=self.plan, **self._options.shared)
        return split(self, color, key, make)

    def check(self) -> None:
        """Raise if a peer is gone or the communicator has ended."""
        self._check_open()
        self._backend.check()

    def abort(self, why: str = "") -> None:
        """End the communicator on all ranks: calls under way and later ones raise CommError."""
        self._check_open()
        said = why or f"rank {self.rank} aborted the communicator"
        self._backend.abort(said.encode(errors="replace").decode())  # half a surrogate pair is no text

    def close(self) -> None:
        """Release everything this rank holds; twice is fine. On GPUs all ranks close together, or some seconds pass."""
        self._end(self._backend.close, 0.0)

    def leave(self) -> None:
        """As close(), when the process ends: nothing may be started, or waited for longer than a moment."""
        self._end(self._backend.leave, LEAVE_S)

    def _end(self, end: Callable[[], None], wait_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        end()
        # The entry points hold the memory; tensors from empty() that still live keep it, nothing else does.
        self._all_reduce = self._all_reduce_into = dict.fromkeys(REDOPS, _closed_entry)
        self._send = self._recv = self._enqueue_barrier = _closed_entry
        self._entries = self._raw = dict.fromkeys(self._entries, _closed_entry)
        self._lanes.close(Closed("this communicator was closed before the call was done; wait() first"), wait_s)
        self._world.close()

    def abandon(self) -> None:
        """Forget everything without a word to the peers: for a forked child, whose parent goes on."""
        if not self._closed:
            self._closed = True
            self._backend.abandon()

    def __enter__(self) -> Communicator:
        """Close at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an error, tell the peers first."""
        try:
            if kind is not None and not self._closed:
                said = "".join(traceback.format_exception_only(kind, error)).strip()
                self.abort(f"rank {self.rank} left the communicator with {said}")
        finally:
            self.close()

    def __repr__(self) -> str:
        """Return rank, size and backend."""
        return f"<Communicator rank {self.rank} of {self.size} on {self.backend}>"

    def __reduce__(self) -> Any:
        """A communicator belongs to its process."""
        raise TypeError("a Communicator cannot be pickled; create one in each process with commlib.init()")

    # --- inside -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            _closed_entry()

    def _do(self, name: str, arguments: tuple[Any, ...], result: Any, async_op: bool) -> Any:
        if async_op:
            return self._do_later(name, arguments, result)
        self._entries[name](*arguments)
        return result

    def _do_later(self, name: str, arguments: tuple[Any, ...], result: Any) -> Work | StreamWork:
        run = self._raw[name]
        return self._later(name, lambda: run(*arguments) or result)

    def _message(
        self, name: str, run: Callable[..., Any], x: torch.Tensor, peer: int, async_op: bool
    ) -> Work | StreamWork | None:
        if async_op:
            return self._lanes.submit((name, peer), name, lambda: run(x, peer) or x)
        if self._lanes.used:
            self._check_open()
            self._lanes.drain(COLLECTIVE_CALLS, (name, peer))
        run(x, peer)
        return None

    def _later(self, name: str, call: Callable[[], Any]) -> Work | StreamWork:
        self._check_open()
        if not self._queues:
            self._queues = True
            # From now on the fast path has to queue behind the lane; until now it need not look.
            for entries in (self._all_reduce, self._all_reduce_into, self._entries):
                entries.update({op: self._lanes.after(run) for op, run in entries.items()})
        return self._lanes.submit(COLLECTIVE_CALLS, name, call)


def _closed_entry(*arguments: Any) -> None:
    raise Closed("this communicator is closed; call commlib.init() for a new one")
