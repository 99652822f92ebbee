"""Communicator: check the call, ask the plan, run the algorithm."""

from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, cast, overload
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from commlib import backends, env, native
from commlib.backends.base import Backend, Options
from commlib.bootstrap import connect, explicit_rank
from commlib.bootstrap.world import World
from commlib.collectives import COLLECTIVES, calls_of
from commlib.collectives.all_reduce_rms_norm import COMPUTED_SCALES, FP8, scale_shape
from commlib.collectives.plugins import load_natives
from commlib.compile.operators import register
from commlib.core import guard, log
from commlib.core.dispatch import Dispatcher
from commlib.core.hooks import Hooks, SlowCall
from commlib.core.setup import check_same_settings, choose_plan, settings, split
from commlib.core.work import StreamExecutor, ThreadExecutor, Work
from commlib.counts import counted
from commlib.debug import metrics
from commlib.debug.stacks import listen
from commlib.errors import CLOSED, Closed, CommError, limits_of, one_of
from commlib.native import library
from commlib.plan import Plan
from commlib.plan.rules import MODES, PLACEMENTS, Query, size_text
from commlib.plan.table import Explanation, choice_of, plan_text, rows_text, table_of
from commlib.redops import Redop, redop_name

Now: TypeAlias = Literal[False]
Later: TypeAlias = Literal[True]
Op: TypeAlias = "Redop | dist.ReduceOp.RedOpType"
"""A reduction: its name, or torch.distributed.ReduceOp.SUM and its kind."""

Out: TypeAlias = "Tensor | None"
Sizes: TypeAlias = "Sequence[int]"
Splits: TypeAlias = "Sequence[int] | None"
_INTERNAL = ("dispatcher", "graph_name", "options", "resources", "world")
T = TypeVar("T")
_LOG = logging.getLogger("commlib")
OBSERVERS = (log.observer, guard.observer)  # of all calls, where a variable asks for them
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
) -> Communicator:
    """Join the ranks that this process was started with; without a launcher, there is one rank.

    An argument that is omitted comes from its environment variable (docs/environment.md) or is detected.

    Args:
        backend: "nccl", "shm" or "torch"; or an existing NCCL communicator of these ranks: nccl4py's object, a torch
            process group or an address.
        bootstrap: Who started the ranks: "torchrun" (also for `commlib run`), "mpi", "slurm", "single"; or a torch
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
    log.show()
    options, _ = settings(backend, plan, timeout_s=timeout_s, max_bytes=max_bytes, checked=checked, max_sms=max_sms)
    world = connect(bootstrap, options.timeout_s, explicit_rank(bootstrap, rank, size, address))
    if world.rank == 0:
        log.warn_of_unknown()
    try:
        return create(world, backend=backend, plan=plan, **options.shared)
    except BaseException:
        world.close()
        raise


def create(
    world: World, *, backend: Any = "auto", plan: str | os.PathLike[str] | Plan = "auto", **limits: Any
) -> Communicator:
    """Make a communicator over a world that is connected; limits: those of LIMITS, as of init()."""
    options, name = settings(backend, plan, **limits)
    check_same_settings(world, options, name)
    made = backends.create(name, world, options)
    try:
        if made.native_group is not None:
            load_natives(COLLECTIVES, made.name, world, options.timeout_s)
            made.native_group.learn(rows_text(made.name, world.size))
        chosen = choose_plan(world, made.plan_name, plan, options.timeout_s, options.other_backends)
        if world.rank == 0:
            room = f"{size_text(options.max_bytes)} of arena each, deadline {options.timeout_s:g} s"
            _LOG.info("%s by %s on %s, %s", counted(world.size, "rank"), world.name, made.device, room)
            _LOG.info("plan %s from %s: %s", chosen.digest, chosen.source, chosen.fit.description)
        return Communicator(world, made, chosen, options)
    except BaseException:
        made.close()
        raise


class Communicator:
    """The collectives of a group of ranks, made by `commlib.init()`. All ranks make the same calls in the same order.

    Names, arguments and results are those of torch.distributed. These rules apply to all calls:

    Tensors must be on `comm.device` and contiguous; any size is allowed, also 0 bytes. Data of any torch dtype can be
    moved. A reduction `op` is "sum", "prod", "min", "max", "avg", for integers also "band", "bor", "bxor", or torch's
    ReduceOp; all add in rank order, so all ranks get the same bits. The ranks `dst` and `src` get and send the data. A
    call returns the tensor with the result: `out`, or `x` in place.

    On CPUs a call returns when its result is there. On GPUs it enqueues its work on torch's current stream and returns;
    it can be captured into a CUDA graph. With `async_op=True` a call returns a `Work` at once. Its `wait()` waits for
    the call; on GPUs it makes the current stream wait. Do not use the tensors before that. Later calls run after it.
    A call takes at most `max_sms` multiprocessors of its GPU, 0 for no limit; an asynchronous one without a limit
    leaves most of the GPU to what runs next to it.

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
        self.rank: int = world.rank
        self.size: int = world.size
        self.local_rank = world.local_rank
        self.backend, self.device, self.plan = backend.name, backend.device, plan
        self.world, self.resources, self.options = world, backend, options  # these and dispatcher: for commlib itself
        self._closed = False
        self._calls = calls_of(backend)
        threads = backend.device.type == "cpu" or not backend.native
        executor = ThreadExecutor() if threads else StreamExecutor(backend.device)
        self.dispatcher = Dispatcher(self, self._calls, executor, native=backend.native)
        for observer in OBSERVERS:
            if (made := observer(backend, self.dispatcher, self.explain)) is not None:
                self.dispatcher.observe(made)
        self._hooks: Hooks | None = None
        self.graph_name, self._leave_graphs = register(self, getattr(self._calls, "checks", self._calls))
        self.use(plan)
        _OPEN.add(self)
        listen(native.library.guard_answers)
        metrics.start()

    # --- reductions ---------------------------------------------------------------------------------------------

    @overload
    def all_reduce(
        self, x: Tensor, op: Op = ..., out: Out = ..., async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor: ...
    @overload
    def all_reduce(self, x: Tensor, op: Op = ..., out: Out = ..., *, async_op: Later, max_sms: int = ...) -> Work: ...
    def all_reduce(
        self, x: Tensor, op: Op = "sum", out: Out = None, async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Reduce over all ranks; every rank gets the result. `op`, `async_op` and `max_sms`: see Communicator.

        Args:
            x: This rank's part, of one shape and type on all ranks; without `out` the result replaces it.
            out: Where to put the result: as many elements as `x`, of its type; `x` then stays as it is.

        Example:
            >>> comm.all_reduce(torch.tensor([1.0, 2.0]))  # on two ranks
            tensor([2., 4.])
        """
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("all_reduce", (x, op, out), x if out is None else out, async_op, max_sms)
        return self._calls.all_reduce(x, op, out)

    @overload
    def reduce(
        self, x: Tensor, dst: int, op: Op = ..., out: Out = ..., async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor: ...
    @overload
    def reduce(
        self, x: Tensor, dst: int, op: Op = ..., out: Out = ..., *, async_op: Later, max_sms: int = ...
    ) -> Work: ...
    def reduce(
        self, x: Tensor, dst: int, op: Op = "sum", out: Out = None, async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Reduce over all ranks; rank `dst` gets the result. `op`, `async_op` and `max_sms`: see Communicator.

        Args:
            x: As in all_reduce; on ranks other than `dst` it stays as it is.
            out: As in all_reduce; other ranks' `out` stays as it is.

        Example:
            >>> comm.reduce(torch.tensor([1.0, 2.0]), dst=0, op="max")
            tensor([1., 2.])
        """
        target = x if out is None else out
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("reduce", (out, x, dst, op), target, async_op, max_sms)
        self._calls.reduce(out, x, dst, op)
        return target

    @overload
    def reduce_scatter_tensor(
        self, out: Tensor, x: Tensor, op: Op = ..., async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor: ...
    @overload
    def reduce_scatter_tensor(
        self, out: Tensor, x: Tensor, op: Op = ..., *, async_op: Later, max_sms: int = ...
    ) -> Work: ...
    def reduce_scatter_tensor(
        self, out: Tensor, x: Tensor, op: Op = "sum", async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Reduce over all ranks and keep block `rank`. `op`, `async_op` and `max_sms`: see Communicator.

        Args:
            out: Where to put this rank's block: x.numel() / size elements. It may be block `rank` of `x` itself.
            x: One block for each rank, the first dimension first.

        Example:
            >>> comm.reduce_scatter_tensor(torch.empty(2), torch.arange(4.0))  # rank 1 of two
            tensor([4., 6.])
        """
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("reduce_scatter", (out, x, op), out, async_op, max_sms)
        self._calls.reduce_scatter(out, x, op)
        return out

    @overload
    def reduce_scatterv(
        self, out: Tensor, x: Tensor, sizes: Sizes, op: Op = ..., async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor: ...
    @overload
    def reduce_scatterv(
        self, out: Tensor, x: Tensor, sizes: Sizes, op: Op = ..., *, async_op: Later, max_sms: int = ...
    ) -> Work: ...
    def reduce_scatterv(
        self, out: Tensor, x: Tensor, sizes: Sizes, op: Op = "sum", async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Do as reduce_scatter_tensor (`op`, `async_op` and `max_sms`, too), in blocks of different sizes.

        Args:
            out: `sizes[rank]` elements.
            x: `sum(sizes)` elements.
            sizes: The elements of each rank's block, the same on all ranks.

        Example:
            >>> comm.reduce_scatterv(torch.empty(1 + 2 * comm.rank), torch.arange(4.0), [1, 3])  # rank 1 of two
            tensor([2., 4., 6.])
        """
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("reduce_scatterv", (out, x, sizes, op), out, async_op, max_sms)
        self._calls.reduce_scatterv(out, x, sizes, op)
        return out

    reduce_scatter_single = reduce_scatter_tensor

    # --- moves --------------------------------------------------------------------------------------------------

    @overload
    def all_gather_into_tensor(self, out: Tensor, x: Tensor, async_op: Now = ..., *, max_sms: int = ...) -> Tensor: ...
    @overload
    def all_gather_into_tensor(self, out: Tensor, x: Tensor, async_op: Later, *, max_sms: int = ...) -> Work: ...
    def all_gather_into_tensor(
        self, out: Tensor, x: Tensor, async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Put every rank's `x` into `out`, in rank order. `async_op` and `max_sms`: see Communicator.

        Args:
            out: Where to put them: size × x.numel() elements of any shape.
            x: This rank's block, of one size and type on all ranks. It may be block `rank` of `out` itself.

        Example:
            >>> comm.all_gather_into_tensor(torch.empty(2, 1), torch.tensor([float(comm.rank)]))
            tensor([[0.],
                    [1.]])
        """
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("all_gather", (out, x), out, async_op, max_sms)
        self._calls.all_gather(out, x)
        return out

    all_gather_single = all_gather_into_tensor

    @overload
    def all_gatherv(
        self, out: Tensor, x: Tensor, sizes: Sizes, async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor: ...
    @overload
    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sizes, async_op: Later, *, max_sms: int = ...) -> Work: ...
    def all_gatherv(
        self, out: Tensor, x: Tensor, sizes: Sizes, async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Do as all_gather_into_tensor (`async_op` and `max_sms`, too), in blocks of different sizes.

        Args:
            out: `sum(sizes)` elements.
            x: `sizes[rank]` elements.
            sizes: The elements of each rank's `x`, the same on all ranks.

        Example:
            >>> comm.all_gatherv(torch.empty(3), torch.ones(comm.rank + 1), [1, 2])
            tensor([1., 1., 1.])
        """
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("all_gatherv", (out, x, sizes), out, async_op, max_sms)
        self._calls.all_gatherv(out, x, sizes)
        return out

    @overload
    def all_to_all_single(
        self,
        out: Tensor,
        x: Tensor,
        out_splits: Splits = ...,
        in_splits: Splits = ...,
        async_op: Now = ...,
        *,
        max_sms: int = ...,
    ) -> Tensor: ...
    @overload
    def all_to_all_single(
        self,
        out: Tensor,
        x: Tensor,
        out_splits: Splits = ...,
        in_splits: Splits = ...,
        *,
        async_op: Later,
        max_sms: int = ...,
    ) -> Work: ...
    def all_to_all_single(
        self,
        out: Tensor,
        x: Tensor,
        out_splits: Splits = None,
        in_splits: Splits = None,
        async_op: bool = False,
        *,
        max_sms: int = 0,
    ) -> Tensor | Work:
        """Send block j of `x` to rank j. `async_op` and `max_sms`: see Communicator.

        Args:
            out: Where to put the blocks that come, in rank order.
            x: One block for each rank. It may be `out` itself where no splits are given.
            out_splits: The rows of the first dimension that come from each rank; without it, equal blocks.
            in_splits: The rows that go to each rank; rank i's in_splits[j] is rank j's out_splits[i].

        Example:
            >>> comm.all_to_all_single(torch.empty(2), torch.tensor([0.0, 1.0]) + 10 * comm.rank)  # rank 1 of two
            tensor([ 1., 11.])
        """
        if out_splits is None and in_splits is None:
            if async_op or max_sms or self.dispatcher.detour:
                return self.dispatcher.call("all_to_all", (out, x), out, async_op, max_sms)
            self._calls.all_to_all(out, x)
            return out
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("all_to_allv", (out, x, out_splits, in_splits), out, async_op, max_sms)
        self._calls.all_to_allv(out, x, out_splits, in_splits)
        return out

    @overload
    def broadcast(self, x: Tensor, src: int, async_op: Now = ..., *, max_sms: int = ...) -> Tensor: ...
    @overload
    def broadcast(self, x: Tensor, src: int, async_op: Later, *, max_sms: int = ...) -> Work: ...
    def broadcast(self, x: Tensor, src: int, async_op: bool = False, *, max_sms: int = 0) -> Tensor | Work:
        """Make every rank's `x` a copy of rank `src`'s. `async_op` and `max_sms`: see Communicator.

        Args:
            x: What rank `src` sends, and where the others get it; of one size and type on all ranks.

        Example:
            >>> comm.broadcast(torch.tensor([comm.rank]), src=1)
            tensor([1])
        """
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("broadcast", (x, src), x, async_op, max_sms)
        self._calls.broadcast(x, src)
        return x

    @overload
    def gather(
        self, x: Tensor, dst: int, out: Out = ..., async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor | None: ...
    @overload
    def gather(self, x: Tensor, dst: int, out: Out = ..., *, async_op: Later, max_sms: int = ...) -> Work: ...
    def gather(
        self, x: Tensor, dst: int, out: Out = None, async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work | None:
        """Stack every rank's `x` on rank `dst`. `async_op` and `max_sms`: see Communicator.

        Args:
            x: This rank's block, of one size and type on all ranks.
            out: Where rank `dst` puts them, size × x.numel() elements; without it a new tensor. Others' is ignored.

        Returns:
            On rank `dst`, `out` or a new tensor of shape (size, *x.shape); None on the other ranks.

        Example:
            >>> comm.gather(torch.tensor([comm.rank]), dst=0)  # rank 0 of two
            tensor([[0],
                    [1]])
        """
        result = None
        if self.rank == dst:
            result = _made("gather", x, lambda: (self.size, *x.shape)) if out is None else out
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("gather", (result, x, dst), result, async_op, max_sms)
        self._calls.gather(result, x, dst)
        return result

    @overload
    def scatter(
        self, x: Tensor | None, src: int, out: Out = ..., async_op: Now = ..., *, max_sms: int = ...
    ) -> Tensor: ...
    @overload
    def scatter(self, x: Tensor | None, src: int, out: Out = ..., *, async_op: Later, max_sms: int = ...) -> Work: ...
    def scatter(
        self, x: Tensor | None, src: int, out: Out = None, async_op: bool = False, *, max_sms: int = 0
    ) -> Tensor | Work:
        """Give each rank its block of rank `src`'s `x`. `async_op` and `max_sms`: see Communicator.

        Args:
            x: On rank `src` one block for each rank, in its first dimension; ignored elsewhere.
            out: Where to put the block. Only rank `src` may omit it; it then gets a new tensor of shape x.shape[1:].

        Example:
            >>> comm.scatter(torch.tensor([[5], [6]]), src=0, out=torch.empty(1, dtype=torch.int64))  # rank 1 of two
            tensor([6])
        """
        source = x if self.rank == src else None  # other ranks' x does not count
        if source is not None and out is None:
            out = _made("scatter", source, lambda: source.shape[1:])
        if async_op or max_sms or self.dispatcher.detour:
            return self.dispatcher.call("scatter", (out, source, src), cast("Tensor", out), async_op, max_sms)
        self._calls.scatter(out, source, src)
        return cast("Tensor", out)  # the call was refused without one

    @overload
    def barrier(self, async_op: Now = ...) -> None: ...
    @overload
    def barrier(self, async_op: Later) -> Work: ...
    def barrier(self, async_op: bool = False) -> Work | None:
        """Return once every rank has called it, and on GPUs earlier work is done. `async_op`: see Communicator."""
        if async_op:
            return self.dispatcher.later("barrier", lambda make: make("enqueue_barrier"))
        if self.dispatcher.detour:
            self.dispatcher.now("barrier")
        else:
            self._calls.barrier()
        return None

    # --- reductions with what a layer does to each row ----------------------------------------------------------

    def all_reduce_rms_norm(  # noqa: PLR0913 - what a norm of a model has
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float = 1e-6,
        *,
        weight_bias: float = 0.0,
        bias: Tensor | None = None,
        center: bool = False,
        quant: str | None = None,
        scale: Tensor | None = None,
        out: Tensor | None = None,
        residual_out: Tensor | None = None,
        max_sms: int = 0,
    ) -> tuple[Tensor, ...]:
        """Add up all ranks' `x`, add the residual, normalise each row. `max_sms`: see Communicator.

        Per row: h = all_reduce(x) + residual; y = h / sqrt(mean(h²) + eps) * (weight + weight_bias) + bias. Sums are
        rounded to the type of `x` as all_reduce and an addition would; the rest is float32, rounded once. A row's bits
        depend on that row alone. For anything else that is done to each row there is `commlib.epilogue`.

        Args:
            x: Rows in the last dimension, of float32, float16 or bfloat16; rows may be strided. Without `out`, y takes
                its place.
            residual: As x, the same on all ranks; None adds nothing. Without `residual_out`, h takes its place.
            weight: One factor for each column, of the type of x or float32.
            eps: What keeps a row of zeros from a division by zero.
            weight_bias: Added to the weight: 1.0 for Gemma's norm.
            bias: Added to each row, like weight.
            center: Subtract the row's mean first: with it and a bias, this is LayerNorm.
            quant: y as float8_e4m3fn: "fp8" with a given scale, "fp8_token" with one for each row, "fp8_group" with one
                for each 128 columns; y * scale is then about what it would be without.
            scale: One float32 number, for "fp8" alone.
            out: Where to put y.
            residual_out: Where to put h.

        Returns:
            (y, h), with quant (y, h, scale).

        Example:
            >>> comm.all_reduce_rms_norm(torch.ones(8), torch.ones(8), torch.ones(8))[1]  # h, on two ranks
            tensor([3., 3., 3., 3., 3., 3., 3., 3.])
        """
        library.check_tensor(x, "x", "all_reduce_rms_norm")
        if residual_out is None:
            residual_out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if residual is None else residual
        if out is None:
            out = x if quant is None else torch.empty(x.shape, dtype=FP8, device=x.device)
        made = None
        if quant in COMPUTED_SCALES:
            made = torch.empty(scale_shape(x, quant), dtype=torch.float32, device=x.device)
        arguments = x, residual, weight, bias, scale, out, residual_out, made, eps, weight_bias, center, quant
        if max_sms or self.dispatcher.detour:
            self.dispatcher.call("all_reduce_rms_norm", arguments, None, False, max_sms)
        else:
            self._calls.all_reduce_rms_norm(*arguments)
        scales = scale if made is None else made
        return (out, residual_out) if scales is None or quant is None else (out, residual_out, scales)

    # --- messages -----------------------------------------------------------------------------------------------

    @overload
    def send(self, x: Tensor, dst: int, async_op: Now = ...) -> None: ...
    @overload
    def send(self, x: Tensor, dst: int, async_op: Later) -> Work: ...
    def send(self, x: Tensor, dst: int, async_op: bool = False) -> Work | None:
        """Send to rank `dst`, which calls recv; the messages of a pair match in the order of their calls.

        It may wait for that recv: ranks that send to each other call send_recv. On shm `dst` may be this rank. `x` may
        have any size; `async_op`: see Communicator.

        Example:
            >>> comm.send(torch.ones(3), dst=1)  # rank 1: comm.recv(torch.empty(3), src=0)
        """
        return self.dispatcher.message("send", partial(self.dispatcher.make, "send"), x, dst, async_op)

    @overload
    def recv(self, x: Tensor, src: int, async_op: Now = ...) -> Tensor: ...
    @overload
    def recv(self, x: Tensor, src: int, async_op: Later) -> Work: ...
    def recv(self, x: Tensor, src: int, async_op: bool = False) -> Tensor | Work:
        """Receive from rank `src` into `x`, as many elements as were sent, of their type; `async_op` as in send."""
        work = self.dispatcher.message("recv", partial(self.dispatcher.make, "recv"), x, src, async_op)
        return x if work is None else work

    def send_recv(self, x: Tensor, dst: int, out: Tensor, src: int) -> Tensor:
        """Send to rank `dst` and receive from rank `src` at once: no rank of a ring has to receive first.

        Peers may call it too, or send and recv. On GPUs both directions are one group of NCCL's. On shm `dst` may be
        this rank, and has a large `x` when the call returns. `out` is as in recv.

        Example:
            >>> comm.send_recv(torch.ones(2), 1 - comm.rank, torch.empty(2), 1 - comm.rank)  # of two ranks
            tensor([1., 1.])
        """
        dispatcher = self.dispatcher
        if dispatcher.detour or dispatcher.executor.used:
            dispatcher.drain(("send", dst), ("recv", src))
            dispatcher.make("send_recv", x, dst, out, src)
        else:
            self._calls.send_recv(x, dst, out, src)
        return out

    # --- objects ------------------------------------------------------------------------------------------------

    def all_gather_object(self, obj: T) -> list[T]:
        """Return every rank's `obj` in rank order, pickled: only between processes you trust."""
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8).to(self.device)
        lengths = torch.empty(self.size, dtype=torch.int64, device=self.device)
        with self._nested():
            self.all_gather_into_tensor(lengths, torch.tensor([len(data)], dtype=torch.int64, device=self.device))
            sizes = lengths.tolist()
            everyone = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
            self.all_gatherv(everyone, data, sizes)
        return [pickle.loads(part.numpy().tobytes()) for part in torch.split(everyone.cpu(), sizes)]

    def broadcast_object(self, obj: T | None, src: int) -> T:
        """Return rank `src`'s `obj` on every rank, pickled; what other ranks pass is ignored."""
        data = pickle.dumps(obj) if self.rank == src else b""
        length = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        with self._nested():
            self.broadcast(length, src)
            payload = torch.empty(int(length), dtype=torch.uint8, device=self.device)
            if self.rank == src:
                payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            self.broadcast(payload, src)
        return pickle.loads(payload.cpu().numpy().tobytes())  # type: ignore[no-any-return]

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
        self.dispatcher.check_open()
        self.dispatcher.executor.release_tensors()
        return self.resources.empty(math.prod(dims) * dtype.itemsize).view(dtype).view(dims)

    def symmetric(self) -> AbstractContextManager[None]:
        """Put torch's own allocations into symmetric memory; only a GPU allocator can be redirected."""
        self.dispatcher.check_open()
        return self.resources.symmetric()

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
            max_sms: As of the call.
            async_op: Whether the call is asynchronous: on GPUs it then leaves most multiprocessors to others.
        """
        name = str(dtype).removeprefix("torch.")
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise ValueError(f"dtype is {dtype!r}, but must be a torch.dtype or its name, e.g. 'bfloat16'")
        if not isinstance(num_bytes, SupportsIndex) or operator.index(num_bytes) < 0:
            raise ValueError(f"num_bytes is {num_bytes!r}, but must be an int of 0 or more")
        one_of("op", op, COLLECTIVES)
        one_of("placement", placement, PLACEMENTS)
        one_of("mode", mode, MODES)
        limit, comm_limit = env.MAX_SMS.resolve(max_sms, "max_sms"), self.options.max_sms
        machine = {"has_arena": self.resources.has_arena, "multiprocessors": self.resources.multiprocessors}
        table = table_of(self.plan, self.size, max_sms=comm_limit, **machine)
        query = Query(op, num_bytes, name, redop_name(redop), self.size, placement, mode)
        why = table.explain(query, 0 if comm_limit and limit >= comm_limit else limit, async_op and not comm_limit)
        return replace(why, sms=min(why.sms, comm_limit or why.sms))

    def use(self, plan: Plan) -> None:
        """Switch to another `plan`; every rank must call this at the same place, with the same plan."""
        self.dispatcher.check_open()
        if not isinstance(plan, Plan):
            raise TypeError(f"plan is of type {type(plan).__name__}, but must be a commlib.Plan; Plan.load() reads one")
        self.dispatcher.drain()
        if (group := self.resources.native_group) is not None:
            group.set_plan(plan_text(plan.rules_of(self.size), self.backend))
        elif not self.resources.native:
            self.resources.choose = choice_of(plan, self.resources)
        self.plan = plan

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
        limits = self.options.shared | ({} if max_sms is None else {"max_sms": max_sms})
        make = partial(create, backend=self.backend, plan=self.plan, **limits)
        return split(self, color, key, make)

    def check(self) -> None:
        """Raise if a peer is gone or the communicator has ended."""
        self.dispatcher.check_open()
        if self._hooks is None:
            self.resources.check()
        else:
            self._hooks.watch(self.resources.check)

    def on_error(self, callback: Callable[[CommError], object]) -> None:
        """Have `callback` called with the error that ends the communicator, once, before a call or check() raises it.

        The thread that makes the call runs it; with `async_op=True` on CPUs, that is one of commlib's. What it raises
        is logged.
        """
        self._with_hooks().on_error(callback)

    def on_slow(self, callback: Callable[[SlowCall], object], factor: float) -> None:
        """Have a function called after each call that takes `factor` times as long as usual, and 1 ms longer.

        Usual is the median of the last 32 calls of the operation, size and type; the first 8 are never slow. The thread
        that makes the call runs it. What it raises is logged. On GPUs a later call tells; graphs are not timed.

        Args:
            callback: A function of a `commlib.core.hooks.SlowCall`: what took how long, and how long each rank kept it.
            factor: Above 1.
        """
        self._with_hooks().on_slow(callback, factor)

    def _with_hooks(self) -> Hooks:
        self.dispatcher.drain()
        if self._hooks is None:
            self._hooks = Hooks(self.resources)
            self.dispatcher.observe(self._hooks)
        return self._hooks

    def abort(self, why: str = "") -> None:
        """End the communicator on all ranks: calls under way and later ones raise CommError, with `why` in it."""
        self.dispatcher.check_open()
        reason = (str(why) or f"rank {self.rank} aborted the communicator").encode(errors="replace").decode()
        self.resources.abort(reason)  # without lone surrogates, which UTF-8 cannot encode
        self.dispatcher.executor.close(CommError(reason))

    def close(self) -> None:
        """Release everything this rank holds; may be called twice. On GPUs, wait some seconds for the other ranks."""
        self._end(self.resources.close)

    def _end(self, end: Callable[[], None], wait_s: float = 0.0, *, forked: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        end()
        self._leave_graphs()
        # The calls hold the memory; tensors from empty() that still live keep it, nothing else does.
        self._calls = CLOSED
        if forked:
            self.dispatcher.forget()  # the parent's threads are not here, and its world goes on
            return
        self.dispatcher.close(Closed("this communicator was closed before the call was done; wait() first"), wait_s)
        self.world.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an error, tell the peers first."""
        try:
            if kind is not None and not self._closed:
                text = "".join(traceback.format_exception_only(kind, error)).strip()
                self.abort(f"rank {self.rank} left the communicator with {text}")
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size} on {self.backend}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __reduce__(self) -> Any:
        raise TypeError("a Communicator cannot be pickled; create one in each process with commlib.init()")

    # --- inside -------------------------------------------------------------------------------------------------

    def _nested(self) -> AbstractContextManager[None]:
        """Mark the calls inside as part of another one, when the asynchronous ones, which are not, are done."""
        self.dispatcher.drain()
        return self.resources.inner()


_OPEN: WeakSet[Communicator] = WeakSet()


@atexit.register
def _leave_all() -> None:
    """A rank that ends tells its peers, so that they raise at once instead of waiting for a dead process."""
    for comm in list(_OPEN):
        comm._end(comm.resources.leave, LEAVE_S)


def _abandon_all() -> None:
    for comm in list(_OPEN):
        comm._end(comm.resources.abandon, forked=True)


os.register_at_fork(after_in_child=_abandon_all)


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


def _made(call: str, x: Tensor, shape: Callable[[], Sequence[int]]) -> Tensor:
    """Return the output that a caller leaves to us; what is no tensor is refused before it is asked for its shape."""
    library.check_tensor(x, "x", call)
    return x.new_empty(tuple(shape()))
