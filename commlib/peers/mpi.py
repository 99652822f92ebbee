"""MPI as its fastest users call it from Python: ready buffer arguments, nothing built at the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from commlib.bootstrap import mpi as launcher
from commlib.collectives.all_gather import ragged
from commlib.collectives.all_to_all import split_table
from commlib.errors import Unsupported
from commlib.peers.peer import CallTable, averaged
from commlib.timing import Empty, Prepare, Run, plain

if TYPE_CHECKING:
    from commlib.collectives import Call, Collective
    from commlib.communicator import Communicator

MPICH_BFLOAT16 = 0x4C00024C  # MPIX_BFLOAT16: mpi4py has no name for it
_REDOPS = {"avg": "SUM", **{name: name.upper() for name in ("sum", "prod", "min", "max", "band", "bor", "bxor")}}
_TYPES = {
    torch.float64: "DOUBLE",
    torch.float32: "FLOAT",
    **{getattr(torch, f"int{bits}"): f"INT{bits}_T" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{bits}"): f"UINT{bits}_T" for bits in (8, 16, 32, 64)},
}


class Mpi(CallTable):
    """The MPI whose mpirun started this job, on the CPU's memory."""

    name = "mpi"
    labels = ("mpi",)
    library: Any = None

    def lacks(self, comm: Communicator) -> str:
        """Say what keeps MPI from being these ranks' world."""
        if self.graph:
            return "a CUDA graph cannot hold calls of MPI"
        if not launcher.is_launcher():
            return "start it under mpirun"
        try:
            self.library = launcher.library()
        except Unsupported as error:
            return str(error)
        world = self.library.COMM_WORLD
        if (world.rank, world.size) != (comm.rank, comm.size):
            return f"rank {comm.rank} of {comm.size} is rank {world.rank} of {world.size} in MPI; start it under mpirun"
        return ""

    def empty(self, comm: Communicator) -> Empty:
        """Return what allocates on the CPU, whatever device ours work on."""
        return plain

    def prepare(self, collective: Collective, in_place: bool) -> Prepare:
        """Return MPI's call, with IN_PLACE where the buffers are one: MPI forbids aliases."""
        make = CALLS[collective.name]

        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            return make(_Call(self.library, (x, out), call, collective.reduces, in_place))

        return prepare


def make() -> Mpi:
    """Make the peer."""
    return Mpi()


class _Call:
    """The arguments of one call as mpi4py wants them."""

    def __init__(
        self, mpi: Any, tensors: tuple[torch.Tensor, torch.Tensor], call: Call, reduces: bool, in_place: bool
    ) -> None:
        self.mpi, self.comm, self.call, self.in_place = mpi, mpi.COMM_WORLD, call, in_place
        self.is_root = call.rank == call.root
        self.tensor, self.result = tensors
        self.unit = 1 if reduces else call.dtype.itemsize  # moving data needs no element type
        self.kind = _element(mpi, call.dtype, call.redop) if reduces else mpi.BYTE
        self.op = getattr(mpi, _REDOPS[call.redop])
        self.x, self.out = self.whole(self.tensor), self.whole(self.result)

    def whole(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return all of a tensor."""
        return self._memory(tensor), tensor.numel() * self.unit, self.kind

    def blocks(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return a tensor of one block for each rank, by the length of a block."""
        return self._memory(tensor), tensor.numel() * self.unit // self.call.size, self.kind

    def cut(self, tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[Any, ...]:
        """Return a tensor of blocks of these sizes."""
        counts = [n * self.unit for n in sizes]
        return self._memory(tensor), (counts, [0, *accumulate(counts)][:-1]), self.kind

    def own(self) -> Any:
        """Return the input, or that it lies in the output already."""
        return self.mpi.IN_PLACE if self.in_place else self.x

    def _memory(self, tensor: torch.Tensor) -> Any:
        return self.mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def _element(mpi: Any, dtype: torch.dtype, redop: str) -> Any:
    if dtype in _TYPES:
        return getattr(mpi, _TYPES[dtype])
    vendor = mpi.get_vendor()[0]
    if dtype == torch.bfloat16 and vendor == "MPICH" and redop in ("sum", "avg"):  # others abort the job
        return mpi.Datatype.fromhandle(MPICH_BFLOAT16)
    raise Unsupported(f"{vendor} does not reduce {dtype} by {redop}")


def _all_reduce(c: _Call) -> Run:
    return averaged(c.result, c.call, partial(c.comm.Allreduce, c.own(), c.out, c.op))


def _reduce(c: _Call) -> Run:
    if not c.is_root:
        return partial(c.comm.Reduce, c.x, None, c.op, c.call.root)
    return averaged(c.result, c.call, partial(c.comm.Reduce, c.own(), c.out, c.op, c.call.root))


def _reduce_scatter(c: _Call) -> Run:
    _refuse_in_place(c)
    return averaged(c.result, c.call, partial(c.comm.Reduce_scatter_block, c.blocks(c.tensor), c.out, c.op))


def _reduce_scatterv(c: _Call) -> Run:
    _refuse_in_place(c)
    sizes = list(ragged(c.call))
    return averaged(c.result, c.call, partial(c.comm.Reduce_scatter, c.x, c.out, sizes, c.op))


def _refuse_in_place(c: _Call) -> None:
    if c.in_place:
        raise Unsupported("MPI's in-place result is the first block, not block r")


def _all_to_all(c: _Call) -> Run:
    source = c.mpi.IN_PLACE if c.in_place else c.blocks(c.tensor)
    return partial(c.comm.Alltoall, source, c.blocks(c.result))


def _all_to_allv(c: _Call) -> Run:
    table, rank = split_table(c.call), c.call.rank
    return partial(c.comm.Alltoallv, c.cut(c.tensor, table[rank]), c.cut(c.result, [row[rank] for row in table]))


def _gather(c: _Call) -> Run:
    if not c.is_root:
        return partial(c.comm.Gather, c.x, None, c.call.root)
    return partial(c.comm.Gather, c.own(), c.blocks(c.result), c.call.root)


def _scatter(c: _Call) -> Run:
    if not c.is_root:
        return partial(c.comm.Scatter, None, c.out, c.call.root)
    return partial(c.comm.Scatter, c.blocks(c.tensor), c.mpi.IN_PLACE if c.in_place else c.out, c.call.root)


def _send_recv(c: _Call) -> Run:
    after, before = (c.call.rank + 1) % c.call.size, (c.call.rank - 1) % c.call.size
    return partial(c.comm.Sendrecv, c.x, after, 0, c.out, before, 0)


CALLS: dict[str, Callable[[_Call], Run]] = {
    "all_reduce": _all_reduce,
    "all_gather": lambda c: partial(c.comm.Allgather, c.own(), c.blocks(c.result)),
    "all_gatherv": lambda c: partial(c.comm.Allgatherv, c.own(), c.cut(c.result, ragged(c.call))),
    "reduce_scatter": _reduce_scatter,
    "reduce_scatterv": _reduce_scatterv,
    "broadcast": lambda c: partial(c.comm.Bcast, c.out, c.call.root),
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "all_to_allv": _all_to_allv,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "barrier": lambda c: c.comm.Barrier,
}
