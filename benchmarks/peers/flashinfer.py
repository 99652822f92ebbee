"""FlashInfer's all-reduce, compiled from the headers of its wheel: one shot with and without early launch, two shots.

benchmarks/norms.py and benchmarks/tp_decode.py also call it with the residual and the norm in the same kernel.

DATA=$(python -c "import flashinfer.jit.env as e; print(e.FLASHINFER_DATA)")   # of its wheel
nvcc -O3 -std=c++17 -arch=sm_90a -shared -Xcompiler -fPIC --expt-relaxed-constexpr -I $DATA/include \
  -I $DATA/spdlog/include benchmarks/peers/flashinfer.cu -o benchmarks/peers/libflashinfer.so
commlib bench all_reduce --graph --dtype bfloat16 --peer benchmarks/peers/flashinfer.py
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from commlib.collectives import Call, Collective
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.baselines.nccl import Pointer, stream
from commlib.tools.baselines.symm import Symm
from commlib.tools.timing import Candidate, Run, plain_on

LIBRARY = Path(__file__).with_name("libflashinfer.so")  # flashinfer.so would be imported in place of this file
MOST_BYTES = 64 << 20  # of a call
HIDDEN = 8192  # elements of a token, the largest that its one-shot kernel takes in one cluster of small blocks
BARRIER_BYTES = 256 * 4  # a rank's flags
NEGATIVE_ZERO = -(1 << 15)  # the bits that mean "not yet here" in a bfloat16
MODES = ((1, 0), (1, 1), (0, 0))  # of each label: one shot, launched early


class FlashInfer(Symm):
    """The library and its workspace, which is in torch's symmetric memory as in FlashInfer's own."""

    name = "flashinfer"
    title = "FlashInfer"
    labels = ("flashinfer", "flashinfer_early", "flashinfer_twoshot")

    def lacks(self, comm: Communicator) -> str:
        """Say what is missing."""
        if comm.size not in (2, 4, 8):
            return "it serves 2, 4 or 8 ranks"
        missing = f"there is no {LIBRARY.name} beside {Path(__file__).name}; build it"
        return super().lacks(comm) or ("" if LIBRARY.exists() else missing)

    def join(self, comm: Communicator) -> None:
        """Make the three buffers that all ranks write to, and this rank's counters."""
        super().join(comm)
        library = ctypes.CDLL(str(LIBRARY))
        self._call, self._norm = library.flashinfer_all_reduce, library.flashinfer_add_norm
        self._place = comm.rank, comm.size
        part = comm.size * MOST_BYTES  # of the one-shot kernel's buffer, which has three parts
        sizes = (comm.size * MOST_BYTES, comm.size * BARRIER_BYTES, 3 * part)
        self._buffers = [self.empty(num_bytes // 2, torch.int16) for num_bytes in sizes]
        for buffer, value in zip(self._buffers, (0, 0, NEGATIVE_ZERO), strict=True):
            buffer.fill_(value)
        self._counters = torch.tensor([0, 0, 0, part, 0], dtype=torch.int32, device=comm.device)
        addresses = [address for buffer in self._buffers for address in _handle(buffer).buffer_ptrs]
        self._workspace = torch.tensor([*addresses, self._counters.data_ptr()], device=comm.device)
        torch.cuda.synchronize()
        comm.barrier()

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return its three ways, out of place."""
        if collective.name != "all_reduce" or in_place:
            return self.refused("it works out of place only" if in_place else f"it has no {collective.name}", in_place)
        ways = zip(self.labels, MODES, strict=True)
        return [Candidate(label, partial(self._prepare, mode), in_place, plain_on(comm.device)) for label, mode in ways]

    def _prepare(self, mode: tuple[int, int], x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        if call.dtype != torch.bfloat16 or call.redop != "sum":
            raise Unsupported("it was built to add bfloat16")
        hidden = HIDDEN if call.count % HIDDEN == 0 else call.count
        if hidden > HIDDEN or hidden % 8 or x.nbytes > MOST_BYTES or (not mode[0] and call.count < call.size * hidden):
            raise Unsupported(f"it is measured for rows of {HIDDEN} or less, in multiples of 16 bytes, up to 64 MiB")
        numbers = [ctypes.c_int(number) for number in (call.rank, call.size, call.count, hidden)]
        pointers = [Pointer(tensor.data_ptr()) for tensor in (self._workspace, x, out)]
        flags = [ctypes.c_int(flag) for flag in mode]

        def run() -> None:
            if code := self._call(*numbers, *pointers, *flags, stream()):
                raise RuntimeError(f"FlashInfer's all-reduce failed with CUDA error {code}")

        return run

    def add_norm(self, early: bool, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """Put all ranks' sum with the residual in the residual's place, and the norm of its rows in place of x."""
        if x.dtype != torch.bfloat16 or weight.dtype != x.dtype or x.shape[-1] > HIDDEN or x.nbytes > MOST_BYTES:
            raise Unsupported(f"it was built for bfloat16, and is measured for rows of {HIDDEN} or less, up to 64 MiB")
        numbers = [ctypes.c_int(number) for number in (*self._place, x.numel(), x.shape[-1])]
        tensors = (self._workspace, x, residual, residual, weight)
        pointers = [Pointer(tensor.data_ptr()) for tensor in tensors]
        flags = ctypes.c_int(1), ctypes.c_int(early)
        if code := self._norm(*numbers, *pointers, ctypes.c_float(eps), *flags, stream()):
            raise Unsupported(f"its all-reduce with a norm failed with CUDA error {code}")


def _handle(tensor: torch.Tensor) -> dist._symmetric_memory._SymmetricMemory:
    import torch.distributed._symmetric_memory as symm_mem

    return symm_mem.rendezvous(tensor, dist.group.WORLD.group_name)  # type: ignore[union-attr]


make = FlashInfer
