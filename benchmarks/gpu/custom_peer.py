"""vLLM's custom all-reduce, built apart with a C interface: on registered inputs, and with its copy into one.

nvcc -O3 -std=c++17 -arch=sm_90 -shared -Xcompiler -fPIC vllm_peer.cu -o vllm_peer.so; then --custom-peer vllm_peer.so
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial

import torch
from candidate import Candidate, Memory, Run
from case import Case
from nccl_peer import tensor_at

from commlib.communicator import Communicator
from commlib.errors import CommError

MOST_BYTES = 8 << 20  # vLLM's own max_size
TABLE_BYTES = 1 << 20  # of registered addresses, on the device
HANDLE_BYTES = 64
Pointer = ctypes.c_void_p


class Custom:
    """The library's object, its flags and the inputs registered with it; made by all ranks together."""

    def __init__(self, comm: Communicator, path: str) -> None:
        self._comm = comm
        self._lib = ctypes.CDLL(path)
        self._lib.peer_error.restype = ctypes.c_char_p
        self._lib.peer_create.restype = Pointer
        self._mapped: list[Pointer] = []
        self._owned: list[Pointer] = []
        self._check(self._lib.peer_device(ctypes.c_int(comm.device.index)), "cudaSetDevice")  # its runtime is its own
        signals = self._shared(self._lib.peer_signal_bytes() + MOST_BYTES)
        table = self._allocate(TABLE_BYTES)
        self._self = Pointer(
            self._lib.peer_create(
                signals, ctypes.c_int(comm.rank), ctypes.c_int(comm.size), table, ctypes.c_size_t(TABLE_BYTES)
            )
        )
        self._staging = self.registered(MOST_BYTES // 2)

    def registered(self, elements: int) -> torch.Tensor:
        """Return a bf16 tensor that peers can read; every rank calls it at the same place."""
        elements = min(elements, MOST_BYTES // 2)
        addresses = self._shared(elements * 2)
        self._check(self._lib.peer_register(self._self, addresses), "registering a buffer")
        return tensor_at(addresses[self._comm.rank] or 0, elements, self._comm.device)

    def call(self, x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
        """Return the call on a registered input."""
        stream = Pointer(torch.cuda.current_stream().cuda_stream)
        count = ctypes.c_int(x.numel())
        pointers = Pointer(x.data_ptr()), Pointer(out.data_ptr())
        return partial(self._lib.peer_all_reduce, self._self, stream, *pointers, count)

    def call_copied(self, x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
        """Return the call on any input: copied to a registered one first."""
        stream = Pointer(torch.cuda.current_stream().cuda_stream)
        pointers = (Pointer(t.data_ptr()) for t in (x, self._staging, out))
        return partial(self._lib.peer_all_reduce_copied, self._self, stream, *pointers, ctypes.c_int(x.numel()))

    def close(self) -> None:
        """Let go of the peers' memory, then free this rank's."""
        torch.cuda.synchronize()
        self._comm.barrier()
        for address in self._mapped:
            self._lib.peer_close(address)
        self._comm.barrier()
        self._lib.peer_destroy(self._self)
        for address in self._owned:
            self._lib.peer_free(address)

    def _allocate(self, num_bytes: int) -> Pointer:
        address = Pointer()
        self._check(self._lib.peer_alloc(ctypes.c_size_t(num_bytes), ctypes.byref(address)), "cudaMalloc")
        self._owned.append(address)
        return address

    def _shared(self, num_bytes: int) -> ctypes.Array[ctypes.c_void_p]:
        """Allocate on every rank and return all addresses as mapped here."""
        mine, handle = self._allocate(num_bytes), ctypes.create_string_buffer(HANDLE_BYTES)
        self._check(self._lib.peer_handle(mine, handle), "cudaIpcGetMemHandle")
        addresses, worst = (Pointer * self._comm.size)(), 0
        for rank, theirs in enumerate(self._comm.all_gather_object(handle.raw)):
            address = mine
            if rank != self._comm.rank:
                address = Pointer()
                worst = self._lib.peer_open(theirs, ctypes.byref(address)) or worst
                self._mapped.append(address)
            addresses[rank] = address.value
        self._check(worst, "cudaIpcOpenMemHandle")
        return addresses

    def _check(self, code: int, what: str) -> None:
        """Raise on all ranks what failed on one: nobody may wait for the next step alone."""
        worst = max(self._comm.all_gather_object(code))
        if worst != 0:
            raise CommError(f"{what}: {self._lib.peer_error(worst).decode()}")


def candidates(custom: Custom | str, plain: Memory, registered: Memory | None, case: Case) -> Iterator[Candidate]:
    """Yield vLLM's call on registered inputs and on any; a string says why it is not there."""
    if case.op != "all_reduce":
        return
    if isinstance(custom, str):
        yield Candidate("vllm", reason=custom)
        return
    yield Candidate("vllm", custom.call, registered, refuses=_refuses)
    yield Candidate("vllm_copied", custom.call_copied, plain, refuses=_refuses)


def _refuses(case: Case) -> str:
    if case.size not in (2, 4, 8):
        return "serves 2, 4 or 8 ranks"
    if case.num_bytes > MOST_BYTES:
        return "serves up to 8 MiB"
    return "" if case.num_bytes % 16 == 0 else "serves multiples of 16 bytes"
