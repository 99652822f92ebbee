"""Stacks: a thread answers as a whole or not at all, and what the program does with the signal or descriptors stays."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commlib.debug.stacks import Frame, Stack, ask

WAIT_S = 30.0
ALONE = 'commlib.init(backend="shm", bootstrap="single", max_bytes=0)'
TAKES_LONG = """
import ctypes, os, signal, time
from commlib.debug.stacks import NAME
fd = os.memfd_create(NAME.format(os.getpid()))
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def answer(signal):
    os.write(fd, b'  File "a.py", line 1 in inner\\n')
    time.sleep(0.1)
    os.write(fd, b'  File "a.py", line 2 in outer\\n')
ctypes.CDLL(None).signal(signal.SIGURG, answer)
"""
READS_NO_MEMORY = """
import ctypes, os, signal, time
from commlib.native import library
c = ctypes.CDLL(None)
c.signal(signal.SIGURG, ctypes.cast(c.strlen, ctypes.c_void_p))  # of what lies at address 23, the signal's number
library.guard_answers()
library.guard_answers()
for _ in range(3):
    os.kill(os.getpid(), signal.SIGURG)
caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt:"))
assert not int(caught.split()[1], 16) >> signal.SIGSEGV - 1 & 1
"""
USES_THE_SIGNAL = f"""
import faulthandler, os, signal, time, commlib
memory = os.memfd_create("memory")
faulthandler.register(signal.SIGURG, file=memory)
{ALONE}
os.kill(os.getpid(), signal.SIGURG)
assert os.fstat(memory).st_size
"""
CLOSES_DESCRIPTORS = f"""
import os, commlib
first = {ALONE}
child = {{fork}}
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.closerange(3, 100)
files = [os.memfd_create("mine") for _ in range(20)]
second = {ALONE}
second.barrier()
assert [os.write(fd, b"mine") for fd in files] == [4] * 20
assert [os.fstat(fd).st_size for fd in files] == [4] * 20
second.close()
"""


@contextmanager
def program(python: Path, text: str) -> Iterator[int]:
    """Run a program, which then sleeps."""
    command = [str(python), "-c", f"{text}\nprint(os.getpid(), flush=True)\ntime.sleep({WAIT_S})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_an_answer_that_takes_long_is_read_as_a_whole(quick_python: Path) -> None:
    with program(quick_python, TAKES_LONG) as pid:
        whole = Stack(pid, (Frame("a.py", "1", "inner"), Frame("a.py", "2", "outer")))
        assert ask({pid: ()}) == {pid: [whole]}


@pytest.mark.parametrize("text", [READS_NO_MEMORY, USES_THE_SIGNAL], ids=["reads no memory", "uses the signal"])
def test_a_program_that_cannot_answer_goes_on_as_it_was(quick_python: Path, text: str) -> None:
    with program(quick_python, text) as pid:
        assert ask({pid: ()}) == {}


@pytest.mark.parametrize("fork", ["0", "os.fork()"], ids=["here", "in a forked child"])
def test_files_that_a_program_opens_after_it_has_closed_everything_stay(quick_python: Path, fork: str) -> None:
    command = [str(quick_python), "-c", CLOSES_DESCRIPTORS.format(fork=fork)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ran.returncode == 0, ran.stderr
