"""torch.distributed as its users call it: what bench measures next to our algorithms."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from commlib.collectives import Call, Collective
from commlib.collectives.all_to_all import split_table
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.redops import REDOPS
from commlib.tools.baselines.peer import START_S, Peer, averaged, in_turn, neighbours
from commlib.tools.timing import Prepare, Run

# torch's reductions by name; gloo has no average: users divide.
_OPS = {name: getattr(dist.ReduceOp, name.upper(), None) for name in REDOPS}
_OPS |= {"prod": dist.ReduceOp.PRODUCT, "avg": dist.ReduceOp.SUM}

# torch 2.13 gave these new names and deprecates the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Torch(Peer):
    """torch.distributed with gloo, or NCCL on GPUs."""

    name = "torch"
    title = "torch.distributed"
    labels = ("torch",)

    def lacks(self, comm: Communicator) -> str:
        return "" if dist.is_available() else "this torch has no torch.distributed; install one that has"

    def join(self, comm: Communicator) -> None:
        join_default_group(comm)

    def prepare(self, collective: Collective, in_place: bool) -> Prepare:
        """Return the call of torch.distributed; what it lacks is said before, as a failed call leaves peers waiting."""
        make = CALLS.get(collective.name)
        refuses = next(a.refuses for a in collective.algorithms if a.backend == "torch")

        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            if make is None:
                raise Unsupported(f"torch.distributed with {dist.get_backend()} has no {collective.name}")
            if reason := refuses(call.dtype, call.redop, call.size):
                raise Unsupported(reason)
            return averaged(out, call, make(x, out, call))

        return prepare

    def stop(self) -> None:
        leave_default_group()


make = Torch


def join_default_group(comm: Communicator) -> None:
    """Make torch's default process group of the same ranks, if nobody has yet; every rank calls it."""
    if dist.is_initialized():
        return
    store, port, wait = None, 0, timedelta(seconds=START_S)
    address = "127.0.0.1" if comm.backend in ("shm", "nccl") else socket.gethostbyname(socket.gethostname())
    if comm.rank == 0:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=wait)
        port = store.port
    address, port = comm.broadcast_object((address, port), 0)
    if store is None:
        store = TCPStore(address, port, is_master=False, timeout=wait)
    gpu = comm.device.type == "cuda"
    options: dict[str, Any] = {"device_id": comm.device} if gpu else {}
    engine = "nccl" if gpu else "gloo"
    dist.init_process_group(engine, store=store, rank=comm.rank, world_size=comm.size, timeout=wait, **options)


def leave_default_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _after_copy(x: torch.Tensor, out: torch.Tensor, run: Run) -> Run:
    """Add the copy that an engine without an out-of-place form needs."""
    return run if out is x else in_turn(partial(out.copy_, x), run)


def _all_to_all(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    if out is x:
        raise Unsupported(f"torch.distributed with {dist.get_backend()} has no in-place all_to_all")
    return partial(dist.all_to_all_single, out, x)


def _all_to_allv(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    table = split_table(call)
    return partial(dist.all_to_all_single, out, x, [row[call.rank] for row in table], table[call.rank])


def _parts(whole: torch.Tensor, call: Call) -> list[torch.Tensor] | None:
    return list(whole.chunk(call.size)) if call.rank == call.root else None


def _send_recv(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    after, before = neighbours(call)
    both = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, out, before)]

    def run() -> None:
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return run


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)  # moving data needs no element type, and gloo lacks some


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, Any], Run]] = {
    "all_reduce": lambda x, out, call: _after_copy(x, out, partial(dist.all_reduce, out, _OPS[call.redop])),
    "all_gather": lambda x, out, call: partial(_all_gather, _bytes(out), _bytes(x)),
    "reduce_scatter": lambda x, out, call: partial(_reduce_scatter, out, x, _OPS[call.redop]),
    "broadcast": lambda x, out, call: partial(dist.broadcast, _bytes(out), call.root),
    "reduce": lambda x, out, call: _after_copy(x, out, partial(dist.reduce, out, call.root, _OPS[call.redop])),
    "all_to_all": _all_to_all,
    "all_to_allv": _all_to_allv,
    "gather": lambda x, out, call: partial(dist.gather, x, _parts(out, call), call.root),
    "scatter": lambda x, out, call: partial(dist.scatter, out, _parts(x, call), call.root),
    "send_recv": _send_recv,
    "barrier": lambda x, out, call: dist.barrier,
}
