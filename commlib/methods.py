"""The collectives as methods of a Communicator: each is one native call, now or later on a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

import torch
from torch import Tensor

from commlib.backends.base import Backend
from commlib.native import library
from commlib.work import COLLECTIVE_CALLS, Lanes, StreamLanes, StreamWork, Work

if TYPE_CHECKING:
    from commlib._native import Calls

AnyWork: TypeAlias = "Work | StreamWork"
Run: TypeAlias = "Callable[[Calls], object]"
Out: TypeAlias = "Tensor | None"
Sizes: TypeAlias = "Sequence[int]"
Splits: TypeAlias = "Sequence[int] | None"
Now: TypeAlias = Literal[False]
Later: TypeAlias = Literal[True]


class Collectives:
    """Names, arguments and results as in torch.distributed; with `async_op=True` the result is a Work."""

    rank: int
    size: int
    device: torch.device
    _backend: Backend
    _lanes: Lanes | StreamLanes
    _calls: Calls  # behind asynchronous calls, once there was one
    _unordered: Calls  # the same, and nobody waits

    # --- reductions ---------------------------------------------------------------------------------------------

    @overload
    def all_reduce(self, x: Tensor, op: Any = ..., out: Out = ..., async_op: Now = ...) -> Tensor: ...
    @overload
    def all_reduce(self, x: Tensor, op: Any = ..., out: Out = ..., *, async_op: Later) -> AnyWork: ...
    def all_reduce(self, x: Tensor, op: Any = "sum", out: Out = None, async_op: bool = False) -> Tensor | AnyWork:
        """Reduce over all ranks, in place unless `out` is given; returns the result."""
        if async_op:
            return self._later("all_reduce", lambda calls: calls.all_reduce(x, op, out))
        return self._calls.all_reduce(x, op, out)

    @overload
    def reduce(self, x: Tensor, dst: int, op: Any = ..., out: Out = ..., async_op: Now = ...) -> Tensor: ...
    @overload
    def reduce(self, x: Tensor, dst: int, op: Any = ..., out: Out = ..., *, async_op: Later) -> AnyWork: ...
    def reduce(self, x: Tensor, dst: int, op: Any = "sum", out: Out = None, async_op: bool = False) -> Tensor | AnyWork:
        """Reduce to rank `dst`, into `out` or in place; other ranks' tensors stay as they are."""
        target = x if out is None else out
        if async_op:
            return self._later("reduce", lambda calls: calls.reduce(out, x, dst, op), target)
        self._calls.reduce(out, x, dst, op)
        return target

    @overload
    def reduce_scatter_tensor(self, out: Tensor, x: Tensor, op: Any = ..., async_op: Now = ...) -> Tensor: ...
    @overload
    def reduce_scatter_tensor(self, out: Tensor, x: Tensor, op: Any = ..., *, async_op: Later) -> AnyWork: ...
    def reduce_scatter_tensor(
        self, out: Tensor, x: Tensor, op: Any = "sum", async_op: bool = False
    ) -> Tensor | AnyWork:
        """Reduce over all ranks and keep block `rank` of the result."""
        if async_op:
            return self._later("reduce_scatter", lambda calls: calls.reduce_scatter(out, x, op), out)
        self._calls.reduce_scatter(out, x, op)
        return out

    @overload
    def reduce_scatterv(self, out: Tensor, x: Tensor, sizes: Sizes, op: Any = ..., async_op: Now = ...) -> Tensor: ...
    @overload
    def reduce_scatterv(self, out: Tensor, x: Tensor, sizes: Sizes, op: Any = ..., *, async_op: Later) -> AnyWork: ...
    def reduce_scatterv(
        self, out: Tensor, x: Tensor, sizes: Sizes, op: Any = "sum", async_op: bool = False
    ) -> Tensor | AnyWork:
        """Reduce over all ranks and keep block `rank`, where block r has `sizes[r]` elements."""
        if async_op:
            kept = copy(sizes)
            return self._later("reduce_scatterv", lambda calls: calls.reduce_scatterv(out, x, kept, op), out)
        self._calls.reduce_scatterv(out, x, sizes, op)
        return out

    reduce_scatter_single = reduce_scatter_tensor

    # --- moves --------------------------------------------------------------------------------------------------

    @overload
    def all_gather_into_tensor(self, out: Tensor, x: Tensor, async_op: Now = ...) -> Tensor: ...
    @overload
    def all_gather_into_tensor(self, out: Tensor, x: Tensor, async_op: Later) -> AnyWork: ...
    def all_gather_into_tensor(self, out: Tensor, x: Tensor, async_op: bool = False) -> Tensor | AnyWork:
        """Put every rank's `x` into `out`, in rank order."""
        if async_op:
            return self._later("all_gather", lambda calls: calls.all_gather(out, x), out)
        self._calls.all_gather(out, x)
        return out

    all_gather_single = all_gather_into_tensor

    @overload
    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sizes, async_op: Now = ...) -> Tensor: ...
    @overload
    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sizes, async_op: Later) -> AnyWork: ...
    def all_gatherv(self, out: Tensor, x: Tensor, sizes: Sizes, async_op: bool = False) -> Tensor | AnyWork:
        """Put every rank's `x` into `out`, where rank r's has `sizes[r]` elements."""
        if async_op:
            kept = copy(sizes)
            return self._later("all_gatherv", lambda calls: calls.all_gatherv(out, x, kept), out)
        self._calls.all_gatherv(out, x, sizes)
        return out

    @overload
    def all_to_all_single(
        self, out: Tensor, x: Tensor, out_splits: Splits = ..., in_splits: Splits = ..., async_op: Now = ...
    ) -> Tensor: ...
    @overload
    def all_to_all_single(
        self, out: Tensor, x: Tensor, out_splits: Splits = ..., in_splits: Splits = ..., *, async_op: Later
    ) -> AnyWork: ...
    def all_to_all_single(
        self, out: Tensor, x: Tensor, out_splits: Splits = None, in_splits: Splits = None, async_op: bool = False
    ) -> Tensor | AnyWork:
        """Send block j of `x` to rank j; splits are rows of the first dimension, equal blocks without them."""
        if out_splits is None and in_splits is None:
            if async_op:
                return self._later("all_to_all", lambda calls: calls.all_to_all(out, x), out)
            self._calls.all_to_all(out, x)
            return out
        if async_op:
            kept = copy(out_splits), copy(in_splits)
            return self._later("all_to_all", lambda calls: calls.all_to_allv(out, x, *kept), out)
        self._calls.all_to_allv(out, x, out_splits, in_splits)
        return out

    @overload
    def broadcast(self, x: Tensor, src: int, async_op: Now = ...) -> Tensor: ...
    @overload
    def broadcast(self, x: Tensor, src: int, async_op: Later) -> AnyWork: ...
    def broadcast(self, x: Tensor, src: int, async_op: bool = False) -> Tensor | AnyWork:
        """Make every rank's `x` a copy of rank `src`'s."""
        if async_op:
            return self._later("broadcast", lambda calls: calls.broadcast(x, src), x)
        self._calls.broadcast(x, src)
        return x

    @overload
    def gather(self, x: Tensor, dst: int, out: Out = ..., async_op: Now = ...) -> Tensor | None: ...
    @overload
    def gather(self, x: Tensor, dst: int, out: Out = ..., *, async_op: Later) -> AnyWork: ...
    def gather(self, x: Tensor, dst: int, out: Out = None, async_op: bool = False) -> Tensor | AnyWork | None:
        """Stack every rank's `x` on rank `dst` and return it there; None elsewhere."""
        result = None
        if self.rank == dst:
            result = _made("gather", x, lambda: (self.size, *x.shape)) if out is None else out
        if async_op:
            return self._later("gather", lambda calls: calls.gather(result, x, dst), result)
        self._calls.gather(result, x, dst)
        return result

    @overload
    def scatter(self, x: Tensor | None, src: int, out: Out = ..., async_op: Now = ...) -> Tensor: ...
    @overload
    def scatter(self, x: Tensor | None, src: int, out: Out = ..., *, async_op: Later) -> AnyWork: ...
    def scatter(self, x: Tensor | None, src: int, out: Out = None, async_op: bool = False) -> Tensor | AnyWork:
        """Give rank r block r of rank `src`'s `x`; ranks other than `src` pass the `out` to fill."""
        source = x if self.rank == src else None  # other ranks' x does not count
        if source is not None and out is None:
            out = _made("scatter", source, lambda: source.shape[1:])
        if async_op:
            return self._later("scatter", lambda calls: calls.scatter(out, source, src), out)
        self._calls.scatter(out, source, src)
        return cast("Tensor", out)  # the call was refused without one

    @overload
    def send(self, x: Tensor, dst: int, async_op: Now = ...) -> None: ...
    @overload
    def send(self, x: Tensor, dst: int, async_op: Later) -> AnyWork: ...
    def send(self, x: Tensor, dst: int, async_op: bool = False) -> AnyWork | None:
        """Send to rank `dst`; pairs of send and recv match in the order of their calls."""
        return self._message("send", self._unordered.send, x, dst, async_op)

    @overload
    def recv(self, x: Tensor, src: int, async_op: Now = ...) -> Tensor: ...
    @overload
    def recv(self, x: Tensor, src: int, async_op: Later) -> AnyWork: ...
    def recv(self, x: Tensor, src: int, async_op: bool = False) -> Tensor | AnyWork:
        """Receive from rank `src` into `x`."""
        work = self._message("recv", self._unordered.recv, x, src, async_op)
        return x if work is None else work

    @overload
    def barrier(self, async_op: Now = ...) -> None: ...
    @overload
    def barrier(self, async_op: Later) -> AnyWork: ...
    def barrier(self, async_op: bool = False) -> AnyWork | None:
        """Return once every rank has called it."""
        if async_op:
            return self._later("barrier", lambda calls: calls.enqueue_barrier())
        self._calls.barrier()
        return None

    # --- inside -------------------------------------------------------------------------------------------------

    def _inner(self) -> AbstractContextManager[None]:
        """Mark the calls inside as part of another one, when those on the lane, which are not, are done."""
        self._lanes.drain(COLLECTIVE_CALLS)
        return self._backend.inner()

    def _later(self, name: str, run: Run, result: Tensor | None = None) -> AnyWork:
        """Make a call on the lane of the collectives; from now on those of the caller come behind it."""
        calls = self._unordered
        if self._calls is calls:
            self._calls = self._lanes.after(calls)

        def call() -> object:
            done = run(calls)
            return result if done is None else done

        return self._lanes.submit(COLLECTIVE_CALLS, name, call)

    def _message(
        self, name: str, run: Callable[[Tensor, int], object], x: Tensor, peer: int, async_op: bool
    ) -> AnyWork | None:
        if async_op:
            return self._lanes.submit((name, peer), name, lambda: run(x, peer) or x)
        if self._lanes.used:
            self._lanes.drain(COLLECTIVE_CALLS, (name, peer))
        run(x, peer)
        return None


def _made(call: str, x: Tensor, shape: Callable[[], Sequence[int]]) -> Tensor:
    """Return the output that a caller leaves to us; what is no tensor is refused before it is asked for its shape."""
    library.check_tensor(x, "x", call)
    return x.new_empty(tuple(shape()))
