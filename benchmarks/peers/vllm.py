"""vLLM's custom all-reduce, built apart with a C interface: on registered inputs, and with its copy into one.

nvcc -O3 -std=c++17 -arch=sm_90 -shared -Xcompiler -fPIC vllm_peer.cu -o benchmarks/peers/vllm_peer.so
commlib bench all_reduce --graph --dtype bfloat16 --peer benchmarks/peers/vllm.py
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from gpu_memory import tensor_at

from commlib.collectives import Call, Collective
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.peers import Peer
from commlib.peers.nccl import Pointer, stream
from commlib.timing import Candidate, Prepare, Run, plain_on

LIBRARY = Path(__file__).with_name("vllm_peer.so")
MOST_BYTES = 8 << 20  # vLLM's own max_size
TABLE_BYTES = 1 << 20  # of registered addresses, on the device
HANDLE_BYTES = 64


class Vllm(Peer):
    """The library's object, its flags and the inputs registered with it; made by all ranks together."""

    name = "vllm"
    labels = ("vllm", "vllm_copied")

    def __init__(self) -> None:
        self._mapped: list[Pointer] = []
        self._owned: list[Pointer] = []
        self._self = Pointer()

    def lacks(self, comm: Communicator) -> str:
        """Say what is missing."""
        if comm.device.type != "cuda":
            return f"it needs GPUs; this job is on {comm.device.type}"
        if comm.size not in (2, 4, 8):
            return "it serves 2, 4 or 8 ranks"
        return "" if LIBRARY.exists() else f"there is no {LIBRARY.name} beside {Path(__file__).name}; build it"

    def join(self, comm: Communicator) -> None:
        """Make the object and its flags, and one registered input."""
        self._comm, self._lib = comm, ctypes.CDLL(str(LIBRARY))
        self._lib.peer_error.restype = ctypes.c_char_p
        self._lib.peer_create.restype = Pointer
        self._check(self._lib.peer_device(ctypes.c_int(comm.device.index)), "cudaSetDevice")  # its runtime is its own
        signals = self._shared(self._lib.peer_signal_bytes() + MOST_BYTES)
        table, ranks = self._allocate(TABLE_BYTES), (ctypes.c_int(comm.rank), ctypes.c_int(comm.size))
        self._self = Pointer(self._lib.peer_create(signals, *ranks, table, ctypes.c_size_t(TABLE_BYTES)))
        self._staging = self._registered(MOST_BYTES // 2, torch.bfloat16)
        for function in (self._lib.peer_all_reduce, self._lib.peer_all_reduce_copied):
            function.errcheck = self._raised

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return its call on registered inputs and on any, out of place."""
        if collective.name != "all_reduce" or in_place:
            reason = "it works out of place only" if in_place else f"it has no {collective.name}"
            return self.refused(reason, in_place)
        direct = self._prepare(self._lib.peer_all_reduce)
        copied = self._prepare(self._lib.peer_all_reduce_copied, self._staging)
        return [
            Candidate(self.labels[0], direct, in_place, self._registered),
            Candidate(self.labels[1], copied, in_place, plain_on(comm.device)),
        ]

    def stop(self) -> None:
        """Let go of the peers' memory, then free this rank's."""
        if not self._self.value:
            return
        torch.cuda.synchronize()
        self._comm.barrier()
        for address in self._mapped:
            self._lib.peer_close(address)
        self._comm.barrier()
        self._lib.peer_destroy(self._self)
        for address in self._owned:
            self._lib.peer_free(address)

    def _prepare(self, function: Any, *staging: torch.Tensor) -> Prepare:
        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            if call.dtype != torch.bfloat16 or call.redop != "sum":
                raise Unsupported("it was built to add bfloat16")
            if x.nbytes > MOST_BYTES or x.nbytes % 16:
                raise Unsupported("it serves multiples of 16 bytes up to 8 MiB")
            pointers, count = [Pointer(t.data_ptr()) for t in (x, *staging, out)], ctypes.c_int(x.numel())
            return lambda: function(self._self, stream(), *pointers, count)

        return prepare

    def _registered(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that peers can read; every rank calls it at the same place."""
        if elements * dtype.itemsize > MOST_BYTES:
            raise Unsupported("it serves multiples of 16 bytes up to 8 MiB")
        addresses = self._shared(elements * dtype.itemsize)
        self._check(self._lib.peer_register(self._self, addresses), "registering a buffer")
        return tensor_at(addresses[self._comm.rank], elements, dtype)

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

    def _raised(self, code: int, function: Any, arguments: tuple[Any, ...]) -> int:
        if code != 0:
            raise RuntimeError(f"the call: {self._lib.peer_error(code).decode()}")
        return code


make = Vllm
