"""The rank's half of Ranks: a process with a communicator that sleeps between calls."""

from __future__ import annotations

import faulthandler
import functools
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from commlib.bootstrap.local_world import Place, meet
from commlib.bootstrap.world import Identity, World
from commlib.tools.launch import end_with

START_S = 60.0  # for all ranks to come


class Outcome(NamedTuple):
    """What one call gave on one rank: a value, or a trace and the exception where it could be sent."""

    value: Any = None
    trace: str = ""
    error: BaseException | None = None


class Seat(NamedTuple):
    """What a worker needs to know to become a rank."""

    rank: int
    size: int
    job: str
    environ: dict[str, str]
    create: Callable[..., Any]
    options: dict[str, Any]


def create_communicator(world: World, **options: Any) -> Any:
    """Make a rank's communicator, with deadlines that suit tests."""
    from commlib.communicator import create

    return create(world, **{"timeout_s": 30.0, **options})


def work(seat: Seat, control: Connection, life: Connection) -> None:
    """Be a rank: sleep in recv() between calls, end when the control pipe closes."""
    end_with(life.fileno(), os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the test, which ends us
    os.environ.clear()
    os.environ.update(seat.environ)
    stacks_fd = os.memfd_create("stacks")
    faulthandler.register(signal.SIGUSR1, file=stacks_fd)
    comms: dict[int, Any] = {}

    def open_communicator() -> int:
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // seat.size))
        who = Identity(seat.rank, seat.size, seat.rank)
        world = meet("ranks", Place(seat.job, "these ranks", of_one_job=True), who, START_S)
        comms[seat.size] = seat.create(world, **seat.options)
        return stacks_fd

    control.send_bytes(_reply(open_communicator))
    while True:
        try:
            message = control.recv_bytes()
        except (EOFError, OSError):
            break
        control.send_bytes(_reply(functools.partial(_call, comms, message)))
    for comm in comms.values():
        comm.close()


def _call(comms: dict[int, Any], message: bytes) -> Any:
    fn, args, world = pickle.loads(message)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return fn(comms if fn is split else comms[world], *args)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _reply(do: Callable[[], Any]) -> bytes:
    """Do it and pickle what came of it, whatever that was."""
    try:
        return pickle.dumps(Outcome(do()))
    except BaseException as error:
        trace = f"failed:\n{traceback.format_exc()}"
        try:
            sendable = pickle.dumps(Outcome(None, trace, error))
            pickle.loads(sendable)  # an exception with its own __init__ may pickle and not come back
        except Exception:
            return pickle.dumps(Outcome(None, trace))
        return sendable


def split(comms: dict[int, Any], world: int) -> None:
    """Make the communicator of the first `world` ranks; the others take part and drop theirs."""
    comm = comms[max(comms)]
    part = comm.split(int(comm.rank >= world), comm.rank)
    if comm.rank < world:
        comms[world] = part
    else:
        part.close()
