"""The collectives as methods of a Communicator: each is one native call, now or later on a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TypeAlias, cast, overload

import torch.distributed as dist
from torch import Tensor

from commlib.messages import Later, Messages, Now
from commlib.native import library
from commlib.redops import Redop
from commlib.work import Work

Op: TypeAlias = "Redop | dist.ReduceOp.RedOpType"
"""A reduction: its name, or torch.distributed.ReduceOp.SUM and its kind."""

Out: TypeAlias = "Tensor | None"
Sizes: TypeAlias = "Sequence[int]"
Splits: TypeAlias = "Sequence[int] | None"


class Collectives(Messages):
    """Names, arguments and results as in torch.distributed; with `async_op=True` the result is a Work."""

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
        """Reduce over all ranks; every rank gets the result. See also `help(commlib.Communicator)`.

        Args:
            x: This rank's part, of one shape and type on all ranks; without `out` the result replaces it.
            op: The reduction.
            out: Where to put the result: as many elements as `x`, of its type; `x` then stays as it is.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Returns:
            `out`, or `x` without one.

        Example:
            >>> comm.all_reduce(torch.tensor([1.0, 2.0]))  # on two ranks
            tensor([2., 4.])
        """
        if async_op or max_sms:
            return self._asked("all_reduce", (x, op, out), x if out is None else out, async_op, max_sms)
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
        """Reduce over all ranks; rank `dst` gets the result. See also `help(commlib.Communicator)`.

        Args:
            x: As in all_reduce; on ranks other than `dst` it stays as it is.
            dst: The rank that gets the result.
            op: The reduction.
            out: As in all_reduce; other ranks' `out` stays as it is.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Returns:
            `out`, or `x` without one; the result on rank `dst` alone.

        Example:
            >>> comm.reduce(torch.tensor([1.0, 2.0]), dst=0, op="max")
            tensor([1., 2.])
        """
        target = x if out is None else out
        if async_op or max_sms:
            return self._asked("reduce", (out, x, dst, op), target, async_op, max_sms)
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
        """Reduce over all ranks and keep block `rank`. See also `help(commlib.Communicator)`.

        Args:
            out: Where to put this rank's block: x.numel() / size elements. It may be block `rank` of `x` itself.
            x: One block for each rank, the first dimension first.
            op: The reduction.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Example:
            >>> comm.reduce_scatter_tensor(torch.empty(2), torch.arange(4.0))  # rank 1 of two
            tensor([4., 6.])
        """
        if async_op or max_sms:
            return self._asked("reduce_scatter", (out, x, op), out, async_op, max_sms)
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
        """Reduce over all ranks and keep block `rank`, in blocks of different sizes; else as reduce_scatter_tensor.

        Args:
            out: `sizes[rank]` elements.
            x: `sum(sizes)` elements.
            sizes: The elements of each rank's block, the same on all ranks.
            op: The reduction.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Example:
            >>> comm.reduce_scatterv(torch.empty(1 + 2 * comm.rank), torch.arange(4.0), [1, 3])  # rank 1 of two
            tensor([2., 4., 6.])
        """
        if async_op or max_sms:
            return self._asked("reduce_scatterv", (out, x, _kept(sizes, async_op), op), out, async_op, max_sms)
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
        """Put every rank's `x` into `out`, in rank order. See also `help(commlib.Communicator)`.

        Args:
            out: Where to put them: size × x.numel() elements of any shape.
            x: This rank's block, of one size and type on all ranks. It may be block `rank` of `out` itself.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Example:
            >>> comm.all_gather_into_tensor(torch.empty(2, 1), torch.tensor([float(comm.rank)]))
            tensor([[0.],
                    [1.]])
        """
        if async_op or max_sms:
            return self._asked("all_gather", (out, x), out, async_op, max_sms)
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
        """Put every rank's `x` into `out`, in blocks of different sizes; else as all_gather_into_tensor.

        Args:
            out: `sum(sizes)` elements.
            x: `sizes[rank]` elements.
            sizes: The elements of each rank's `x`, the same on all ranks.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Example:
            >>> comm.all_gatherv(torch.empty(3), torch.ones(comm.rank + 1), [1, 2])
            tensor([1., 1., 1.])
        """
        if async_op or max_sms:
            return self._asked("all_gatherv", (out, x, _kept(sizes, async_op)), out, async_op, max_sms)
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
        """Send block j of `x` to rank j. See also `help(commlib.Communicator)`.

        Args:
            out: Where to put the blocks that come, in rank order.
            x: One block for each rank. It may be `out` itself where no splits are given.
            out_splits: The rows of the first dimension that come from each rank; without it, equal blocks.
            in_splits: The rows that go to each rank; rank i's in_splits[j] is rank j's out_splits[i].
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Example:
            >>> comm.all_to_all_single(torch.empty(2), torch.tensor([0.0, 1.0]) + 10 * comm.rank)  # rank 1 of two
            tensor([ 1., 11.])
        """
        if out_splits is None and in_splits is None:
            if async_op or max_sms:
                return self._asked("all_to_all", (out, x), out, async_op, max_sms)
            self._calls.all_to_all(out, x)
            return out
        if async_op or max_sms:
            splits = _kept(out_splits, async_op), _kept(in_splits, async_op)
            return self._asked("all_to_allv", (out, x, *splits), out, async_op, max_sms)
        self._calls.all_to_allv(out, x, out_splits, in_splits)
        return out

    @overload
    def broadcast(self, x: Tensor, src: int, async_op: Now = ..., *, max_sms: int = ...) -> Tensor: ...
    @overload
    def broadcast(self, x: Tensor, src: int, async_op: Later, *, max_sms: int = ...) -> Work: ...
    def broadcast(self, x: Tensor, src: int, async_op: bool = False, *, max_sms: int = 0) -> Tensor | Work:
        """Make every rank's `x` a copy of rank `src`'s. See also `help(commlib.Communicator)`.

        Args:
            x: What rank `src` sends, and where the others get it; of one size and type on all ranks.
            src: The rank that sends.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Example:
            >>> comm.broadcast(torch.tensor([comm.rank]), src=1)
            tensor([1])
        """
        if async_op or max_sms:
            return self._asked("broadcast", (x, src), x, async_op, max_sms)
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
        """Stack every rank's `x` on rank `dst`. See also `help(commlib.Communicator)`.

        Args:
            x: This rank's block, of one size and type on all ranks.
            dst: The rank that gets them.
            out: Where rank `dst` puts them, size × x.numel() elements; without it a new tensor. Others' is ignored.
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

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
        if async_op or max_sms:
            return self._asked("gather", (result, x, dst), result, async_op, max_sms)
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
        """Give each rank its block of rank `src`'s `x`. See also `help(commlib.Communicator)`.

        Args:
            x: On rank `src` one block for each rank, in its first dimension; ignored elsewhere.
            src: The rank that sends.
            out: Where to put the block. Only rank `src` may omit it; it then gets a new tensor of shape x.shape[1:].
            async_op: Return a Work at once.
            max_sms: The multiprocessors of its GPU that this call takes at most, 0 for no limit.

        Returns:
            `out`, or the new tensor.

        Example:
            >>> comm.scatter(torch.tensor([[5], [6]]), src=0, out=torch.empty(1, dtype=torch.int64))  # rank 1 of two
            tensor([6])
        """
        source = x if self.rank == src else None  # other ranks' x does not count
        if source is not None and out is None:
            out = _made("scatter", source, lambda: source.shape[1:])
        if async_op or max_sms:
            return self._asked("scatter", (out, source, src), cast("Tensor", out), async_op, max_sms)
        self._calls.scatter(out, source, src)
        return cast("Tensor", out)  # the call was refused without one

    @overload
    def barrier(self, async_op: Now = ...) -> None: ...
    @overload
    def barrier(self, async_op: Later) -> Work: ...
    def barrier(self, async_op: bool = False) -> Work | None:
        """Return once every rank has called it; on GPUs, also wait for all earlier work on the stream.

        Args:
            async_op: Return a Work at once.
        """
        if async_op:
            return self._later("barrier", lambda calls: calls.enqueue_barrier())
        self._calls.barrier()
        return None


def _made(call: str, x: Tensor, shape: Callable[[], Sequence[int]]) -> Tensor:
    """Return the output that a caller leaves to us; what is no tensor is refused before it is asked for its shape."""
    library.check_tensor(x, "x", call)
    return x.new_empty(tuple(shape()))


def _kept(sizes: Splits, async_op: bool) -> Splits:
    """Return what an asynchronous call reads: the sizes as they are now."""
    return copy(sizes) if async_op else sizes
