"""Where the two ranks' cores lie to each other: a flag passed back and forth, timed by the common protocol."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from commlib.collectives import COLLECTIVES, Call
from commlib.collectives.reference import ordered
from commlib.timing import Candidate, Protocol, measure

if TYPE_CHECKING:
    from commlib.communicator import Communicator

ROUNDS = 200
FAR_NS = 130  # cores of one cache take half of it, others twice


class Probe:
    """A page that two ranks share, and the compiled loop that passes a flag through it."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        descriptor = os.memfd_create("probe")
        os.truncate(descriptor, mmap.PAGESIZE)
        pid, number = comm.broadcast_object((os.getpid(), descriptor), 0)
        with Path(f"/proc/{pid}/fd/{number}").open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        comm.barrier()  # rank 0's descriptor stays until everybody has opened it
        os.close(descriptor)
        self._pass = _compiled(comm)
        self._line = ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def one_way_ns(self) -> float:
        """Return how long a flag takes from one core to the other."""

        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Any:
            rank = self.comm.rank
            return partial(self._pass, self._line, rank, ROUNDS) if rank < 2 else lambda: None

        call = Call(self.comm.rank, self.comm.size, 0, torch.uint8)
        probe = Candidate("flag", prepare)
        few = Protocol(blocks=(5, 5), budget_s=0.0, buffers=1)
        (result,) = measure(self.comm, COLLECTIVES["barrier"], call, ordered, [probe], few)
        return result.median_s / ROUNDS / 2 * 1e9


def placement(flags_ns: list[float]) -> str:
    """Name what was seen before and after a row: near, far, or mixed where the cores moved."""
    names = {"near" if one_way_ns < FAR_NS else "far" for one_way_ns in flags_ns}
    return names.pop() if len(names) == 1 else "mixed" if names else ""


def _compiled(comm: Communicator) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "probe.so"
        source = Path(__file__).with_name("probe.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).__getattr__("pass")
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    function.restype = None
    return function
