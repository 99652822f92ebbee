"""MPI as its fastest users call it from Python: ready buffer arguments, nothing built at the call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from commlib.bootstrap import mpi as launcher
from commlib.collectives import Call, Collective
from commlib.collectives.all_gather import ragged
from commlib.collectives.all_to_all import split_table
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.baselines.peer import Peer, averaged, neighbours
from commlib.tools.timing import Empty, Prepare, Run, plain

MPICH_BFLOAT16 = 0x4C00024C  # MPIX_BFLOAT16: mpi4py has no name for it
_REDOPS = {"avg": "SUM", **{name: name.upper() for name in ("sum", "prod", "min", "max", "band", "bor", "bxor")}}
_TYPES = {
    torch.float64: "DOUBLE",
    torch.float32: "FLOAT",
    **{getattr(torch, f"int{bits}"): f"INT{bits}_T" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{bits}"): f"UINT{bits}_T" for bits in (8, 16, 32, 64)},
}
FIRST_BLOCK = ("reduce_scatter", "reduce_scatterv")


class Mpi(Peer):
    """The MPI whose mpirun started this job, on the CPU's memory."""

    name = "mpi"
    labels = ("mpi",)
    library: Any = None

    def lacks(self, comm: Communicator) -> str:
        if self.graph:
            return "a CUDA graph cannot hold calls of MPI"
        if launcher.detect(os.environ) is None:
            return f"MPI starts under its mpirun only; mpirun -n {comm.size} commlib bench"
        try:
            self.library = launcher.library()
        except Unsupported as error:
            return str(error)
        self.title, world = self.library.get_vendor()[0], self.library.COMM_WORLD
        if (world.rank, world.size) == (comm.rank, comm.size):
            return ""
        return f"rank {comm.rank} of {comm.size} is rank {world.rank} of {world.size} in MPI; start it under mpirun"

    def allocator(self, comm: Communicator) -> Empty:
        """Return what allocates on the CPU, whatever device ours work on."""
        return plain

    def prepare(self, collective: Collective, in_place: bool) -> Prepare:
        """Return MPI's call, with IN_PLACE where the buffers are one: MPI forbids aliases."""

        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            if in_place and collective.name in FIRST_BLOCK:
                raise Unsupported("MPI's in-place result is the first block, not block r")
            if collective.name not in CALLS:
                raise Unsupported(f"MPI has no {collective.name}")
            of_call = _Call(self.library, (x, out), call, collective.reduces, in_place)
            function, *arguments = CALLS[collective.name](of_call)
            run = partial(function, *arguments)
            return run if collective.rooted and not of_call.is_root else averaged(out, call, run)

        return prepare


make = Mpi


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
        self.x, self.out = self.blocks(self.tensor, 1), self.blocks(self.result, 1)
        self.input = mpi.IN_PLACE if in_place else self.x

    def blocks(self, tensor: torch.Tensor, count: int = 0) -> tuple[Any, ...]:
        """Return a tensor of so many equal blocks, one for each rank unless told, by the length of a block."""
        return self._memory(tensor), tensor.numel() * self.unit // (count or self.call.size), self.kind

    def cut(self, tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[Any, ...]:
        """Return a tensor of blocks of these sizes."""
        counts = [n * self.unit for n in sizes]
        return self._memory(tensor), (counts, [0, *accumulate(counts)][:-1]), self.kind

    def at_root(self, here: Any, elsewhere: Any = None) -> Any:
        return here if self.is_root else elsewhere

    def _memory(self, tensor: torch.Tensor) -> Any:
        return self.mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def _element(mpi: Any, dtype: torch.dtype, redop: str) -> Any:
    if dtype in _TYPES:
        return getattr(mpi, _TYPES[dtype])
    vendor = mpi.get_vendor()[0]
    if dtype == torch.bfloat16 and vendor == "MPICH" and redop in ("sum", "avg"):  # others abort the job
        return mpi.Datatype.fromhandle(MPICH_BFLOAT16)
    raise Unsupported(f"{vendor} does not reduce {dtype} by {redop}")


def _all_to_allv(c: _Call) -> tuple[Any, ...]:
    table, rank = split_table(c.call), c.call.rank
    return c.comm.Alltoallv, c.cut(c.tensor, table[rank]), c.cut(c.result, [row[rank] for row in table])


def _scatter(c: _Call) -> tuple[Any, ...]:
    output = c.mpi.IN_PLACE if c.in_place and c.is_root else c.out
    return c.comm.Scatter, c.at_root(c.blocks(c.tensor)), output, c.call.root


# What is called, and with which arguments.
CALLS: dict[str, Callable[[_Call], tuple[Any, ...]]] = {
    "all_reduce": lambda c: (c.comm.Allreduce, c.input, c.out, c.op),
    "all_gather": lambda c: (c.comm.Allgather, c.input, c.blocks(c.result)),
    "all_gatherv": lambda c: (c.comm.Allgatherv, c.input, c.cut(c.result, ragged(c.call))),
    "reduce_scatter": lambda c: (c.comm.Reduce_scatter_block, c.blocks(c.tensor), c.out, c.op),
    "reduce_scatterv": lambda c: (c.comm.Reduce_scatter, c.x, c.out, list(ragged(c.call)), c.op),
    "broadcast": lambda c: (c.comm.Bcast, c.out, c.call.root),
    "reduce": lambda c: (c.comm.Reduce, c.at_root(c.input, c.x), c.at_root(c.out), c.op, c.call.root),
    "all_to_all": lambda c: (c.comm.Alltoall, c.input if c.in_place else c.blocks(c.tensor), c.blocks(c.result)),
    "all_to_allv": _all_to_allv,
    "gather": lambda c: (c.comm.Gather, c.at_root(c.input, c.x), c.at_root(c.blocks(c.result)), c.call.root),
    "scatter": _scatter,
    "send_recv": lambda c: (c.comm.Sendrecv, c.x, neighbours(c.call)[0], 0, c.out, neighbours(c.call)[1], 0),
    "barrier": lambda c: (c.comm.Barrier,),
}
