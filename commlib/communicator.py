"""Communicator: check the call, ask the plan, run the algorithm."""

from __future__ import annotations

import logging
import math
import operator
import os
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, SupportsIndex, TypeVar, cast

import torch

from commlib import backends, compile, debug, env, guard, lifetime, log, native, objects
from commlib.agreement import agree, choose_plan, pin, settings, teach, teach_inside
from commlib.backends.base import Backend, Options
from commlib.bootstrap import connect
from commlib.bootstrap.given import given
from commlib.bootstrap.world import World
from commlib.collectives import COLLECTIVES, calls_of
from commlib.collectives.facts import FACTS, facts
from commlib.collectives.told import choice_of, plan_text
from commlib.counts import counted
from commlib.debug import metrics
from commlib.errors import Closed, CommError, limits_of, meant, no_unknown
from commlib.fused import Fused
from commlib.hooks import Hooks, SlowCall
from commlib.methods import Op
from commlib.plan import Explanation, Plan
from commlib.plan.rules import MODES, PLACEMENTS, size_text
from commlib.redops import redop_name
from commlib.subworld import split
from commlib.work import COLLECTIVE_CALLS, Lanes, StreamLanes

T = TypeVar("T")
_LOG = logging.getLogger("commlib")
LEAVE_S = 1.0  # for threads inside calls to come back when the process ends


@limits_of("init()")
def init(  # noqa: PLR0913 - what a user may decide
    *,
    backend: Any = "auto",
    bootstrap: Any = "auto",
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    plan: str | os.PathLike[str] | Plan = "auto",
    timeout_s: float | None = None,
    max_bytes: int | str | None = None,
    checked: bool | None = None,
    max_sms: int | None = None,
    **_unknown: NoReturn,
) -> Communicator:
    """Join the ranks that this process was started with; without a launcher, there is one rank.

    An argument that is omitted comes from its environment variable (docs/environment.md) or is detected.

    Args:
        backend: "nccl", "shm" or "torch"; or an existing NCCL communicator of these ranks: nccl4py's object, a torch
            process group or an address.
        bootstrap: Who started the ranks: "local" (`commlib run`), "torchrun", "mpi", "slurm", "single"; or a torch
            process group or an mpi4py communicator of these ranks.
        rank: This rank's number, where the program knows it; variables of launchers do not count then.
        size: The number of ranks, needed with rank.
        address: "host:port" at which rank 0 serves, the same on all ranks; needed with rank and size.
        plan: The path of a plan file, which rank 0 reads, or a Plan, the same on all ranks.
        timeout_s: The deadline of every wait for other ranks.
        max_bytes: The symmetric arena of each rank, for `empty()`: bytes, or "64M".
        checked: Whether ranks compare each call before it runs.
        max_sms: The multiprocessors of its GPU that a call takes at most, 0 for all; the others are left to the model.

    Raises:
        ValueError, TypeError: An argument or a variable is wrong.
        CommError: A rank did not come, the ranks disagree, or the backend does not work here.

    Example:
        >>> with commlib.init() as comm:
        ...     comm.all_reduce(torch.ones(4, device=comm.device))
    """
    no_unknown(init, _unknown)
    log.show()
    options, _ = settings(backend, plan, timeout_s=timeout_s, max_bytes=max_bytes, checked=checked, max_sms=max_sms)
    world = connect(given(bootstrap, rank, size, address), timeout_s=options.timeout_s)
    if world.rank == 0:
        log.warn_of_unknown()
    try:
        return Communicator._create(world, backend=backend, plan=plan, **options.shared)
    except BaseException:
        world.close()
        raise


class Communicator(Fused):
    """The collectives of a group of ranks, made by `commlib.init()`. All ranks make the same calls in the same order.

    Names, arguments and results are those of torch.distributed. These rules apply to all calls:

    Tensors must be on `comm.device` and contiguous; any size is allowed, also 0 bytes. Data of any torch dtype can be
    moved. Reductions are "sum", "prod", "min", "max", "avg", for integers also "band", "bor", "bxor", or torch's
    ReduceOp; they add in rank order, so all ranks get the same bits. A call returns the tensor with the result: `out`,
    or `x` in place.

    On CPUs a call returns when its result is there. On GPUs it enqueues its work on torch's current stream and returns;
    it can be captured into a CUDA graph. With `async_op=True` a call returns a `Work` at once. Its `wait()` waits for
    the call; on GPUs it makes the current stream wait. Do not use the tensors before that. Later calls run after it.
    Such a call leaves most of a GPU to what runs next to it, or what `max_sms=` leaves.

    `ValueError` and `TypeError` mean that this rank's arguments are wrong; no data has moved. `PeerLost`, `CommTimeout`
    and a disagreement (`CommError`) end the communicator on every rank: close it and call `commlib.init()` again.
    Every wait for other ranks ends after `timeout_s`.

    Attributes:
        rank, size: This rank's number, and the number of ranks.
        local_rank: This rank's number on its host.
        device: The device of its tensors.
        backend: Its backend: "nccl", "shm" or "torch".
        plan: The plan that chooses its algorithms; `explain` reads it, `use` switches to another one.
    """

    def __init__(self, world: World, backend: Backend, plan: Plan, options: Options) -> None:
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.backend, self.device, self.plan = backend.name, backend.device, plan
        self._world, self._backend, self._options = world, backend, options
        threads = backend.device.type == "cpu" or not backend.native
        self._lanes = Lanes() if threads else StreamLanes(backend.device)
        self._closed = False
        calls = calls_of(backend)
        self._leave_graphs = compile.register(self, getattr(calls, "checks", calls))
        self._calls = self._unordered = guard.watched(log.watched(calls, self), self)
        self.use(plan)
        lifetime.watch(self)
        debug.listen(native.library.guard_answers)
        metrics.start()
        world.when_mixed(self._mixed)

    @classmethod
    def _create(
        cls, world: World, *, backend: Any = "auto", plan: str | os.PathLike[str] | Plan = "auto", **limits: Any
    ) -> Communicator:
        """Make a communicator over a world that is connected; limits: those of LIMITS, as of init."""
        options, name = settings(backend, plan, **limits)
        if env.BIND.get() == "core":
            pin(world)
        agree(world, options, name)
        made = backends.create(name, world, options)
        try:
            teach(made, world, options.timeout_s)
            if made.hosts is not None:
                made.hosts.part.make(partial(teach_inside, made.hosts, options.timeout_s), options.timeout_s)
            chosen = choose_plan(world, made.plan_name, plan, options.timeout_s, options.beside)
            if world.rank == 0:
                room = f"{size_text(options.max_bytes)} of arena each, deadline {options.timeout_s:g} s"
                _LOG.info("%s by %s on %s, %s", counted(world.size, "rank"), world.name, made.device, room)
                _LOG.info("plan %s from %s: %s", chosen.digest, chosen.source, chosen.fit.said)
            return cls(world, made, chosen, options)
        except BaseException:
            made.close()
            raise

    # --- objects ------------------------------------------------------------------------------------------------

    def all_gather_object(self, obj: T) -> list[T]:
        """Return every rank's `obj` in rank order, pickled: only between processes you trust."""
        return objects.all_gather(self, obj)

    def broadcast_object(self, obj: T | None, src: int) -> T:
        """Return rank `src`'s `obj` on every rank, pickled; what other ranks pass is ignored."""
        return objects.broadcast(self, obj, src)

    # --- memory and choice --------------------------------------------------------------------------------------

    def empty(self, *shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return an uninitialised tensor in symmetric memory, which zero-copy algorithms can use.

        Args:
            shape: As in torch.empty: sizes, or a sequence of sizes; a dtype may come last.
            dtype: The element type.

        Raises:
            CommError: The arena (`max_bytes` of init()) is full.
        """
        dims, dtype = _shape_and_type(shape, dtype)
        self._lanes.let_go()
        return self._backend.empty(math.prod(dims) * dtype.itemsize).view(dtype).view(dims)

    def symmetric(self) -> AbstractContextManager[None]:
        """Put torch's own allocations into symmetric memory; only a GPU allocator can be redirected."""
        self._check_open()
        return self._backend.symmetric()

    def explain(  # noqa: PLR0913 - the keys of a rule
        self,
        op: str,
        num_bytes: int,
        dtype: torch.dtype | str = torch.float32,
        redop: Op = "sum",
        *,
        placement: str = "plain",
        mode: str = "eager",
        max_sms: int = 0,
        async_op: bool = False,
    ) -> Explanation:
        """Say which algorithm would run, by which rule of which plan; print the result.

        Args:
            op: The collective: "all_reduce", "all_gather", "all_to_all", "send_recv" …
            num_bytes: The size that nccl-tests prints: the larger of input and output; with a root, all ranks' blocks.
            dtype: The element type, or its name.
            redop: The reduction.
            placement: "symmetric" for tensors of `empty()`, else "plain".
            mode: "graph" for calls captured in a CUDA graph, else "eager".
            max_sms: The multiprocessors that the call takes at most, 0 for no limit.
            async_op: Whether the call is asynchronous: on GPUs it then leaves most multiprocessors to others.
        """
        name, known = str(dtype).removeprefix("torch."), facts(self._backend)
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise ValueError(f"dtype is {dtype!r}, but must be a torch.dtype or its name, e.g. 'bfloat16'")
        if not isinstance(num_bytes, SupportsIndex) or operator.index(num_bytes) < 0:
            raise ValueError(f"num_bytes is {num_bytes!r}, but must be an int of 0 or more")
        _one_of("op", op, COLLECTIVES)
        _one_of("placement", placement, PLACEMENTS)
        _one_of("mode", mode, MODES)
        limit, own_limit = env.MAX_SMS.given(max_sms, "max_sms"), self._options.max_sms
        keys: dict[str, Any] = {"world": self.size, "placement": placement, "mode": mode, "facts": known}
        keys |= {"max_sms": 0 if own_limit and limit >= own_limit else limit, "async_op": async_op and not own_limit}
        found = self._limited.explain(op, num_bytes, name, redop_name(redop), **keys)
        found = replace(found, sms=min(found.sms, own_limit or found.sms))
        hosts, link = self._backend.hosts, COLLECTIVES[op].algorithm(found.algorithm).link
        return found if hosts is None or link is None else replace(found, link=str(link(len(hosts.ranks), num_bytes)))

    def use(self, plan: Plan) -> None:
        """Switch to another `plan`; every rank must call this at the same place, with the same plan."""
        self._check_open()
        if not isinstance(plan, Plan):
            raise TypeError(f"plan is of type {type(plan).__name__}, but must be a commlib.Plan; Plan.load() reads one")
        self._lanes.drain(COLLECTIVE_CALLS)
        limited = plan.limited(most, FACTS) if (most := self._options.max_sms) else plan
        if (group := self._backend.native_group) is not None:
            group.set_plan(plan_text(limited, self.size, self.backend))
        elif not self._backend.native:
            self._backend.choose = choice_of(plan, self._backend)
        self.plan, self._limited = plan, limited

    # --- life ---------------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0, *, max_sms: int | None = None) -> Communicator | None:
        """Make one communicator for each color and return this rank's; every rank must call it.

        Args:
            color: Ranks with the same color form a communicator; a rank with color None gets None.
            key: The new ranks are in the order of (key, rank).
            max_sms: As of init(), the same on all ranks of a color; without it, as of this communicator.
        """
        for name, number in (("color", 0 if color is None else color), ("key", key)):
            if not isinstance(number, SupportsIndex):
                raise TypeError(f"{name} is of type {type(number).__name__}, but must be an int")
        limits = self._options.shared | ({} if max_sms is None else {"max_sms": max_sms})
        make = partial(Communicator._create, backend=self.backend, plan=self.plan, **limits)
        return split(self, color, key, make)

    def check(self) -> None:
        """Raise if a peer is gone or the communicator has ended."""
        self._check_open()
        calls: Any = self._unordered
        if isinstance(calls, Hooks):
            calls.watch(self._backend.check)
        else:
            self._backend.check()

    def on_error(self, callback: Callable[[CommError], object]) -> None:
        """Have a function called with the error that ends the communicator, once, before a call or check() raises it.

        The thread that makes the call runs it; with `async_op=True` on CPUs, that is one of commlib's. What it raises
        is logged.

        Args:
            callback: A function of the error.
        """
        self._hooks().on_error(callback)

    def on_slow(self, callback: Callable[[SlowCall], object], factor: float) -> None:
        """Have a function called after each call that takes `factor` times as long as usual, and 1 ms longer.

        Usual is the median of the last 32 calls of the operation, size and type; the first 8 are never slow. The thread
        that makes the call runs it. What it raises is logged. On GPUs a later call tells; graphs are not timed.

        Args:
            callback: A function of a `commlib.hooks.SlowCall`: what took how long, and how long each rank kept it.
            factor: Above 1.
        """
        self._hooks().on_slow(callback, factor)

    def _hooks(self) -> Hooks:
        self._check_open()
        self._lanes.drain(COLLECTIVE_CALLS)
        if not isinstance(cast("Any", self._unordered), Hooks):
            self._calls = self._unordered = cast("Any", Hooks(self._unordered, self))
        return cast("Hooks", self._unordered)

    def abort(self, why: str = "") -> None:
        """End the communicator on all ranks: calls under way and later ones raise CommError, with `why` in it."""
        self._check_open()
        said = (str(why) or f"rank {self.rank} aborted the communicator").encode(errors="replace").decode()
        self._backend.abort(said)  # half a surrogate pair was no text
        self._lanes.close(CommError(said))

    def close(self) -> None:
        """Release everything this rank holds; may be called twice. On GPUs, wait some seconds for the other ranks."""
        self._end(self._backend.close, 0.0)

    def _leave(self) -> None:
        """As close(), when the process ends: nothing may be started, or waited for longer than a moment."""
        self._end(self._backend.leave, LEAVE_S)

    def _end(self, end: Callable[[], None], wait_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        end()
        self._leave_graphs()
        self._lanes.close(Closed("this communicator was closed before the call was done; wait() first"), wait_s)
        # The calls hold the memory; tensors from empty() that still live keep it, nothing else does.
        self._lanes = self._calls = self._unordered = cast("Any", _Closed())
        self._world.close()

    def _mixed(self, why: str) -> None:
        """End it: its ranks are of two jobs. Called by a thread of the world's."""
        with suppress(CommError):  # it has ended
            self.abort(why)

    def _abandon(self) -> None:
        """Forget everything without a word to the peers: for a forked child, whose parent goes on."""
        if not self._closed:
            self._closed = True
            self._backend.abandon()
            self._leave_graphs()
            self._lanes = self._calls = self._unordered = cast("Any", _Closed())  # the parent's threads are not here

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
            raise Closed("this communicator is closed; call commlib.init() for a new one")


def _shape_and_type(shape: tuple[Any, ...], dtype: torch.dtype) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the arguments of empty(), which are those of torch.empty: sizes or a sequence of them, and a type."""
    if shape and isinstance(shape[-1], torch.dtype):
        shape, dtype = shape[:-1], shape[-1]
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype of empty is {dtype!r}, but must be a torch.dtype, e.g. torch.float32")
    dims = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    try:
        sizes = tuple(map(operator.index, dims))
    except TypeError:
        raise TypeError(f"shape of empty is {dims!r}, but must be ints") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape of empty is {sizes}, but sizes are 0 or more")
    return sizes, dtype


def _one_of(name: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}{meant(str(value), known)}")


class _Closed:
    """Stands in for the calls after close()."""

    def __getattr__(self, name: str) -> Any:
        raise Closed("this communicator is closed; call commlib.init() for a new one")
