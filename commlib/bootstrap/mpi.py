"""The world mpiexec made, or an mpi4py communicator of the program; the only importer of mpi4py."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from commlib.bootstrap.launchers import Launcher, announced, first_number
from commlib.bootstrap.local_world import Place, meet
from commlib.bootstrap.tcp import connect_store, host_address, serve
from commlib.bootstrap.world import Identity, World
from commlib.counts import counted
from commlib.debug.starting import Waiting
from commlib.errors import CommTimeout, Unsupported, first_line

LAUNCHERS = {
    "Open MPI's mpiexec": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH's mpiexec": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
}
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
MEETING_BYTES = 256


def detect(environ: Mapping[str, str]) -> int | None:
    for launcher, (rank, size) in LAUNCHERS.items():
        total = announced(environ, launcher, rank, size)
        # srun sets PMI's variables for every task, MPI program or not.
        by_srun = rank == "PMI_RANK" and environ.get("SLURM_STEP_NUM_TASKS") == str(total)
        if total is not None and not (by_srun and importlib.util.find_spec("mpi4py") is None):
            return total
    return None


def library() -> Any:
    """Return mpi4py's MPI; Unsupported says why there is none."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # With "multiple", mpi4py's default, MPICH turns its shared-memory collectives off.
            mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise Unsupported(f"MPI cannot be loaded ({first_line(error)}); `pip install mpi4py mpich`") from None
    return MPI


def connect(timeout_s: float) -> World:
    ours = "mpi4py.MPI" not in sys.modules
    mpi = library()
    world, expected = mpi.COMM_WORLD, detect(os.environ)
    if expected not in (None, world.size):
        raise Unsupported(
            f"mpiexec started {counted(expected, 'rank')}, but the MPI that mpi4py loaded sees {world.size}: launcher "
            f"and library belong to different MPIs; use the mpiexec of that library, or set MPI4PY_MPIABI"
        )
    if ours and world.size > 1:
        _abort_on_uncaught(mpi)
    return join(world, timeout_s, first_number(os.environ, *LOCAL_RANKS))


def join(comm: Any, timeout_s: float, local_rank: int | None = None) -> World:
    """Make the world of an mpi4py communicator: MPI only passes on where the ranks meet."""
    deadline = time.monotonic() + timeout_s
    who = Identity(comm.rank, comm.size, local_rank)
    meeting = bytearray(MEETING_BYTES)
    if comm.rank == 0:
        text = f"{secrets.token_hex(16)} {_address()}".encode()
        meeting[: len(text)] = text
    # A collective: a receive of the program's from anyone does not take it, and there is a deadline for it.
    request = comm.Ibcast([meeting, library().BYTE], 0)
    with Waiting(who.rank, who.size, timeout_s) as waiting:
        while not request.Test():
            if time.monotonic() > deadline:
                raise CommTimeout(
                    f"rank {who.rank} waited {timeout_s:g} s for rank 0 to join (mpi); "
                    "if it is only late, raise timeout_s"
                )
            waiting.pause("rank 0")
    name, *address = bytes(meeting).rstrip(b"\0").decode().split()
    left_s = max(deadline - time.monotonic(), 0.1)
    if not address:
        return meet("mpi", Place(name, "the job of mpiexec"), who, left_s)
    return connect_store("mpi", (address[0], int(address[1])), who, left_s, secret=name)


def _address() -> str:
    """Return where rank 0 serves a store, "" where it needs none as all ranks of the job are on this host."""
    if first_number(os.environ, *LOCAL_SIZES) == library().COMM_WORLD.size:
        return ""
    return "{} {}".format(*serve(host_address(together=False)))


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


MPI = Launcher("mpiexec -n N", detect, connect, tuple(rank for rank, _ in LAUNCHERS.values()))
