"""SGLang's all-reduce, compiled from the headers of its wheel: one and two shots, pushed and pulled.

benchmarks/norms.py and benchmarks/tp_decode.py also call it with the residual and the norm in the same kernel.

pip download --no-deps -d build sglang==0.5.23 apache-tvm-ffi==0.1.15.post2   # of tvm-ffi only headers are read
for wheel in build/sglang-*.whl build/apache_tvm_ffi-*.whl; do unzip -qo $wheel -d build/sglang; done
JIT=build/sglang/sglang/kernels/jit
nvcc -O3 -std=c++20 -arch=sm_90a -DSGL_CUDA_ARCH=900 -shared -Xcompiler -fPIC --expt-relaxed-constexpr \
  -I $JIT/include -I $JIT/csrc/distributed -I build/sglang/tvm_ffi/include \
  benchmarks/peers/sglang.cu -o benchmarks/peers/libsglang.so
commlib bench all_reduce --graph --dtype bfloat16 --peer benchmarks/peers/sglang.py
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import torch

from commlib.collectives import Call, Collective
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.baselines.nccl import stream
from commlib.tools.baselines.symm import Symm, group_name
from commlib.tools.timing import Candidate, Run, plain_on

LIBRARY = Path(__file__).with_name("libsglang.so")  # sglang.so would be imported in place of this file
MOST_RANKS = 8
SLOT_BYTES = 16 << 20  # of one rank's pushes, as in SGLang
PULL_BYTES = 128 << 20  # of a pulled call, the most that SGLang's tables give to one
PULL_BLOCKS = 64  # as in SGLang on Hopper
SEMAPHORE_BYTES = 128  # of a pull block
VECTOR_BYTES = 16
ROWS, WIDTHS = 384, (4096, 5120, 7168, 8192)  # of a norm: as many rows as SGLang gives to the kernel; what was built
ROW_COUNTERS = 512  # of a norm's workspace; SGLang, too, gives it one of its own, with so many
ONE_PUSH, TWO_PUSH, ONE_PULL, TWO_PULL = range(4)  # as in sglang.cu


class _Workspace(ctypes.Structure):
    """What sglang.cu has under this name: the workspace of all ranks as this rank sees it."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("rank", "size", "push_blocks", "pull_blocks")),
        *((name, ctypes.c_int64) for name in ("slot_bytes", "pull_bytes")),
        ("counter", ctypes.c_void_p),
        *((name, ctypes.c_void_p * MOST_RANKS) for name in ("push", "pull", "semaphores")),
    )


class SGLang(Symm):
    """The library and its workspaces, which are in torch's symmetric memory as SGLang's own; nothing is multicast."""

    name = "sglang"
    title = "SGLang"
    labels = (  # type: ignore[assignment]  # Symm has two
        *("sglang_oneshot_push", "sglang_twoshot_push", "sglang_oneshot_pull", "sglang_twoshot_pull"),
        "sglang_registered",
    )

    def lacks(self, comm: Communicator) -> str:
        """Say what is missing."""
        if reason := super().lacks(comm):
            return reason
        if comm.size not in (2, 4, 8):
            return "it was built for 2, 4 or 8 ranks"
        if torch.cuda.get_device_capability(comm.device) != (9, 0):
            return "it was built for Hopper GPUs"
        return "" if LIBRARY.exists() else f"there is no {LIBRARY.name} beside {Path(__file__).name}; build it"

    def join(self, comm: Communicator) -> None:
        """Make the workspaces that all ranks write to, and this rank's counters."""
        super().join(comm)
        library = ctypes.CDLL(str(LIBRARY))
        pointer, number, workspace = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Workspace)
        self._call, self._norm = library.sglang_all_reduce, library.sglang_add_norm
        self._call.argtypes = (workspace, pointer, pointer, ctypes.c_int64, number, pointer, pointer)
        self._norm.argtypes = (workspace, *[pointer] * 3, ctypes.c_float, *[number] * 3, pointer)
        self._kept: list[torch.Tensor] = []
        blocks = torch.cuda.get_device_properties(comm.device).multi_processor_count
        self._workspace = self._made(comm, blocks, SLOT_BYTES, PULL_BYTES)
        self._of_norms = self._made(comm, ROW_COUNTERS, ROWS * max(WIDTHS) * 2, 0)
        torch.cuda.synchronize()
        comm.barrier()

    def _made(self, comm: Communicator, push_blocks: int, slot_bytes: int, pull_bytes: int) -> _Workspace:
        """Return a workspace of zeros: two phases of a slot for each rank, what is pulled from, and its semaphores."""
        pull = 2 * comm.size * slot_bytes
        semaphores = pull + pull_bytes
        pull_blocks = PULL_BLOCKS if pull_bytes else 0
        buffer = self.empty(semaphores + pull_blocks * SEMAPHORE_BYTES, torch.uint8).zero_()
        counter = torch.zeros(push_blocks, dtype=torch.int32, device=comm.device)
        self._kept += [buffer, counter]
        bases = _addresses(buffer, comm.rank)
        parts = [(ctypes.c_void_p * MOST_RANKS)(*(base + at for base in bases)) for at in (0, pull, semaphores)]
        numbers = comm.rank, comm.size, push_blocks, pull_blocks, slot_bytes, pull_bytes
        return _Workspace(*numbers, counter.data_ptr(), *parts)

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return its four ways, out of place, and what it does in graphs with large tensors: it registers them."""
        if collective.name != "all_reduce":
            return self.refused(f"it has no {collective.name}", in_place)
        found = self.refused("it works out of place only", in_place)
        if not in_place:
            ways, empty = enumerate(self.labels[:-1]), plain_on(comm.device)
            found[:-1] = [Candidate(label, partial(self._prepare, way), empty=empty) for way, label in ways]
        prepare = partial(self._prepare, TWO_PULL if in_place else ONE_PULL, registered=True)
        if self.graph:
            found[-1] = Candidate(self.labels[-1], prepare, in_place, self.empty)
        else:
            found[-1] = self.refused("it registers tensors for graphs only", in_place)[-1]
        return found

    def _prepare(self, way: int, x: torch.Tensor, out: torch.Tensor, call: Call, registered: bool = False) -> Run:
        """Return the call; x that is registered is read where it is, by a table of every rank's."""
        if call.dtype != torch.bfloat16 or call.redop != "sum":
            raise Unsupported("it was built to add bfloat16")
        limit = {ONE_PUSH: SLOT_BYTES, TWO_PUSH: call.size * SLOT_BYTES // 2}.get(way, PULL_BYTES)
        if x.nbytes % VECTOR_BYTES or not 0 < x.nbytes <= limit:
            raise Unsupported(f"it takes multiples of {VECTOR_BYTES} bytes, here up to {limit >> 20} MiB")
        table = torch.tensor(_addresses(x, call.rank), device=x.device) if registered else None
        workspace = ctypes.byref(self._workspace)

        def run() -> None:
            at = None if table is None else table.data_ptr()
            if code := self._call(workspace, x.data_ptr(), out.data_ptr(), x.numel(), way, at, stream()):
                raise RuntimeError(f"SGLang's all-reduce failed with CUDA error {code}")

        return run

    def add_norm(
        self, two_shot: bool, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> None:
        """Put all ranks' sum with the residual in the residual's place, and the norm of its rows in place of x."""
        tokens, width = x.numel() // x.shape[-1], x.shape[-1]
        if x.dtype != torch.bfloat16 or weight.dtype != x.dtype or width not in WIDTHS:
            raise Unsupported(f"it was built for bfloat16 and rows of {', '.join(map(str, WIDTHS))}")
        if tokens > ROWS:
            raise Unsupported(f"it takes {ROWS} rows at most")
        pointers = [tensor.data_ptr() for tensor in (x, residual, weight)]
        if code := self._norm(ctypes.byref(self._of_norms), *pointers, eps, tokens, width, two_shot, stream()):
            raise Unsupported(f"its all-reduce with a norm failed with CUDA error {code}")


def _addresses(tensor: torch.Tensor, rank: int) -> list[int]:
    """Return where every rank's tensor of symmetric memory is for this rank."""
    import torch.distributed._symmetric_memory as symm_mem

    handle: Any = symm_mem.rendezvous(tensor, group_name())
    if handle is None or handle.buffer_ptrs[rank] != tensor.data_ptr():
        raise Unsupported("a tensor does not begin where torch's symmetric memory does")
    return list(handle.buffer_ptrs)


make = SGLang
