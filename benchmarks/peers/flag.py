"""A probe of where the cores of ranks 0 and 1 lie: 200 times a flag goes back and forth, beside every call.

commlib bench all_reduce -n 2 --peer benchmarks/peers/flag.py

One way is a 400th of its time: below 130 ns the cores share a cache; from p10 to p90 one sees whether they moved.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from commlib.collectives import Collective
from commlib.communicator import Communicator
from commlib.tools.baselines.peer import Peer
from commlib.tools.timing import Candidate, Run

ROUNDS = 200


class Flag(Peer):
    """A page that two ranks share, and the compiled loop that passes a flag through it."""

    name = "flag"
    labels = ("probe flag x 400",)

    def lacks(self, comm: Communicator) -> str:
        """Say what keeps two ranks from passing a flag."""
        return "" if 1 < comm.size <= (os.cpu_count() or 1) else "every rank needs a core of its own, and another rank"

    def join(self, comm: Communicator) -> None:
        """Share the page and compile the loop."""
        descriptor = os.memfd_create("flag")
        os.truncate(descriptor, mmap.PAGESIZE)
        pid, number = comm.broadcast_object((os.getpid(), descriptor), 0)
        with Path(f"/proc/{pid}/fd/{number}").open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        comm.barrier()  # rank 0's descriptor stays until everybody has opened it
        os.close(descriptor)
        line = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._run: Run = partial(_compiled(), line, comm.rank, ROUNDS) if comm.rank < 2 else lambda: None

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return the probe, which is the same beside every call."""
        return [Candidate(self.labels[0], lambda x, out, call: self._run, in_place, checked=False)]


def _compiled() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "flag.so"
        command = ["cc", "-O2", "-shared", "-fPIC", str(Path(__file__).with_name("flag.c")), "-o", str(library)]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(library)).__getattr__("pass")
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    function.restype = None
    return function


make = Flag
