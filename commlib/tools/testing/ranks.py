"""Ranks: rank processes with a communicator each, on which functions are called; and their own half, below."""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from commlib.bootstrap.local_world import Place, meet
from commlib.bootstrap.world import Identity, World
from commlib.errors import CommError
from commlib.tools.launch import end_with, fate

START_S = 60.0  # for all ranks to come
PRELOAD = ("torch", "commlib.tools.testing", "commlib.communicator")  # what a fork then need not import again
GRACE_S = 5.0  # for the other ranks, once one has failed
STOP_S = 2.0


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


class RankError(RuntimeError):
    """One or more ranks failed; `errors` holds their exceptions, the message every traceback."""

    def __init__(self, outcomes: dict[int, Outcome]) -> None:
        failed = {rank: outcome for rank, outcome in sorted(outcomes.items()) if outcome.trace}
        super().__init__("\n".join(f"rank {rank} {outcome.trace}" for rank, outcome in failed.items()))
        self.errors = {rank: outcome.error for rank, outcome in failed.items()}

    @property
    def cause(self) -> CommError:
        """The first error that says what is wrong with the world, for who has no use for tracebacks."""
        of_world = (error for error in self.errors.values() if isinstance(error, CommError))
        return next(of_world, CommError(str(self).strip().splitlines()[-1]))


class Handle:
    """A call under way on the live ranks."""

    def __init__(self, ranks: Ranks, pending: Iterable[int], deadline_s: float) -> None:
        self._ranks = ranks
        self.pending = set(pending)
        self.outcomes: dict[int, Outcome] = {}
        self.deadline = time.monotonic() + deadline_s

    def result(self, rank: int) -> Any:
        """Return one rank's value, or raise its own exception (RankError if it died or hangs)."""
        self._ranks.collect(self, {rank})
        outcome = self.outcomes[rank]
        if outcome.error is not None:
            raise outcome.error
        if outcome.trace:
            raise RankError({rank: outcome})
        return outcome.value

    def join(self) -> list[Any]:
        self._ranks.collect(self, set(self.pending) | set(self.outcomes))
        if any(outcome.trace for outcome in self.outcomes.values()):
            raise RankError(self.outcomes)
        return [self.outcomes[rank].value for rank in sorted(self.outcomes)]


@dataclass(eq=False)
class _Worker:
    """One rank process as its maker sees it."""

    process: Any  # ForkServerProcess
    control: Connection
    lifeline: Connection  # closes when this process ends, and ends the worker with it
    stacks_fd: int = -1

    def stack(self) -> str:
        """Return where the worker's threads are now."""
        try:
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.2)
            return Path(f"/proc/{self.process.pid}/fd/{self.stacks_fd}").read_text()
        except OSError:
            return ""


class Ranks:
    """n rank processes with a communicator each; `options` (backend=, plan=, timeout_s= …) go to `create`."""

    def __init__(
        self,
        n: int,
        *,
        deadline_s: float = 60.0,
        grace_s: float = GRACE_S,
        create: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.size, self.deadline_s, self.grace_s = n, deadline_s, grace_s
        self._create, self._options = create or create_communicator, options
        self._workers: dict[int, _Worker] = {}
        self._worlds: set[int] = set()
        self._latest: Handle | None = None

    def __enter__(self) -> Ranks:
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process of each rank that lives, in rank order."""
        return [self._workers[rank].process.pid for rank in self._alive()]

    def run(self, fn: Callable[..., Any], *args: Any, world: int | None = None) -> list[Any]:
        """Run fn(comm, *args) on every rank, or the first `world`; return their values in rank order."""
        if len(self._alive()) < self.size:
            self.restart()
        try:
            return self.start(fn, *args, world=world).join()
        except BaseException:
            self._stop(0)  # whatever the ranks are in the middle of, the next call must not meet it
            raise

    def start(self, fn: Callable[..., Any], *args: Any, world: int | None = None) -> Handle:
        """Start fn(comm, *args) on every rank that lives and return at once: for tests of faults."""
        if not self._workers:
            self.restart()
        size = world or self.size
        if size != self.size and size not in self._worlds:
            self._send(range(self.size), split, (size,), self.size).join()
            self._worlds.add(size)
        return self._send([rank for rank in self._alive() if rank < size], fn, args, size)

    def kill(self, rank: int) -> None:
        self._workers[rank].process.kill()
        self._workers[rank].process.join(STOP_S)

    def restart(self) -> None:
        self._stop(0)
        job = secrets.token_hex(16)  # by which the ranks find each other
        context = multiprocessing.get_context("forkserver")
        # pytest is the main module that every rank process would import again.
        context.set_forkserver_preload([*PRELOAD, *({"pytest"} & set(sys.modules))])
        for rank in range(self.size):
            self._workers[rank] = self._spawn(context, rank, job)
        self._latest = handle = Handle(self, self._workers, self.deadline_s)
        try:
            fds = handle.join()
        except BaseException:
            self._stop(0)
            raise
        for worker, fd in zip(self._workers.values(), fds, strict=True):
            worker.stacks_fd = fd

    def close(self) -> None:
        self._stop(STOP_S)

    def collect(self, handle: Handle, wanted: set[int]) -> None:
        """Wait until the wanted ranks have an outcome, at the latest at the handle's deadline."""
        deadline = handle.deadline
        for rank in handle.pending - set(self._workers):
            handle.outcomes[rank] = Outcome(trace="was ended before it returned")
            handle.pending.discard(rank)
        while wanted & handle.pending:
            left_s = deadline - time.monotonic()
            controls = {self._workers[rank].control: rank for rank in handle.pending}
            ready = wait(list(controls), max(left_s, 0))
            if not ready:
                self._give_up(handle)
                return
            for control in ready:
                rank = controls[control]  # type: ignore[index]  # wait() returns what it was given
                handle.pending.discard(rank)
                handle.outcomes[rank] = outcome = self._outcome(rank)
                if outcome.trace:
                    deadline = min(deadline, time.monotonic() + self.grace_s)

    def _alive(self) -> list[int]:
        return [rank for rank, worker in sorted(self._workers.items()) if worker.process.is_alive()]

    def _send(self, ranks: Iterable[int], fn: Callable[..., Any], args: tuple[Any, ...], world: int) -> Handle:
        # Plain pickle: torch's own would pass tensors through shared memory, which tests watch for leaks.
        message = pickle.dumps((fn, args, world))
        if self._latest is not None:  # its answers come first
            self.collect(self._latest, set(self._latest.pending))
        self._latest = handle = Handle(self, ranks, self.deadline_s)
        for rank in list(handle.pending):
            try:
                self._workers[rank].control.send_bytes(message)
            except OSError:
                pass  # it died; collect() finds out how
        return handle

    def _outcome(self, rank: int) -> Outcome:
        worker = self._workers[rank]
        try:
            return Outcome(*pickle.loads(worker.control.recv_bytes()))
        except (EOFError, ConnectionError):
            del self._workers[rank]
            worker.process.join(STOP_S)
            how = fate(worker.process.exitcode or 0)
            _release(worker)
            return Outcome(trace=how)

    def _give_up(self, handle: Handle) -> None:
        for rank in handle.pending:
            stack = self._workers[rank].stack()
            handle.outcomes[rank] = Outcome(trace=f"did not return in time; it was at\n{stack}")
        handle.pending.clear()
        self._stop(0)

    def _spawn(self, context: Any, rank: int, job: str) -> _Worker:
        control, of_worker = context.Pipe()
        life, lifeline = context.Pipe(duplex=False)
        # The fork server's environment is as old as the server.
        seat = Seat(rank, self.size, job, dict(os.environ), self._create, self._options)
        process = context.Process(target=work, args=(seat, of_worker, life), daemon=True)
        process.start()
        of_worker.close()
        life.close()
        return _Worker(process, control, lifeline)

    def _stop(self, patience_s: float) -> None:
        """End all workers: by closing their control pipe, then by SIGKILL."""
        self._worlds.clear()
        deadline = time.monotonic() + patience_s
        for worker in self._workers.values():
            worker.control.close()
        for worker in self._workers.values():
            worker.process.join(max(deadline - time.monotonic(), 0))
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()
            _release(worker)
        self._workers.clear()


def _release(worker: _Worker) -> None:
    worker.control.close()
    worker.lifeline.close()
    worker.process.close()


# --- the rank's half: a process that sleeps between calls


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
