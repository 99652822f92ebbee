"""A user's program: joins the ranks with commlib.init() or torch, sums over them, and notes who it was.

launched.py FOLDER HOW…: HOW is "commlib" or "torch"; with "dies", the last rank kills itself in the first attempt.
"""

import contextlib
import json
import os
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch

TIMEOUT_S = 30.0


def with_commlib(folder, dies, **options):
    import commlib

    with commlib.init(timeout_s=TIMEOUT_S, max_bytes="1M", **options) as comm:
        if dies:
            dies(comm.rank == comm.size - 1)
        note(folder, comm.rank, comm.all_reduce(torch.tensor([comm.rank + 1])), comm)
        Path(folder, f"ports{comm.rank}").write_text(" ".join(open_ports()))


def with_torch(folder, dies, **where):
    import torch.distributed as dist

    dist.init_process_group("commlib", timeout=timedelta(seconds=TIMEOUT_S), **where)
    x = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(x.clone())
    if dies:
        dies(dist.get_rank() == dist.get_world_size() - 1)
    dist.all_reduce(x)
    note(folder, dist.get_rank(), x, None)
    Path(folder, f"ports{dist.get_rank()}").write_text(" ".join(open_ports()))
    dist.destroy_process_group()


def open_ports():
    """Return the TCP and UDP sockets that this process holds, as the kernel lists them."""
    held = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this folder
            held.add(str(descriptor.readlink()))
    tables = [Path("/proc/net", kind).read_text().splitlines()[1:] for kind in ("tcp", "tcp6", "udp", "udp6")]
    lines = [line.split() for table in tables for line in table]
    return [line[1] for line in lines if f"socket:[{line[9]}]" in held]


def die_once(folder, last):
    """End the last rank of the first attempt."""
    if last and not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note(folder, rank, total, comm):
    seen = {"sum": int(total)}
    if comm is not None:
        seen |= {"size": comm.size, "local_rank": comm.local_rank, "device": str(comm.device)}
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))


def spawned(number, folder, environ):
    """A process of torch.multiprocessing.spawn, whose program sets torch's variables."""
    os.environ.update(environ, RANK=str(number), WORLD_SIZE="2")
    with_commlib(folder, None)


def main(folder, *how):
    function = with_torch if "torch" in how else with_commlib
    function(folder, partial(die_once, folder) if "dies" in how else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
