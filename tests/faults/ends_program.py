"""How a process ends: for each way two forked ranks, of which rank 0 ends in that way while rank 1 waits for it.

Ends as a Python program does, with everything that the interpreter does at its end; prints one JSON line a way.
"""

import json
import os
import secrets
import signal
import sys
import threading
import time
from functools import partial

import torch

from commlib.bootstrap.local_world import Place, meet
from commlib.bootstrap.world import Identity
from commlib.communicator import create
from commlib.errors import CommError
from commlib.native import library

DEADLINE_S = 60.0
SMALL, LARGE = 3, 300_000  # a short call keeps the interpreter's lock, a long one does not


def exception(comm):
    raise RuntimeError("a bug")


def killed(number, comm):
    os.kill(os.getpid(), number)
    time.sleep(DEADLINE_S)


def in_a_daemon(call):
    threading.Thread(target=call, daemon=True).start()
    time.sleep(0.2)


def daemon_that_explains_an_error(comm):
    begun = threading.Event()

    def explain(*ended):
        begun.set()
        while True:
            time.sleep(0.01)  # takes the interpreter's lock again, until it has ended

    library.set_recorded(lambda: (b"", ""), explain)
    in_a_daemon(lambda: comm.recv(torch.zeros(LARGE), 1))
    begun.wait()


def pending_recv_and_exception(comm):
    comm.recv(torch.zeros(SMALL), 1, async_op=True)
    time.sleep(0.2)
    raise RuntimeError("a bug")


def forked_child(comm):
    pending = comm.recv(torch.zeros(SMALL), 1, async_op=True)
    comm.all_reduce(torch.zeros(SMALL), async_op=True)
    child = os.fork()
    if child == 0:
        try:
            comm.send(torch.zeros(SMALL), 1)
        except CommError:
            sys.exit(0)
        sys.exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert not pending.is_completed()
    sys.exit(7)


# Each way and the exit code that Python gives it.
WAYS = {
    "exception": (exception, 1),
    "sigterm": (partial(killed, signal.SIGTERM), -15),
    "sigint": (partial(killed, signal.SIGINT), -2),
    "os_exit": (lambda comm: os._exit(5), 5),
    "daemon_in_a_small_call": (lambda comm: in_a_daemon(lambda: comm.recv(torch.zeros(SMALL), 1)), 0),
    "daemon_in_a_large_call": (lambda comm: in_a_daemon(lambda: comm.recv(torch.zeros(LARGE), 1)), 0),
    "daemon_in_a_collective": (lambda comm: in_a_daemon(lambda: comm.all_reduce(torch.zeros(SMALL))), 0),
    "daemon_that_explains_an_error": (daemon_that_explains_an_error, 0),
    "pending_recv_and_exception": (pending_recv_and_exception, 1),
    "forked_child": (forked_child, 7),
}


def rank(number, way, job, backend):
    signal.alarm(int(DEADLINE_S) + 5)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    world = meet("test", Place(job, "a job"), Identity(number, 2), DEADLINE_S)
    timeout_s = 0.5 if way is daemon_that_explains_an_error and number == 0 else DEADLINE_S
    comm = create(world, backend=backend, timeout_s=timeout_s, max_bytes=1 << 16)
    comm.barrier()
    if number == 0:
        return way(comm)
    try:
        comm.recv(torch.zeros(SMALL), 0)
    except CommError as error:
        print(f"{type(error).__name__} {error}", flush=True)
    os._exit(0)


def start(way, backend):
    """Fork two ranks; return None in them, and what to reap and to read in the parent."""
    job, children = secrets.token_hex(8), []
    for number in range(2):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(write, 1)
            os.dup2(write, 2)
            os.close(write)
            rank(number, way, job, backend)
            return None
        os.close(write)
        children.append((pid, read))
    return children


def reap(children):
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _ in children]
    said = [os.fdopen(read).read() for _, read in children]
    print(json.dumps([codes, said]), flush=True)


def main():
    jobs = []
    for name in sys.argv[2:]:
        jobs.append(start(WAYS[name][0], sys.argv[1]))
        if jobs[-1] is None:
            return
    for children in jobs:
        reap(children)


if __name__ == "__main__":
    main()
