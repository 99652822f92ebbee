"""Python stacks of a rank: on SIGURG, which others ignore, a thread writes its stack into a memfd.

Python's faulthandler does it, in the signal's handler: so also a rank answers whose interpreter is held by native code,
and no thread is needed for it. Each thread writes its stack itself: another thread's may change while it is read, which
has ended processes. Even so it may be half changed where the thread runs Python: csrc/record/answer.h has the process
outlive that. A rank that is stopped does not answer.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commlib import env
from commlib.debug.record import descriptors, records_of

NAME = "commlib.stacks.{}."  # of the process that writes them: a reader has them open, too
ANSWER_S = 0.4
# Python 3.10 counts references to the frames that it shows: of one that is on its way out, this frees it twice.
CAN_ANSWER = sys.version_info >= (3, 11)
_POLL_S = 0.005
_TGKILL = 234 if platform.machine() == "x86_64" else 131  # the kernel's call of this name, which older libraries lack
_OURS = str(Path(__file__).parents[1]) + os.sep
_FRAME = re.compile(r'  File "(.*)", line (\S+) in (.*)')


@dataclass(frozen=True)
class Frame:
    file: str
    line: str
    function: str

    def __str__(self) -> str:
        """Return 'train.py:212 in step'."""
        return f"{Path(self.file).name}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Stack:
    """A thread's Python frames, the innermost first; `thread` by the kernel's number."""

    thread: int
    frames: tuple[Frame, ...]

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the program itself: neither of commlib nor of an installed package."""
        others = [frame for frame in self.frames if not frame.file.startswith(_OURS)]
        program = [one for one in others if not one.file.startswith("<") and not _is_library(one.file)]
        return next(iter(program or others), None)

    @property
    def is_ours(self) -> bool:
        """Whether only commlib runs in the thread, as in one that makes asynchronous calls."""
        return all(frame.file.startswith(_OURS) or _is_pythons(frame.file) for frame in self.frames)

    def __str__(self) -> str:
        return str(self.place)


def _is_library(file: str) -> bool:
    return "-packages/" in file or _is_pythons(file)


def _is_pythons(file: str) -> bool:
    return "/lib/python" in file and "-packages/" not in file


_LISTENING: list[int] = []  # this process, behind those from which it was forked


def listen(guard: Callable[[], None]) -> None:
    """Answer from now on, unless the program uses the signal for something else; keep call sites if that is wanted.

    `guard` has the process outlive a fault in the handler that there is by then.
    """
    if _LISTENING[-1:] == [os.getpid()]:
        return
    ours = bool(_LISTENING)
    _LISTENING.append(os.getpid())
    for record in records_of(os.getpid()) if env.CALL_SITES.get() else ():
        record.header.wants_sites = 1
    if not CAN_ANSWER or signal.getsignal(signal.SIGURG) is not signal.SIG_DFL or (_handles(os.getpid()) and not ours):
        return
    parents = descriptors(os.getpid(), NAME.partition("{")[0])
    fd = os.memfd_create(NAME.format(os.getpid()))
    os.fchmod(fd, 0o600)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)  # the process that asks empties it first
    faulthandler.register(signal.SIGURG, file=fd, all_threads=False, chain=False)
    guard()
    for place in parents:
        os.close(int(place.name))


def ask(threads: Mapping[int, Iterable[int]]) -> dict[int, list[Stack]]:
    """Return the stacks of threads of processes that answer in time; that of a process's main thread is the first."""
    answers: dict[int, list[Stack]] = {pid: [] for pid in threads}
    asked = [_asked(pid, [pid, *({*also} - {pid})], answers[pid]) for pid, also in threads.items()]
    while asked := [one for one in asked if next(one, "over") != "over"]:
        time.sleep(_POLL_S)
    return {pid: stacks for pid, stacks in answers.items() if stacks}


def _asked(pid: int, threads: Iterable[int], stacks: list[Stack]) -> Generator[None]:
    """Have threads of a process write their stacks, one after the other; yield to wait for that."""
    places = descriptors(pid, NAME.format(pid))
    with suppress(OSError):
        if not places or not _handles(pid):
            return
        fd = os.open(places[-1], os.O_RDWR | os.O_CLOEXEC)
        try:
            yield from _lock(fd)
            deadline = time.monotonic() + ANSWER_S
            for thread in threads:
                os.truncate(fd, 0)
                if _is_off("SigBlk", pid, thread) and _send(pid, thread):
                    yield from _answer(pid, thread, deadline)
                    text = os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")
                    if text:
                        stacks.append(Stack(thread, tuple(Frame(*match) for match in _FRAME.findall(text))))
        finally:
            os.close(fd)


def _lock(fd: int) -> Generator[None]:
    """Wait while somebody else asks the same process, who may get no answer."""
    deadline = time.monotonic() + 2 * ANSWER_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            yield


def _answer(pid: int, thread: int, deadline: float) -> Generator[None]:
    """Wait while the thread has not come to its handler, or is in it: then the kernel keeps the signal from it."""
    over = 0  # between taking the signal and keeping it from the thread, the kernel says neither
    while over < 2:
        if time.monotonic() > deadline:
            raise TimeoutError
        yield
        over = over + 1 if _is_off("SigPnd", pid, thread) and _is_off("SigBlk", pid, thread) else 0


def _send(pid: int, thread: int) -> bool:
    return bool(ctypes.CDLL(None).syscall(ctypes.c_long(_TGKILL), pid, thread, int(signal.SIGURG)) == 0)


def _handles(pid: int) -> bool:
    return not _is_off("SigCgt", pid, pid)


def _is_off(mask: str, pid: int, thread: int) -> bool:
    """Whether the signal is not in a mask of a thread; one that has ended has none."""
    try:
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text(encoding="utf-8")
    except OSError:
        return True
    return not int(status.partition(f"{mask}:")[2].split()[0], 16) >> signal.SIGURG - 1 & 1
