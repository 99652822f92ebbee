"""The world mpiexec made, or an mpi4py communicator of the program's own; the only importer of mpi4py."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from commlib.bootstrap.launcher import announced
from commlib.bootstrap.neighbours import Neighbours, card
from commlib.bootstrap.store import named
from commlib.bootstrap.world import World
from commlib.errors import CommTimeout, PeerLost, Unsupported

START = "mpiexec -n N"
LAUNCHERS = {
    "Open MPI's mpiexec": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH's mpiexec": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
}
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
TAGS = 32767  # the least any MPI offers
LONGEST_NAP_S = 0.005


def detect(environ: Mapping[str, str]) -> int | None:
    """Return the number of ranks mpiexec announces, None without it."""
    for launcher, (rank, size) in LAUNCHERS.items():
        total = announced(environ, launcher, rank, size)
        # srun sets PMI's variables for every task, MPI program or not.
        by_srun = rank == "PMI_RANK" and environ.get("SLURM_STEP_NUM_TASKS") == str(total)
        if total is not None and not (by_srun and importlib.util.find_spec("mpi4py") is None):
            return total
    return None


def is_launcher() -> bool:
    """Say whether mpiexec started this process."""
    return detect(os.environ) is not None


def library() -> Any:
    """Return mpi4py's MPI for a program that calls it beside ours; Unsupported says why there is none."""
    return _load()


def connect(timeout_s: float) -> World:
    """Join the ranks of COMM_WORLD."""
    ours = "mpi4py.MPI" not in sys.modules
    mpi = _load()
    world, expected = mpi.COMM_WORLD, detect(os.environ)
    if expected not in (None, world.size):
        raise Unsupported(
            f"mpiexec started {expected} ranks, but the MPI that mpi4py loaded sees {world.size}: launcher "
            f"and library are not of one MPI; use the library's own mpiexec, or set MPI4PY_MPIABI"
        )
    if ours and world.size > 1:
        _abort_on_uncaught(mpi)
    if ours:  # nobody else receives on COMM_WORLD yet, and only this can name who is missing
        _Round(mpi, world, TAGS, b"").gather(timeout_s)
    local_rank = next((int(os.environ[name]) for name in LOCAL_RANKS if os.environ.get(name)), None)
    return MpiWorld(world, timeout_s, local_rank)


class MpiWorld(World):
    """Exchanges over a duplicate of a communicator, so that no message of the program's is ever taken."""

    name = "mpi"

    def __init__(self, comm: Any, timeout_s: float = 300.0, local_rank: int | None = None) -> None:
        self._mpi = _load()
        self.rank, self.size = comm.rank, comm.size
        self._comm, duplicated = comm.Idup()
        _wait_until(
            duplicated.Test,
            timeout_s,
            lambda: f"rank {self.rank} waited {timeout_s:g} s for all ranks to join (mpi)",
        )
        self._round = 0
        self._open: list[_Round] = []  # a round that failed stays: MPI still reads and writes its buffers
        self._neighbours: Neighbours | None = None
        self._neighbours = Neighbours(self.rank, self.all_gather(card(), timeout_s))
        self.local_rank = self._neighbours.local_rank if local_rank is None else local_rank

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order."""
        self._round += 1
        round_ = _Round(self._mpi, self._comm, self._round % TAGS, data)
        self._open.append(round_)
        gathered = round_.gather(timeout_s, self._neighbours.dead if self._neighbours else None)
        self._open.pop()
        return gathered

    def close(self) -> None:
        """Free the duplicate, unless a failed round's messages still use it."""
        if self._neighbours is None:
            return
        self._neighbours.close()
        self._neighbours = None
        if not self._open and not self._mpi.Is_finalized():
            self._comm.Free()


class _Round:
    """One exchange: a message to and from every other rank; a collective could not say who is late."""

    def __init__(self, mpi: Any, comm: Any, tag: int, data: bytes) -> None:
        self._mpi, self._comm, self._tag = mpi, comm, tag
        self.parts: dict[int, Any] = {comm.rank: data}
        peers = [rank for rank in range(comm.size) if rank != comm.rank]
        self._sends = {peer: comm.Isend([data, mpi.BYTE], peer, tag) for peer in peers}
        self._receives: dict[int, Any] = {}
        self._absent = set(peers)

    def done(self) -> bool:
        """Take what has come; True when all have sent and received."""
        for peer in list(self._absent):
            status = self._mpi.Status()
            message = self._comm.Improbe(peer, self._tag, status)
            if message is not None:
                self._absent.discard(peer)
                self.parts[peer] = bytearray(status.Get_count(self._mpi.BYTE))
                self._receives[peer] = message.Irecv([self.parts[peer], self._mpi.BYTE])
        for requests in (self._sends, self._receives):
            for peer in [peer for peer, request in requests.items() if request.Test()]:
                del requests[peer]
        return not (self._absent or self._sends or self._receives)

    def gather(self, timeout_s: float, dead: Callable[[list[int]], list[int]] | None = None) -> list[bytes]:
        """Return every rank's bytes, or say who is late or dead."""

        def done() -> bool:
            if self.done():
                return True
            if dead and (gone := dead(self.missing())):
                raise PeerLost(f"rank {self._comm.rank}: {named(gone)} died before exchange {self._tag} (mpi)")
            return False

        def late() -> str:
            return (
                f"rank {self._comm.rank} waited {timeout_s:g} s in exchange {self._tag} (mpi) for "
                f"{named(self.missing())}; raise timeout_s if they are only late"
            )

        try:
            _wait_until(done, timeout_s, late)
        except self._mpi.Exception as error:
            raise PeerLost(f"rank {self._comm.rank}: MPI lost a rank in exchange {self._tag}: {error}") from None
        return [bytes(self.parts[rank]) for rank in range(self._comm.size)]

    def missing(self) -> list[int]:
        """Return the ranks that have not sent, or not received."""
        return sorted(self._absent or {*self._sends, *self._receives})


def _wait_until(done: Callable[[], bool], timeout_s: float, late: Callable[[], str]) -> None:
    deadline, nap_s = time.monotonic() + timeout_s, 1e-5
    while not done():
        if time.monotonic() > deadline:
            raise CommTimeout(late())
        time.sleep(nap_s)
        nap_s = min(nap_s * 2, LONGEST_NAP_S)


def _load() -> Any:
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # With "multiple", mpi4py's default, MPICH turns its shared-memory collectives off.
            mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise Unsupported(f"MPI cannot be loaded ({reason}); `pip install mpi4py mpich`") from None
    return MPI


def _abort_on_uncaught(mpi: Any) -> None:
    """Let an uncaught exception end the job: without this the others wait in MPI_Finalize for ever."""
    report = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        report(kind, error, trace)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(0.3)  # launchers drop what they have not read yet when a rank aborts
            mpi.COMM_WORLD.Abort(1)

    sys.excepthook = hook
