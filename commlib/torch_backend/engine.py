"""Engine: what c10d asks of a backend, as calls of one Communicator.

Every collective is a function that makes the communicator's native calls. `opts.asyncOp` decides whether it runs now or
on the communicator's executor of asynchronous calls.
"""

from __future__ import annotations

import datetime
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from commlib.communicator import Communicator
from commlib.core.dispatch import Make
from commlib.core.work import blocking
from commlib.redops import TORCH_OPS
from commlib.torch_backend.arguments import in_place, joined, room_for, spread
from commlib.torch_backend.works import Done, OnStream

W = TypeVar("W", bound=dist.Work)
DONE = Done()
_NO_TIME = datetime.timedelta(0)  # torch has -1 ms for "not set"
# An asynchronous call on GPUs of at most so many bytes goes to the current stream: it takes less time there than the
# host needs to bring another stream behind that one.
INLINE_BYTES = 4 << 20
# DDP's join() gives C++ the work of an all_reduce of one number and drops it. C++ keeps only its half of an object
# of Python, which never ends, so so many works of one number stay alive here: one for each module that may train.
WORKS_OF_A_NUMBER = 256
# A ReduceOp of torch's options hashes to its kind, which is quicker to read than the kind itself.
OPS = {hash(dist.ReduceOp(op)): name for name, op in TORCH_OPS.items()}


class Engine:
    """The methods of a c10d backend; arguments and results are torch's."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        comm.dispatcher.calls.keep_versions()  # as torch's groups do: FSDP gathers into tensors that autograd has saved
        self._gpu, self._index = comm.device.type == "cuda", comm.device.index
        self._blocks = blocking()
        self._numbers = deque[dist.Work](maxlen=WORKS_OF_A_NUMBER)

    def _run(
        self,
        name: str,
        opts: Any,
        outputs: Sequence[Tensor],
        run: Callable[[Make], None],
        sized: Sequence[Tensor] = (),
        spares: bool = True,
    ) -> dist.Work:
        """Make a call now or later.

        What spares the GPU may run another algorithm, so all ranks must decide alike. Where outputs are not as large on
        all of them, `sized` are; where nothing is, no call `spares` it.
        """
        if opts.asyncOp:
            if self._gpu and sum([x.nbytes for x in sized or outputs]) <= INLINE_BYTES:
                run(self.comm.dispatcher.now)
                return OnStream(self._index, outputs, self._blocks)
            work = self.comm.dispatcher.later(name, run, outputs, spares=spares)
            work.timeout = opts.timeout if opts.timeout > _NO_TIME else None
            return work
        run(self.comm.dispatcher.now)
        return DONE

    # --- reductions -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        x, op = _one("all_reduce", tensors), OPS.get(hash(opts.reduceOp))
        if op is None:
            op, factor = _premultiplied("all_reduce", opts)
            x.mul_(factor)
        later, row = opts.asyncOp, x.is_contiguous()
        if not row and x.layout is torch.sparse_coo and op == "sum":
            _sum_sparse(self.comm.dispatcher.now, x, self.comm.size)  # asynchronous too: the host needs the sizes
            return Done(tensors)
        if not row or (later and not (self._gpu and x.nbytes <= INLINE_BYTES)):
            return self._lasting(x, self._all_reduce(tensors, op, opts))
        dispatcher = self.comm.dispatcher
        if dispatcher.detour:
            dispatcher.now("all_reduce", x, op, None)
        else:
            dispatcher.calls.all_reduce(x, op, None)
        return self._lasting(x, OnStream(self._index, tensors, self._blocks)) if later else DONE

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        return self._all_reduce(tensors, _op("all_reduce", opts), opts)

    def _lasting(self, x: Tensor, work: W) -> W:
        if x.numel() == 1:
            self._numbers.append(work)
        return work

    def _all_reduce(self, tensors: Sequence[Tensor], op: Any, opts: Any) -> dist.Work:
        run = in_place(tensors, lambda make, x: make("all_reduce", x, op, None))
        return self._run("all_reduce", opts, tensors, run)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        _one("reduce", tensors)
        op, root = _op("reduce", opts), opts.rootRank
        run = in_place(tensors, lambda make, x: make("reduce", None, x, root, op))
        return self._run("reduce", opts, tensors, run)

    def reduce_scatter_single(self, out: Tensor, x: Tensor, opts: Any) -> dist.Work:
        return self._run("reduce_scatter", opts, [out], _scatters([out], [x], opts))

    def reduce_scatter_single_coalesced(self, outs: Sequence[Tensor], xs: Sequence[Tensor], opts: Any) -> dist.Work:
        runs = [_scatters([out], [x], opts) for out, x in zip(outs, xs, strict=True)]
        return self._run("reduce_scatter", opts, outs, _each(runs))

    def reduce_scatter(self, outs: Sequence[Tensor], lists: Sequence[Sequence[Tensor]], opts: Any) -> dist.Work:
        """Reduce a list of blocks, one for each rank; blocks may differ in size."""
        out, blocks = _one("reduce_scatter", outs), lists[0]
        return self._run("reduce_scatter", opts, outs, _scatters([out], blocks, opts), blocks)

    # --- moves ----------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        _one("broadcast", tensors)
        root = opts.rootRank
        return self._run("broadcast", opts, tensors, in_place(tensors, lambda make, x: make("broadcast", x, root)))

    def all_gather_single(self, out: Tensor, x: Tensor, opts: Any) -> dist.Work:
        return self._run("all_gather", opts, [out], _gathers([out], x))

    def all_gather_single_coalesced(self, outs: Sequence[Tensor], xs: Sequence[Tensor], opts: Any) -> dist.Work:
        runs = [_gathers([out], x) for out, x in zip(outs, xs, strict=True)]
        return self._run("all_gather", opts, outs, _each(runs))

    def allgather(self, lists: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        """Put every rank's tensor into a list, where sizes may differ."""
        return self._run("all_gather", opts, lists[0], _gathers(lists[0], _one("all_gather", tensors)))

    def allgather_coalesced(self, lists: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        """Do as allgather with several tensors: each rank has a list for all of its tensors."""
        runs = [_gathers(outs, x) for outs, x in zip(zip(*lists, strict=True), tensors, strict=True)]
        return self._run("all_gather", opts, [x for outs in lists for x in outs], _each(runs))

    def gather(self, lists: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        _one("gather", tensors)
        root = opts.rootRank
        outs = lists[0] if self.comm.rank == root else []
        run = _between(outs, tensors, lambda make, into, data: make("gather", into, data, root))
        return self._run("gather", opts, outs, run, tensors)

    def gather_single(self, out: Tensor, x: Tensor, opts: Any) -> dist.Work:
        """Put every rank's tensor into one of the root; `out` of the others is an empty tensor."""
        return self.gather([[out]], [x], opts)

    def scatter(self, outs: Sequence[Tensor], lists: Sequence[Sequence[Tensor]], opts: Any) -> dist.Work:
        _one("scatter", outs)
        root = opts.rootRank
        blocks = lists[0] if self.comm.rank == root else []
        run = _between(outs, blocks, lambda make, into, data: make("scatter", into, data, root))
        return self._run("scatter", opts, outs, run)

    def all_to_all_single(
        self, out: Tensor, x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], opts: Any
    ) -> dist.Work:
        """Send rows of a tensor to each rank; without splits, equal shares of it."""
        alike = not out_splits and not in_splits
        if alike:
            run = _between([_rows(out)], [_rows(x)], lambda make, into, data: make("all_to_all", into, data))
        else:
            splits = list(out_splits) or None, list(in_splits) or None
            run = _between([out], [x], lambda make, into, data: make("all_to_allv", into, data, *splits))
        return self._run("all_to_all", opts, [out], run, spares=alike)

    def alltoall(self, outs: Sequence[Tensor], blocks: Sequence[Tensor], opts: Any) -> dist.Work:
        """Send each rank a tensor of a list; sizes may differ."""
        out_sizes, in_sizes = [x.numel() for x in outs], [x.numel() for x in blocks]

        def run(make: Make, into: Any, data: Any) -> None:
            make("all_to_allv", into.view(-1), data.view(-1), out_sizes, in_sizes)

        return self._run("all_to_all", opts, outs, _between(outs, blocks, run), spares=False)

    def barrier(self, opts: Any) -> dist.Work:
        within = opts.timeout > _NO_TIME and not self._gpu  # on a GPU the group's deadline holds
        if not opts.asyncOp and not within:
            self.comm.dispatcher.now("barrier")
            return DONE
        waits, opts.asyncOp = not opts.asyncOp, True
        work = self._run("barrier", opts, [], lambda make: make("enqueue_barrier"))
        if waits:
            work.wait()
        return work


def _between(
    outs: Sequence[Tensor], blocks: Sequence[Tensor], run: Callable[[Make, Any, Any], object]
) -> Callable[[Make], None]:
    """Return a call from the blocks' elements to the outputs', each in a row; for no tensors there is None."""

    def call(make: Make) -> None:
        into = room_for(outs) if outs else None
        run(make, into, joined(blocks) if blocks else None)
        if into is not None:
            spread(into, outs)

    return call


def _gathers(outs: Sequence[Tensor], x: Tensor) -> Callable[[Make], None]:
    sizes = [out.numel() for out in outs]
    if len(set(sizes)) == 1:
        return _between(outs, [x], lambda make, into, data: make("all_gather", into, data))
    return _between(outs, [x], lambda make, into, data: make("all_gatherv", into, data.view(-1), sizes))


def _scatters(outs: Sequence[Tensor], blocks: Sequence[Tensor], opts: Any) -> Callable[[Make], None]:
    op, factor = _premultiplied("reduce_scatter", opts)
    sizes = [x.numel() for x in blocks]

    def run(make: Make, into: Any, data: Any) -> None:
        parts = data if factor is None else data * factor
        if len(set(sizes)) == 1:
            make("reduce_scatter", into, parts, op)
        else:
            make("reduce_scatterv", into, parts, sizes, op)

    return _between(outs, blocks, run)


def _sum_sparse(make: Make, x: Tensor, size: int) -> None:
    """Replace a sparse COO tensor by the sum of all ranks'."""
    mine = x.detach().coalesce()
    indices, values = mine.indices().t().contiguous(), mine.values().contiguous()
    counts = indices.new_empty(size)
    make("all_gather", counts, indices.new_tensor([indices.shape[0]]))
    rows = counts.tolist()
    total = torch.sparse_coo_tensor(_gathered(make, indices, rows).t(), _gathered(make, values, rows), x.shape)
    with torch.no_grad():
        x.copy_(total.coalesce())


def _gathered(make: Make, part: Tensor, rows: list[int]) -> Tensor:
    out = part.new_empty(sum(rows), *part.shape[1:])
    width = math.prod(part.shape[1:])
    make("all_gatherv", out.view(-1), part.view(-1), [count * width for count in rows])
    return out


def _each(runs: Sequence[Callable[[Make], None]]) -> Callable[[Make], None]:
    def call(make: Make) -> None:
        for run in runs:
            run(make)

    return call


def _one(call: str, tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise ValueError(f"{call} got {len(tensors)} tensors, but takes one on each rank")
    return tensors[0]


def _op(call: str, opts: Any) -> Any:
    op = OPS.get(hash(opts.reduceOp))
    if op is None:
        kind, known = opts.reduceOp.op, ", ".join(map(str, TORCH_OPS.values()))
        raise NotImplementedError(f'{call} of backend "commlib" has no reduction {kind}; use one of {known}')
    return op


def _premultiplied(call: str, opts: Any) -> tuple[Any, Any]:
    """Take torch's PREMUL_SUM apart: the sum, and the factor of this rank's part; the factor of others is None."""
    if opts.reduceOp.op == dist.ReduceOp.PREMUL_SUM:
        return "sum", opts.reduceOp.__getstate__()[1]
    return _op(call, opts), None


def _rows(x: Tensor) -> Tensor:
    """Splits count rows: a tensor keeps its shape, but for one without dimensions."""
    return x.reshape(1) if x.dim() == 0 else x
