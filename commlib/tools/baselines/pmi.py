"""MPI among ranks that no mpiexec started: a process that answers what MPICH asks its launcher, in the PMI-1 protocol.

A rank's MPI asks on the descriptor in PMI_FD, a line for each request: names, numbers, values that ranks put and get,
and a barrier. The process serves the ranks of one host until all have gone.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from commlib.bootstrap.rendezvous_server import peer_user
from commlib.users import current_user

NAMES = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
START_S = 60.0  # for all ranks to connect; who has not come then, never will
LIMITS = "kvsname_max=256 keylen_max=64 vallen_max=1024"
SPEAK_PMI = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2")
TRIAL_S = 20.0
SEGMENTS = "/dev/shm/mpich_shm"  # the memory that ranks share; only MPI_Finalize would take its name away


def unsupported_reason() -> str:
    """Say why MPI cannot start among ranks that no mpiexec started, "" for nothing.

    It is tried in another process, as MPI ends the process where it cannot start.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not here; `pip install mpi4py mpich`"
    if "mpi4py.MPI" in sys.modules:
        return "MPI has started in this process before"
    command = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.get_vendor()[0]); MPI.Finalize()"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"MPI did not start within {TRIAL_S:g} s"
    vendor = tried.stdout.strip()
    if tried.returncode != 0:
        errors = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
        return f"MPI does not start: {errors[-1]}"
    return "" if vendor in SPEAK_PMI else f"{vendor} starts only under its mpirun"


def server(size: int) -> str:
    """Start the process that answers so many ranks, and return where; it ends with them."""
    address = f"\0commlib-pmi-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()  # to more than the ranks: others may connect
        subprocess.Popen(
            [sys.executable, "-m", "commlib.tools.baselines.pmi", str(listener.fileno()), str(size)],
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C is for the ranks
        )
    return address


def start(address: str, rank: int, size: int) -> None:
    """Make the next MPI_Init of this process join the others."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    values = (connection.detach(), rank, size)  # MPI says its last word at the very end of the process
    os.environ.update({name: str(value) for name, value in zip(NAMES, values, strict=True)})


def started() -> None:
    """Take away what only MPI_Init had to see, and the name of the memory: whoever is killed leaves nothing behind."""
    for name in NAMES:
        os.environ.pop(name, None)
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    for path in {line.partition(SEGMENTS)[2] for line in lines if SEGMENTS in line}:
        Path(SEGMENTS + path).unlink(missing_ok=True)


def serve(listener: socket.socket, size: int) -> None:
    values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}  # all on this host
    name = f"commlib_{secrets.token_hex(8)}"  # MPI names its memory after it
    barrier = threading.Barrier(size)

    def answer(request: dict[str, str]) -> str:
        replies = {
            "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"maxes rc=0 {LIMITS}",
            "get_appnum": "appnum rc=0 appnum=0",
            "get_universe_size": f"universe_size rc=0 size={size}",
            "get_my_kvsname": f"my_kvsname rc=0 kvsname={name}",
            "put": "put_result rc=0 msg=success",
            "barrier_in": "barrier_out rc=0",
            "finalize": "finalize_ack rc=0",
            "get": "get_result rc=-1 msg=not_found value=unknown",
        }
        kind, key = request["cmd"], request.get("key", "")
        if kind == "put":
            values[key] = request["value"]
        elif kind == "barrier_in":
            barrier.wait()
        elif kind == "get" and key in values:
            return f"get_result rc=0 msg=success value={values[key]}"
        return replies.get(kind, f"{kind} rc=-1")

    def attend(connection: socket.socket) -> None:
        with suppress(OSError, threading.BrokenBarrierError), connection, connection.makefile("rw") as lines:
            for line in lines:
                request = dict(word.split("=", 1) for word in line.split())
                lines.write(f"cmd={answer(request)}\n")
                lines.flush()
        barrier.abort()  # this rank has gone: nobody waits for it

    threads: list[threading.Thread] = []
    while len(threads) < size:
        connection, _ = listener.accept()
        if peer_user(connection) != current_user():  # its name can be seen by everyone on this host
            connection.close()
            continue
        threads.append(threading.Thread(target=attend, args=(connection,)))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    listening = socket.socket(fileno=int(sys.argv[1]))
    listening.settimeout(START_S)
    with suppress(TimeoutError):
        serve(listening, int(sys.argv[2]))
