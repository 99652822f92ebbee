"""Processes of the bootstrap tests, also of another user: each runs one function and sends back what came of it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commlib.tools.testing.ranks import PRELOAD

NOBODY = 65534
MPIEXEC = Path(sys.executable).with_name("mpiexec")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")


class Running:
    """A function under way in another process."""

    def __init__(self, function, *arguments, user=None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD, "pytest"])
        self._answer, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(theirs, user, function, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def result(self, timeout_s=20.0):
        """Return what the function returned, or 'Type: text' of what it raised; None if it was killed."""
        assert self._answer.poll(timeout_s), "it did not end"
        try:
            return self._answer.recv()
        except EOFError:
            return None

    def signal(self, signum):
        os.kill(self.process.pid, signum)

    def end(self):
        self.process.kill()
        self.process.join()


def _run(answer, user, function, arguments):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    answer.send(caught(function, *arguments))


@contextlib.contextmanager
def no_segment_of_mpich():
    """MPICH leaves its segment in /dev/shm whenever a rank aborts; other tests look there for ours."""
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    yield
    for segment in set(Path("/dev/shm").glob("mpich_shm_*")) - before:
        segment.unlink(missing_ok=True)


def wait_until(true, limit_s=5.0):
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def caught(function, *arguments):
    """Call a function; return its result, or 'Type: text' of what it raised."""
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def in_threads(*calls):
    """Make calls at the same time, ranks of this process; return their results, errors as text."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [call.result(20) for call in [pool.submit(caught, *call) for call in calls]]
