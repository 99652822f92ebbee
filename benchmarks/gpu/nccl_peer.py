"""NCCL itself, through ctypes on the library torch has loaded: its bare call, and symmetric memory registered with it.

A communicator of its own: what commlib does with NCCL does not count here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial

import torch
from candidate import Candidate, Memory, Run
from case import Case

from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported

BFLOAT16, SUM, COLL_SYMMETRIC = 9, 0, 1
UNIQUE_ID_BYTES = 128
Pointer = ctypes.c_void_p


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


class Nccl:
    """One communicator and the windows registered with it; made and ended by all ranks together."""

    def __init__(self, comm: Communicator) -> None:
        self._lib = ctypes.CDLL("libnccl.so.2")  # the process has it: torch's
        self._lib.ncclGetErrorString.restype = ctypes.c_char_p
        self._lib.ncclCommInitRank.argtypes = [ctypes.POINTER(Pointer), ctypes.c_int, UniqueId, ctypes.c_int]
        unique = UniqueId()
        if comm.rank == 0:
            self._check(self._lib.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        raw = comm.broadcast_object(bytes(unique), 0)
        ctypes.memmove(ctypes.byref(unique), raw, UNIQUE_ID_BYTES)
        self._comm = Pointer()
        self._check(
            self._lib.ncclCommInitRank(ctypes.byref(self._comm), comm.size, unique, comm.rank), "ncclCommInitRank"
        )
        self._device = comm.device
        self._windows: list[tuple[Pointer, Pointer]] = []

    def version(self) -> str:
        """Return it as 2.28.9."""
        number = ctypes.c_int()
        self._check(self._lib.ncclGetVersion(ctypes.byref(number)), "ncclGetVersion")
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def window(self, elements: int) -> torch.Tensor:
        """Return a bf16 tensor in a symmetric window of its own; every rank calls it at the same place."""
        num_bytes = elements * 2
        memory, window = Pointer(), Pointer()
        self._check(self._lib.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(num_bytes)), "ncclMemAlloc")
        self._check(
            self._lib.ncclCommWindowRegister(
                self._comm, memory, ctypes.c_size_t(num_bytes), ctypes.byref(window), ctypes.c_int(COLL_SYMMETRIC)
            ),
            "ncclCommWindowRegister",
        )
        if not window.value:
            raise Unsupported("ncclCommWindowRegister gave no window: no symmetric memory here")
        self._windows.append((window, memory))
        return tensor_at(memory.value or 0, elements, self._device)

    def call(self, x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
        """Return the bare call with its arguments ready, on the stream that is current."""
        count = ctypes.c_size_t(case.call.count)
        stream = Pointer(torch.cuda.current_stream().cuda_stream)
        pointers = Pointer(x.data_ptr()), Pointer(out.data_ptr())
        kind, redop = ctypes.c_int(BFLOAT16), ctypes.c_int(SUM)
        if case.op == "all_gather":
            run = partial(self._lib.ncclAllGather, *pointers, count, kind, self._comm, stream)
        else:
            entry = {"all_reduce": self._lib.ncclAllReduce, "reduce_scatter": self._lib.ncclReduceScatter}[case.op]
            run = partial(entry, *pointers, count, kind, redop, self._comm, stream)
        return run

    def close(self) -> None:
        """Deregister, free and end, once no graph holds a call any more."""
        torch.cuda.synchronize()
        for window, memory in self._windows:
            self._lib.ncclCommWindowDeregister(self._comm, window)
            self._lib.ncclMemFree(memory)
        self._windows.clear()
        self._lib.ncclCommDestroy(self._comm)

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            raise CommError(f"{what}: {self._lib.ncclGetErrorString(result).decode()}")


class _Device:
    """Memory that numba's interface describes; torch makes a tensor of it without a copy."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<i2",
            "data": (address, False),
            "version": 2,
        }


def tensor_at(address: int, elements: int, device: torch.device) -> torch.Tensor:
    """Return the bf16 tensor at an address of this device."""
    return torch.as_tensor(_Device(address, elements), device=device).view(torch.bfloat16)


def candidates(nccl: Nccl | str, plain: Memory, windows: Memory | None, case: Case) -> Iterator[Candidate]:
    """Yield NCCL on ordinary tensors and on registered ones; a string says why there is no NCCL."""
    in_place = case.op == "all_reduce"
    reason = nccl if isinstance(nccl, str) else ""
    for label, memory in (("nccl", plain), ("nccl_symmetric", windows)):
        make = None if isinstance(nccl, str) else nccl.call
        yield Candidate(label, make, memory, in_place, reason=reason)
