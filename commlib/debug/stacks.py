"""Python stacks of a rank: it writes them into a memfd when it is sent SIGURG, which is ignored by whoever does not.

Python's faulthandler does it, in the signal's handler: so also a rank answers whose interpreter is held by native code,
and no thread is needed for it. A rank that is stopped does not answer.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from commlib import env
from commlib.debug.record import descriptors, records_of

NAME = "commlib.stacks.{}."  # of the process that writes them: whoever reads them has them open, too
ANSWER_S = 0.4
_POLL_S = 0.005
_OURS = str(Path(__file__).parents[1]) + os.sep
_KNOWN = (  # in files of these folders a rank is in …
    ("torch/utils/data/", "a dataloader"),
    ("torch/_inductor/", "torch.compile"),
    ("torch/_dynamo/", "torch.compile"),
    ("triton/", "Triton's compiler"),
    ("commlib/jit.py", "the compiler of commlib's kernels"),
    ("torch/serialization.py", "torch.save or torch.load"),
    ("torch/distributed/checkpoint/", "a checkpoint"),
    ("safetensors/", "safetensors"),
    ("<frozen importlib", "an import"),
)
_FRAME = re.compile(r'  File "(.*)", line (\S+) in (.*)')


@dataclass(frozen=True)
class Frame:
    """A call in a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        """Return 'train.py:212 in step'."""
        return f"{Path(self.file).name}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Stack:
    """A thread's Python frames, the innermost first; `thread` as a Call has it."""

    thread: int
    frames: tuple[Frame, ...]
    collects: bool = False  # it is in Python's garbage collection

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the program itself: neither of commlib nor of an installed package."""
        own = [frame for frame in self.frames if not frame.file.startswith((_OURS, "<")) and _is_own(frame.file)]
        return next(iter(own or [frame for frame in self.frames if not frame.file.startswith(_OURS)]), None)

    @property
    def activity(self) -> str:
        """What it is known to be in: 'a dataloader'; empty: nothing in particular."""
        if self.collects:
            return "garbage collection"
        for frame in self.frames:
            for part, words in _KNOWN:
                if part in frame.file:
                    return words
        return ""

    def __str__(self) -> str:
        """Return where it is: 'train.py:212 in load, in a dataloader'."""
        return f"{self.place}" + (f", in {self.activity}" if self.activity else "")


def _is_own(file: str) -> bool:
    return "site-packages" not in file and "/lib/python" not in file


_LISTENING: dict[str, int] = {}  # the process and its descriptor


def listen() -> None:
    """Answer from now on, unless the program uses the signal for something else; keep call sites if that is wanted."""
    if _LISTENING.get("pid") == os.getpid():
        return
    _LISTENING["pid"] = os.getpid()
    for record in records_of(os.getpid()):
        if env.CALL_SITES.get():
            record.keep_sites(True)
        record.close()
    if signal.getsignal(signal.SIGURG) is not signal.SIG_DFL:
        return
    fd = os.memfd_create(NAME.format(os.getpid()))
    os.fchmod(fd, 0o600)
    faulthandler.register(signal.SIGURG, file=fd, all_threads=True, chain=False)
    if old := _LISTENING.get("fd"):  # the parent's, since a fork
        os.close(old)
    _LISTENING["fd"] = fd


def ask(pids: list[int]) -> dict[int, list[Stack]]:
    """Return the stacks of those processes that answer in time."""
    asked = {pid: found for pid in pids if (found := _ask_one(pid)) is not None}
    answers: dict[int, list[Stack]] = {}
    deadline, before = time.monotonic() + ANSWER_S, dict.fromkeys(asked, -1)
    while len(answers) < len(asked) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for pid, (fd, start) in asked.items():
            size = os.fstat(fd).st_size
            if pid not in answers and size > start and size == before[pid]:  # it has stopped growing
                answers[pid] = parsed(os.pread(fd, size - start, start).decode(errors="replace"))
            before[pid] = size
    for fd, _ in asked.values():
        os.close(fd)
    return answers


def _ask_one(pid: int) -> tuple[int, int] | None:
    """Send the signal to a process that has a handler for it; return where the answer will be."""
    try:
        found = descriptors(pid, NAME.format(pid))
        if not found or not _handles(pid):
            return None
        fd = os.open(found[-1], os.O_RDONLY | os.O_CLOEXEC)
        start = os.fstat(fd).st_size
        os.kill(pid, signal.SIGURG)
    except OSError:
        return None
    return fd, start


def _handles(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> signal.SIGURG - 1 & 1)


def parsed(text: str) -> list[Stack]:
    """Read what faulthandler writes."""
    found = []
    for part in re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.MULTILINE):
        head, _, rest = part.partition("\n")
        number = re.search(r"0x([0-9a-f]+)", head)
        if number and "Stack" not in head:
            frames = tuple(Frame(*match) for match in _FRAME.findall(rest))
            found.append(Stack(int(number[1], 16) >> 6 & 0xFFFFFFFF, frames, "Garbage-collecting" in rest))
    return found
