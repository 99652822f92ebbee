"""A user's program: joins the ranks with commlib.init() or torch, sums over them, and notes who it was.

launched.py FOLDER HOW…: HOW is "commlib", "torch", "world" or "mpi"; with "dies", the last rank kills itself in the
first attempt.
"""

import contextlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from commlib.bootstrap import connect
from commlib.errors import CommTimeout

TIMEOUT_S = 30.0


def with_commlib(folder, dies, **options):
    import torch

    import commlib

    with commlib.init(timeout_s=TIMEOUT_S, max_bytes="1M", **options) as comm:
        if dies:
            dies(comm.rank == comm.size - 1)
        seen = {"size": comm.size, "local_rank": comm.local_rank, "device": str(comm.device)}
        note(folder, comm.rank, sum=int(comm.all_reduce(torch.tensor([comm.rank + 1]))), **seen)
        Path(folder, f"ports{comm.rank}").write_text(" ".join(open_ports()))


def with_torch(folder, dies, **where):
    import torch
    import torch.distributed as dist

    dist.init_process_group("commlib", timeout=timedelta(seconds=TIMEOUT_S), **where)
    x = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(x.clone())
    if dies:
        dies(dist.get_rank() == dist.get_world_size() - 1)
    dist.all_reduce(x)
    note(folder, dist.get_rank(), sum=int(x))
    Path(folder, f"ports{dist.get_rank()}").write_text(" ".join(open_ports()))
    dist.destroy_process_group()


def with_world(folder, dies, bootstrap="auto"):
    """Exchange bytes over two worlds, which must not meet; in one round rank 1 is late, and then torch starts."""
    world, second = (connect(bootstrap, timeout_s=TIMEOUT_S) for _ in range(2))
    for turn in range(30):
        for number, each in enumerate((world, second)):
            sent = [b"%d/%d/%d" % (number, turn, rank) * rank for rank in range(world.size)]
            assert each.all_gather(sent[world.rank], TIMEOUT_S) == sent
    second.close()
    large = b"x" * 3_000_001
    assert world.all_gather(large if world.rank == 1 else b"", TIMEOUT_S)[1] == large
    seen = {"name": world.name, "local_rank": world.local_rank, "late": ""}
    if world.rank == 1:
        time.sleep(1.0)
    try:
        world.all_gather(b"", 0.3 if world.rank == 0 else TIMEOUT_S)
    except CommTimeout as error:
        seen["late"] = str(error)
    assert world.all_gather(b"again", TIMEOUT_S) == [b"again"] * world.size
    if bootstrap == "auto" and world.name == "torchrun":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        dist.destroy_process_group()
    note(folder, world.rank, **seen)
    world.close()


def with_mpi(folder, dies):
    """Use a communicator of the program, whose messages stay apart."""
    from mpi4py import MPI

    turned = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.Get_rank())
    received = turned.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
    with_world(folder, dies, turned)
    turned.send("mine", 1 - turned.rank)
    assert received.wait() == "mine"


def raises(folder, dies):
    world = connect(timeout_s=TIMEOUT_S)
    if world.rank == 1:
        raise RuntimeError("rank 1 has a bug")
    world.all_gather(b"", 600)


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


def note(folder, rank, **seen):
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))


WAYS = {"commlib": with_commlib, "torch": with_torch, "world": with_world, "mpi": with_mpi, "raises": raises}


def main(folder, way, *how):
    WAYS[way](folder, partial(die_once, folder) if how else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
