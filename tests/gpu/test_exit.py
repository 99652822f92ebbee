"""A process that ends with an open communicator has the exit code that Python gives it, whatever ends it."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading, time
import torch
import commlib

comm = commlib.init()
x = torch.ones(1000, device=comm.device)
comm.all_reduce(x)
comm.broadcast(torch.ones(6 << 20, device=comm.device), 0)
torch.cuda.synchronize()
comm.barrier()
way = sys.argv[1]
if way == "exception":
    raise RuntimeError("on purpose")
if way == "sys.exit":
    sys.exit(3)
if way == "os._exit":
    os._exit(3)
if way in ("SIGTERM", "SIGINT"):
    os.kill(os.getpid(), getattr(signal, way))
    time.sleep(30)
if way == "thread":
    def wait_for_ever():
        while True:
            comm.barrier()
            torch.cuda.synchronize()
    threading.Thread(target=wait_for_ever, daemon=True).start()
    time.sleep(0.5)
    sys.exit(3)
if way == "fork":
    pid = os.fork()
    if pid == 0:
        os._exit(3)  # as multiprocessing does: NCCL's own exit handler fails in a forked child
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    comm.all_reduce(x)
    comm.close()
    sys.exit(code)
"""
CODES = {"exception": 1, "sys.exit": 3, "os._exit": 3, "thread": 3, "fork": 3, "end": 0}
CODES |= {"SIGTERM": -signal.SIGTERM, "SIGINT": -signal.SIGINT}
JOB = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29613", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize("way", CODES)
def test_a_process_ends_with_the_exit_code_of_python(way: str) -> None:
    seats = [{**os.environ, **JOB, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    command = [sys.executable, "-c", PROGRAM, way]
    for rank in [subprocess.Popen(command, env=seat, stderr=subprocess.PIPE, text=True) for seat in seats]:
        _, errors = rank.communicate(timeout=100)
        assert "terminate called" not in errors, errors
        assert rank.returncode == CODES[way], errors
