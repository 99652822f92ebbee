"""What a rank does in the bootstrap tests: each step exchanges in one way and notes what came of it."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from commlib.bootstrap import connect
from commlib.errors import CommError


def exchange_over(*worlds):
    for round_ in range(30):
        for number, world in enumerate(worlds):
            parts = world.all_gather(b"%d/%d/%d" % (number, round_, world.rank) * world.rank, 20)
            assert parts == [b"%d/%d/%d" % (number, round_, rank) * rank for rank in range(world.size)]


def exchange(world, notes):
    second = connect(timeout_s=20)  # two communicators in one process must not meet
    exchange_over(world, second)
    second.close()
    assert world.broadcast(b"x" * 3_000_001 if world.rank == 1 else b"", 1, 20) == b"x" * 3_000_001
    notes["exchange"] = True


def late(world, notes):
    if world.rank == 1:
        time.sleep(1.0)
    started = time.monotonic()
    try:
        world.all_gather(b"", 0.3 if world.rank == 0 else 20)
    except CommError as error:
        notes["late"] = f"{type(error).__name__}: {error}"
        notes["late_s"] = time.monotonic() - started
    assert world.all_gather(b"again", 20) == [b"again"] * world.size


def dead(world, notes):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    try:
        world.all_gather(b"", 20)
    except CommError as error:
        notes["dead"] = f"{type(error).__name__}: {error}"
        notes["dead_s"] = time.monotonic() - started


def left(world, notes):
    if world.rank == 0:
        try:
            world.all_gather(b"", 20)
        except CommError as error:
            notes["left"] = f"{type(error).__name__}: {error}"


def torch_after(world, notes):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gathered = [None] * world.size
    dist.all_gather_object(gathered, world.rank)
    notes["torch_after"] = gathered
    dist.destroy_process_group()


def torch_group(world, notes):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    pair = dist.new_group(list(range(world.size))[::-1])
    ours = connect(pair, timeout_s=20)
    exchange_over(ours)
    late(ours, notes)
    notes["torch_group"] = [ours.name, ours.rank == dist.get_rank(pair), ours.group is pair]
    ours.close()
    dist.destroy_process_group()


def mpi_communicator(world, notes):
    from mpi4py import MPI

    turned = MPI.COMM_WORLD.Split(0, -world.rank)
    received = turned.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)  # must not swallow our messages
    ours = connect(turned, timeout_s=20)
    exchange_over(ours)
    turned.send("mine", 1 - turned.rank)
    notes["mpi_communicator"] = [ours.rank, received.wait()]
    ours.close()


def uncaught(world, notes):
    if world.rank == 1:
        raise RuntimeError("rank 1 has a bug")
    world.all_gather(b"", 600)


def main(report_dir, steps):
    world = connect(timeout_s=20)
    notes = {"name": world.name, "rank": world.rank, "size": world.size, "local_rank": world.local_rank}
    for step in steps:
        globals()[step](world, notes)
    (report_dir / f"{world.rank}.json").write_text(json.dumps(notes))
    world.close()
    world.close()


def be(environ, output, report_dir, steps):
    """Be a rank in this process, with its environment and output."""
    os.environ.clear()
    os.environ.update(environ)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    main(report_dir, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
