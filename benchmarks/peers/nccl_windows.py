"""NCCL's bare calls on tensors in symmetric windows registered with it, for `commlib bench --peer`.

A communicator of its own: what commlib does with NCCL does not count here.
"""

from __future__ import annotations

import ctypes

import torch
from gpu_memory import tensor_at

from commlib.collectives import Collective
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.baselines.nccl import Nccl, Pointer
from commlib.tools.timing import Candidate, Empty

COLL_SYMMETRIC = 1
OPS = ("all_reduce", "all_gather", "reduce_scatter")  # of which every rank registers as many bytes


class Windows(Nccl):
    """The same calls as the peer nccl; every tensor has a window of its own until the end."""

    name = "nccl_windows"
    title = "NCCL, symmetric windows"
    labels = ("nccl_symmetric",)

    def __init__(self) -> None:
        super().__init__()
        self._windows: list[tuple[Pointer, Pointer]] = []

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return the one candidate; no memory is registered for what it is not measured for."""
        if collective.name not in OPS:
            return self.refused(f"it is measured for {', '.join(OPS)}", in_place)
        return super().candidates(comm, collective, in_place)

    def allocator(self, comm: Communicator) -> Empty:
        """Return what allocates and registers, on all ranks together."""
        return self._window

    def stop(self) -> None:
        """Deregister and free, once no graph holds a call any more; then end the communicator."""
        if self._windows:
            torch.cuda.synchronize()
        for window, memory in self._windows:
            self.lib.ncclCommWindowDeregister(self.comm, window)
            self.lib.ncclMemFree(memory)
        self._windows.clear()
        super().stop()

    def _window(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        memory, window, num_bytes = Pointer(), Pointer(), ctypes.c_size_t(elements * dtype.itemsize)
        self.check(self.lib.ncclMemAlloc(ctypes.byref(memory), num_bytes), "ncclMemAlloc")
        register = self.lib.ncclCommWindowRegister
        result = register(self.comm, memory, num_bytes, ctypes.byref(window), ctypes.c_int(COLL_SYMMETRIC))
        self.check(result, "ncclCommWindowRegister")
        if not window.value:
            raise Unsupported("ncclCommWindowRegister gave no window: no symmetric memory here")
        self._windows.append((window, memory))
        return tensor_at(memory.value, elements, dtype)


make = Windows
