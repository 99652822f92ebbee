"""MPI through mpi4py's buffer interface, called the cheapest way it offers: a ready (buffer, count, type)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from commlib.errors import Unsupported
from commlib.timing import Candidate, Run

if TYPE_CHECKING:
    from commlib.collectives import Call, Collective

MPICH_BFLOAT16 = 0x4C00024C  # MPIX_BFLOAT16: mpi4py has no name for it


class Mpi:
    """The MPI of this process: bootstrap="mpi" has loaded it, with thread level "funneled"."""

    def __init__(self) -> None:
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.world = self.mpi.COMM_WORLD
        vendor, version = self.mpi.get_vendor()
        self.name = vendor
        self.version = ".".join(map(str, version))
        levels = {self.mpi.THREAD_SINGLE: "single", self.mpi.THREAD_FUNNELED: "funneled"}
        self.thread_level = levels.get(self.mpi.Query_thread(), "above funneled")

    def candidate(self, collective: Collective, in_place: bool = False, world: Any = None) -> Candidate:
        """Return the candidate that makes this call through MPI."""
        make = CALLS[collective.name]
        comm = self.world if world is None else world
        return Candidate("mpi", lambda x, out, call: make(_Call(self, comm, x, out, call)), in_place)

    def element(self, dtype: torch.dtype) -> Any:
        """Return MPI's name of an element type."""
        if dtype == torch.float32:
            return self.mpi.FLOAT
        if dtype == torch.bfloat16 and self.name == "MPICH":
            return self.mpi.Datatype.fromhandle(MPICH_BFLOAT16)
        raise Unsupported(f"{self.name} does not reduce {dtype}")


class _Call:
    """The arguments of one call as mpi4py wants them."""

    def __init__(self, owner: Mpi, comm: Any, x: torch.Tensor, out: torch.Tensor, call: Call) -> None:
        self.comm, self.call, self.owner = comm, call, owner
        self.x, self.out = self._spec(x), self._spec(out)
        self.source = owner.mpi.IN_PLACE if out is x else self.x

    def _spec(self, tensor: torch.Tensor) -> tuple[Any, int, Any]:
        memory = self.owner.mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
        return memory, tensor.numel(), self.owner.element(self.call.dtype)

    def blocks(self, spec: tuple[Any, int, Any]) -> tuple[Any, int, Any]:
        """Count one rank's block instead of all of them."""
        memory, count, kind = spec
        return memory, count // self.call.size, kind


CALLS: dict[str, Callable[[_Call], Run]] = {
    "all_reduce": lambda c: partial(c.comm.Allreduce, c.source, c.out),
    "all_gather": lambda c: partial(c.comm.Allgather, c.x, c.blocks(c.out)),
    "reduce_scatter": lambda c: partial(c.comm.Reduce_scatter_block, c.blocks(c.x), c.out),
    "broadcast": lambda c: partial(c.comm.Bcast, c.out, c.call.root),
    "all_to_all": lambda c: partial(c.comm.Alltoall, c.blocks(c.x), c.blocks(c.out)),
    "barrier": lambda c: c.comm.Barrier,
}
