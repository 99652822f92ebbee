"""NCCL's bare calls, by ctypes on the library that torch brings: no commlib between, a communicator of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from commlib.backends.nccl_control import within
from commlib.collectives import Call, Collective
from commlib.communicator import Communicator
from commlib.errors import CommError, Unsupported
from commlib.tools.baselines.peer import START_S, Peer, in_turn, neighbours
from commlib.tools.timing import Prepare, Run

LIBRARY = "libnccl.so.2"
BYTES = 1  # ncclUint8: moving data needs no element type
UNIQUE_ID_BYTES = 128
# ncclDataType_t and ncclRedOp_t, in their order
TYPES = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8_e4m3fn float8_e5m2".split()
REDOPS = ("sum", "prod", "max", "min", "avg")
Pointer = ctypes.c_void_p


class _UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


class Nccl(Peer):
    """One communicator, made and ended by all ranks together."""

    name = "nccl"
    title = "NCCL"
    labels = ("nccl",)

    def __init__(self) -> None:
        self.lib: Any = None
        self.comm = Pointer()

    def lacks(self, comm: Communicator) -> str:
        if comm.device.type != "cuda":
            return f"NCCL needs GPUs; this job is on {comm.device.type}"
        try:
            self.lib = self.opened()
        except OSError as error:
            return str(error)
        return ""

    def opened(self) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise OSError(f"{LIBRARY} cannot be loaded ({error}); install torch for CUDA") from None

    def join(self, comm: Communicator) -> None:
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        unique = _UniqueId()
        if comm.rank == 0:
            self.check(self.lib.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        shared = comm.broadcast_object(bytes(unique), 0)
        init = self.lib.ncclCommInitRank
        init.argtypes = [ctypes.POINTER(Pointer), ctypes.c_int, _UniqueId, ctypes.c_int]
        arguments = ctypes.byref(self.comm), comm.size, _UniqueId.from_buffer_copy(shared), comm.rank
        self.check(within(START_S, "ncclCommInitRank", partial(init, *arguments)), "ncclCommInitRank")

    def prepare(self, collective: Collective, in_place: bool) -> Prepare:
        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            make = CALLS.get(collective.name)
            if make is None:
                raise Unsupported(f"NCCL has no {collective.name}")
            if in_place and collective.name == "all_to_all":
                raise Unsupported("NCCL has no in-place all_to_all")
            return make(_Call(self, x, out, call))

        return prepare

    def bare(self, name: str, *arguments: Any) -> Run:
        function = getattr(self.lib, name, None)
        if function is None:
            raise Unsupported(f"this NCCL has no {name}")
        function.errcheck = self._checked
        arguments = (*arguments, self.comm)
        if self.graph:  # it is captured on another stream than it was prepared on
            return lambda: function(*arguments, stream())
        return partial(function, *arguments, stream())

    def stop(self) -> None:
        if self.comm.value:
            torch.cuda.synchronize()
            self.check(within(START_S, "ncclCommDestroy", partial(self.lib.ncclCommDestroy, self.comm)), "the end")
            self.comm = Pointer()

    def check(self, result: int, what: str) -> None:
        if result != 0:
            raise CommError(f"{what}: {self.lib.ncclGetErrorString(result).decode()}")

    def _checked(self, result: int, function: Any, arguments: tuple[Any, ...]) -> int:
        self.check(result, "the bare call")
        return result


make = Nccl


class _Call:
    def __init__(self, owner: Nccl, x: torch.Tensor, out: torch.Tensor, call: Call) -> None:
        self.to, self.lib, self.call = owner.bare, owner.lib, call
        self.x, self.out, self.root = Pointer(x.data_ptr()), Pointer(out.data_ptr()), ctypes.c_int(call.root)
        self.moved = _bytes(call.count * call.dtype.itemsize)

    def reduced(self) -> tuple[Any, ...]:
        """Return count, type and reduction; Unsupported names what NCCL lacks."""
        name = str(self.call.dtype).removeprefix("torch.")
        if name not in TYPES or self.call.redop not in REDOPS:
            raise Unsupported(f"NCCL does not reduce {name} by {self.call.redop}")
        codes = ctypes.c_int(TYPES.index(name)), ctypes.c_int(REDOPS.index(self.call.redop))
        return ctypes.c_size_t(self.call.count), *codes


def _bytes(number: int) -> tuple[Any, Any]:
    return ctypes.c_size_t(number), ctypes.c_int(BYTES)


def stream() -> Pointer:
    return Pointer(torch.cuda.current_stream().cuda_stream)


def _send_recv(c: _Call) -> Run:
    after, before = neighbours(c.call)
    send = c.to("ncclSend", c.x, *c.moved, ctypes.c_int(after))
    recv = c.to("ncclRecv", c.out, *c.moved, ctypes.c_int(before))
    return in_turn(c.lib.ncclGroupStart, send, recv, c.lib.ncclGroupEnd)


CALLS: dict[str, Callable[[_Call], Run]] = {
    "all_reduce": lambda c: c.to("ncclAllReduce", c.x, c.out, *c.reduced()),
    "all_gather": lambda c: c.to("ncclAllGather", c.x, c.out, *c.moved),
    "reduce_scatter": lambda c: c.to("ncclReduceScatter", c.x, c.out, *c.reduced()),
    "broadcast": lambda c: c.to("ncclBroadcast", c.out, c.out, *c.moved, c.root),
    "reduce": lambda c: c.to("ncclReduce", c.x, c.out, *c.reduced(), c.root),
    # These three since NCCL 2.28.
    "all_to_all": lambda c: c.to("ncclAlltoAll", c.x, c.out, *c.moved),
    "gather": lambda c: c.to("ncclGather", c.x, c.out, *c.moved, c.root),
    "scatter": lambda c: c.to("ncclScatter", c.x, c.out, *c.moved, c.root),
    "send_recv": _send_recv,
}
