"""Start a command on n ranks of this machine: what `commlib run` and `commlib bench -n` call."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from commlib import env
from commlib.bootstrap.mpi import LAUNCHERS
from commlib.tools.debug.page import explained_below, ranks_below

GRACE_S = 5.0  # between the signal that asks a rank to end and SIGKILL
LINE_BYTES = 1 << 16  # a line this long is passed on before its end
PIPE_BYTES = 1 << 20  # what a pipe holds at most (fs.pipe-max-size), unless root raised it
F_SETSIG = 10  # Linux; fcntl does not name it
UNREAD = 128 + signal.SIGPIPE  # whoever reads the output has gone (`| head`): no error to speak of
OUTER = (
    "TORCHELASTIC_",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    *(name for pair in LAUNCHERS.values() for name in pair),
)
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Waits = dict[int, tuple[int, Callable[[], None]]]  # by descriptor: events of poll(), and what to do at one


def launch(
    command: list[str],
    n: int,
    *,
    prefix: bool = True,
    bind: str = "none",
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> int:
    """Run `command` on n ranks and return the exit code of the first that failed, 128 + signal if killed."""
    sys.stdout.flush()
    out, err = _Sink(stdout or sys.stdout.buffer), _Sink(stderr or sys.stderr.buffer)
    sinks = (out, out if os.path.sameopenfile(out.fd, err.fd) else err)  # so that `2>&1` does not mix their lines
    with _forwarded_signals() as signals, contextlib.closing(_Job(n, sinks, prefix)) as job:
        try:
            job.spawn(command, bind)
        except OSError as error:
            job.say(f"cannot start {command[0]!r}: {error.strerror}")
            job.give_up(127 if error.errno == errno.ENOENT else 126)
        return job.run(signals)


def end_with(pipe_fd: int, owner: int) -> None:
    """Have the kernel kill process `owner` (-pid: its group) when the other end of the pipe closes.

    Unlike PR_SET_PDEATHSIG this reaches the children of children, and is not tied to the thread that started
    them. What is to be killed must hold `pipe_fd` open, and nothing may ever be written to the pipe.
    """
    fcntl.fcntl(pipe_fd, fcntl.F_SETOWN, owner)
    fcntl.fcntl(pipe_fd, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe_fd, fcntl.F_SETFL, fcntl.fcntl(pipe_fd, fcntl.F_GETFL) | os.O_ASYNC)
    hung_up = select.poll()
    hung_up.register(pipe_fd, 0)  # POLLHUP comes unasked
    if hung_up.poll(0):  # it closed before there was anyone to tell
        os.kill(owner, signal.SIGKILL)


def fate(code: int) -> str:
    """Say how a process ended; a signal is a negative code, as subprocess has it."""
    if code >= 0:
        return f"exited with code {code}"
    named = -code in set(signal.Signals)  # real-time signals have no names
    return f"was killed by {signal.Signals(-code).name if named else f'signal {-code}'}"


class _Sink:
    """An output of ours; what its reader does not take yet is held here, as nothing of ours may wait for a reader."""

    def __init__(self, target: BinaryIO) -> None:
        self.fd = target.fileno()
        self.held = bytearray()
        self.room = select.poll()
        self.room.register(self.fd, select.POLLOUT)

    def write(self, data: bytes) -> None:
        self.held += data
        self.flush()

    def flush(self) -> None:
        """Write as much as the reader takes: where there is room, it is room for PIPE_BUF bytes at least."""
        with contextlib.suppress(BrokenPipeError):  # `| head` has seen enough; the ranks go on
            while self.held and self.room.poll(0):
                del self.held[: os.write(self.fd, self.held[: select.PIPE_BUF])]
            return
        self.held.clear()


class _Stream:
    """One output of one rank; whole lines of it go to `sink`, each behind its rank."""

    def __init__(self, source: BinaryIO, sink: _Sink, rank: int) -> None:
        self.source, self.sink, self.label = source, sink, b"[%d] " % rank
        self.ended = False
        self.held = b""
        os.set_blocking(source.fileno(), False)

    @property
    def wanted(self) -> bool:
        """Say whether a piece may come, and the reader of those before it has them."""
        return not self.ended and not self.sink.held

    def pump(self) -> None:
        """Pass on one piece, so that a flood keeps nobody else waiting."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self.source.fileno(), LINE_BYTES)
            *lines, self.held = (self.held + piece).split(b"\n")
            if len(self.held) >= LINE_BYTES:
                lines, self.held = [*lines, self.held], b""
            self._write(lines)
            self.ended = not piece

    def finish(self) -> None:
        """Pass on what the pipe holds and the last line, ended or not; a child that left the group may write on."""
        for _ in range(PIPE_BYTES // LINE_BYTES):
            self.pump()
        self._write([self.held] if self.held else [])
        self.source.close()

    def _write(self, lines: list[bytes]) -> None:
        self.sink.write(b"".join(self.label + line + b"\n" for line in lines))


@dataclass(eq=False)
class _Rank:
    """One child, the leader of its own session and process group."""

    number: int
    process: subprocess.Popen[bytes]
    pidfd: int
    lifeline: int
    streams: list[_Stream]

    def signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signum)

    def reap(self) -> int:
        """Return how the child ended, a signal as a negative number; what it left in its group ends with it."""
        # Before wait(): a zombie keeps its number, and its group's, from being given to another process.
        self.signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.pidfd)
        os.close(self.lifeline)
        for stream in self.streams:
            stream.finish()
        return self.process.returncode


class _Job:
    """n children, what they write, and how they end."""

    def __init__(self, size: int, sinks: tuple[_Sink, _Sink], prefix: bool) -> None:
        self.size, self.sinks, self.prefix = size, sinks, prefix
        self.alive: dict[int, _Rank] = {}
        self.code = 0
        self.kill_at: float | None = None
        self.asked = False  # to end, by a signal
        self.name = secrets.token_hex(16)

    def spawn(self, command: list[str], bind: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]  # for torch.distributed; nothing holds it until a rank does
        cores = sorted(os.sched_getaffinity(0))
        try:
            for rank in range(self.size):
                if bind == "core":  # this thread's affinity: the child has it from its first instruction
                    os.sched_setaffinity(0, {cores[rank % len(cores)]})
                self._spawn_one(command, rank, port)
        finally:
            os.sched_setaffinity(0, cores)

    def run(self, signals: socket.socket) -> int:
        """Pass output and signals on until every rank has ended and its output is read; return the job's exit code.

        After a signal has asked for the end, what nobody reads within the grace is dropped.
        """
        while self.alive or self._unread():
            waits = self._waits(signals)
            ready = select.poll()
            for fd, (event, _) in waits.items():
                ready.register(fd, event)
            left_s = None if self.kill_at is None else max(self.kill_at - time.monotonic(), 0)
            happened = dict(ready.poll(left_s and left_s * 1000))
            for fd, (_, action) in waits.items():
                if fd in happened:
                    action()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._end_all(signal.SIGKILL)
        return self.code

    def give_up(self, code: int) -> None:
        self.code = code
        self._end_all(signal.SIGKILL)

    def say(self, text: str) -> None:
        self.sinks[1].write(f"commlib: {text}\n".encode())

    def close(self) -> None:
        for rank in list(self.alive.values()):
            rank.reap()
        self.alive.clear()

    def _spawn_one(self, command: list[str], number: int, port: int) -> None:
        output = subprocess.PIPE if self.prefix else None
        held, lifeline = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                # A terminal would stop a rank that reads it from its own session; a pipe is rank 0's.
                stdin=None if number == 0 and not os.isatty(0) else subprocess.DEVNULL,
                stdout=output or self.sinks[0].fd,
                stderr=output or self.sinks[1].fd,
                env=self._environment(number, port),
                pass_fds=(held,),
                start_new_session=True,
            )
            end_with(held, -process.pid)
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(held)
        streams = [
            _Stream(source, sink, number)  # type: ignore[arg-type]  # a buffered pipe is a BinaryIO
            for source, sink in zip((process.stdout, process.stderr), self.sinks, strict=True)
            if source is not None
        ]
        self.alive[number] = _Rank(number, process, os.pidfd_open(process.pid), lifeline, streams)

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        """Return a rank's environment: this job, and torchrun's variables for torch.distributed."""
        size = self.size
        # An outer torchrun's agent serves no store for these ranks, and an outer mpiexec or srun did not number them.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
        binaries = str(Path(sys.executable).parent)  # where `python` and `commlib` are ours
        rest = environ.get("PATH", os.defpath).split(os.pathsep)
        environ["PATH"] = os.pathsep.join([binaries, *filter(binaries.__ne__, rest)])
        environ.setdefault("PYTHONUNBUFFERED", "1")  # lines come when they are written, also from a rank that dies
        environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // size)))
        numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        job = {env.JOB.name: self.name, "MASTER_ADDR": "127.0.0.1"}
        return {**environ, **job, **{name: str(value) for name, value in numbers.items()}}

    def _unread(self) -> bool:
        """Say whether output waits for its reader, and we for both."""
        return any(sink.held for sink in self.sinks) and not (self.asked and self.kill_at is None)

    def _waits(self, signals: socket.socket) -> _Waits:
        """Return what is waited for, and what is then done: of a rank its output before its end."""
        waits: _Waits = {signals.fileno(): (select.POLLIN, partial(self._interrupted, signals))}
        waits |= {sink.fd: (select.POLLOUT, sink.flush) for sink in self.sinks if sink.held}
        for rank in self.alive.values():
            waits |= {s.source.fileno(): (select.POLLIN, s.pump) for s in rank.streams if s.wanted}
            waits[rank.pidfd] = select.POLLIN, partial(self._ended, rank)
        return waits

    def _ended(self, rank: _Rank) -> None:
        code = rank.reap()
        del self.alive[rank.number]
        how = fate(code)
        if code and not self.code:
            self.code = code if code > 0 else 128 - code
            if self.code != UNREAD:
                self.say(f"rank {rank.number} {how}" + ("; ending the other ranks" if self.alive else ""))
                for line in explained_below(os.getpid()):
                    self.say(line)
            self._end_all(signal.SIGTERM)

    def _interrupted(self, signals: socket.socket) -> None:
        signum = signals.recv(1)[0]
        if self.kill_at is not None:  # asked twice
            signum = signal.SIGKILL
        elif signum != signal.SIGINT:  # at which Python shows where a program is
            self.say(f"{signal.Signals(signum).name} ends the ranks")
            for line in ranks_below(os.getpid()):
                self.say(line)
        self.asked, self.code = True, self.code or 128 + signum
        self._end_all(signum)

    def _end_all(self, signum: int) -> None:
        self.kill_at = None if signum == signal.SIGKILL else time.monotonic() + GRACE_S
        for rank in self.alive.values():
            rank.signal(signum)


@contextlib.contextmanager
def _forwarded_signals() -> Iterator[socket.socket]:
    """Yield a socket that receives the number of every signal that is to be passed on."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        if threading.current_thread() is not threading.main_thread():
            yield reader  # only the main thread gets signals
            return
        # What our parent had ignored (nohup, a background job's Ctrl-C) stays ignored.
        handled = [signum for signum in FORWARDED if signal.getsignal(signum) is not signal.SIG_IGN]
        before = {signum: signal.signal(signum, lambda *_: None) for signum in handled}
        wakeup = signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(wakeup)
            for signum, handler in before.items():
                signal.signal(signum, handler)
