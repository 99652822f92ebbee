"""A `python` and a `commlib` that start in no time: forks of a process that has imported torch, which takes seconds.

For tests of what commands do, not of how they start. A shim with these names, first on PATH or in place of
sys.executable, sends its arguments, environment, folder and open files to the server, and passes signals on; the
server forks, and the fork runs what Python would have run.
"""

import atexit
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
MOST_FILES = 200
SHIM = """#!{python} -IS
import array, json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
files = [n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{{n}}")]
files.remove(link.fileno())
words = [*{words!r}, *sys.argv[1:]]
seat = dict(words=words, files=files, environ=dict(os.environ), folder=os.getcwd(), python=sys.argv[0])
seat["cores"] = sorted(os.sched_getaffinity(0))
body = json.dumps(seat).encode()
link.sendmsg([len(body).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
link.sendall(body)
for number in {signals!r}:
    signal.signal(number, lambda number, frame: link.sendall(bytes([number])))
code = int.from_bytes(link.recv(8), "little", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def install(folder: Path, address: str) -> Path:
    """Write the shims into a folder; return the one named python."""
    for name, words in (("commlib", ["-m", "commlib"]), ("python", [])):
        numbers = [int(number) for number in PASSED_ON]
        text = SHIM.format(python=sys.executable, address=address, words=words, signals=numbers)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder / "python"


def serve(listener: socket.socket, life: Connection) -> None:
    """Fork for every shim that connects, until the other end of `life` closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while life not in select.select([listener, life], [], [])[0]:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(link)
        link.close()


def attend(link: socket.socket) -> None:
    """Run one program in a fork: pass signals on to it, end it with its shim, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(link, 8, MOST_FILES)
    with link.makefile("rb") as stream:
        seat = json.loads(stream.read(int.from_bytes(head, "little")))
    child = os.fork()
    if child == 0:
        link.close()
        be(seat, files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    while ended not in select.select([ended, link], [], [])[0]:
        numbers = link.recv(1)
        os.kill(child, numbers[0] if numbers else signal.SIGKILL)
        if not numbers:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    link.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "little", signed=True))
    os._exit(0)


def be(seat: dict[str, Any], files: list[int]) -> None:
    """Become the program: its files, environment and folder, and then what Python does with its arguments."""
    above = max([*files, *seat["files"]]) + 1
    for at, file in enumerate(files):
        os.dup2(file, above + at)
    os.closerange(0, above)
    for at, number in enumerate(seat["files"]):
        os.dup2(above + at, number)
        os.close(above + at)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(seat["folder"])
    os.sched_setaffinity(0, seat["cores"])
    os.environ.clear()
    os.environ.update(seat["environ"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(seat["cores"]))))  # as torch does when it starts
    alone()
    sys.executable = str(Path(seat["python"]).with_name("python"))
    os._exit(finished(seat["words"]))


def alone() -> None:
    """Forget what multiprocessing knows of the server: it may have no children, and its helpers' pipes are closed."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    forkserver._forkserver.__init__()  # type: ignore[misc, attr-defined]
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]


def finished(words: list[str]) -> int:
    """Run a program to the end of its process; return the exit code that Python would give."""
    code = 0
    try:
        execute(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads as Python does
    atexit._run_exitfuncs()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()  # as mpi4py does when Python ends: its memory has a name until then
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def execute(words: list[str]) -> None:
    kind, *rest = words
    path = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    first = str(Path(kind).resolve().parent) if not kind.startswith("-") else os.getcwd()  # noqa: PTH109
    sys.path[:0] = [first, *path]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")
