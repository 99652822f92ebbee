"""torch.distributed as its users call it: what bench measures beside our algorithms."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from commlib.collectives.all_to_all import split_table
from commlib.errors import Unsupported
from commlib.timing import Candidate, Empty, Prepare, Run

if TYPE_CHECKING:
    from commlib.collectives import Call, Collective
    from commlib.communicator import Communicator

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # gloo has no average: users divide
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}

# torch 2.13 gave these new names and deprecates the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def start(comm: Communicator) -> None:
    """Make torch's default process group of the same ranks; every rank calls it."""
    if dist.is_initialized():
        return
    store, port = None, 0
    address = "127.0.0.1" if comm.backend in ("shm", "nccl") else socket.gethostbyname(socket.gethostname())
    if comm.rank == 0:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        port = store.port
    address, port = comm.broadcast_object((address, port), 0)
    if store is None:
        store = TCPStore(address, port, is_master=False)
    engine = "nccl" if comm.device.type == "cuda" else "gloo"
    dist.init_process_group(engine, store=store, rank=comm.rank, world_size=comm.size)


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def candidate(collective: Collective, in_place: bool, empty: Empty) -> Candidate:
    """Return the candidate that makes this call through torch.distributed."""
    return Candidate("torch", _refusing(collective, CALLS.get(collective.name)), in_place, empty)


def _refusing(collective: Collective, make: Prepare | None) -> Prepare:
    """Say what torch.distributed lacks before it is called: a failed call leaves its peers waiting."""
    refuses = next(a.refuses for a in collective.algorithms if a.backend == "torch")

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        reason = refuses(call.dtype, call.redop, call.size)
        if make is None:
            reason = f"torch.distributed with {dist.get_backend()} has no {collective.name}"
        if reason or make is None:
            raise Unsupported(reason or "")
        return make(x, out, call)

    return prepare


def _then(*steps: Run) -> Run:
    def run() -> None:
        for step in steps:
            step()

    return run


def _reduced(out: torch.Tensor, call: Call, reduce: Run, before: tuple[Run, ...] = ()) -> Run:
    """Add the copy that an engine without an out-of-place form needs, and the division of an average."""
    divide = partial(out.div_, call.size) if out.is_floating_point() else _integer_division(out, call)
    after = (divide,) if call.redop == "avg" else ()
    return _then(*before, reduce, *after) if before or after else reduce


def _integer_division(out: torch.Tensor, call: Call) -> Run:
    return partial(out.div_, call.size, rounding_mode="trunc")


def _copied(x: torch.Tensor, out: torch.Tensor) -> tuple[Run, ...]:
    return () if out is x else (partial(out.copy_, x),)


def _all_reduce(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    return _reduced(out, call, partial(dist.all_reduce, out, _OPS[call.redop]), _copied(x, out))


def _reduce(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    return _reduced(out, call, partial(dist.reduce, out, call.root, _OPS[call.redop]), _copied(x, out))


def _reduce_scatter(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    return _reduced(out, call, partial(_reduce_scatter_single, out, x, _OPS[call.redop]))


def _all_to_all(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    if out is x:
        raise Unsupported("torch.distributed with {dist.get_backend()} has no in-place all_to_all")
    return partial(dist.all_to_all_single, out, x)


def _all_to_allv(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    table = split_table(call)
    return partial(dist.all_to_all_single, out, x, [row[call.rank] for row in table], table[call.rank])


def _gather(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    parts = list(out.chunk(call.size)) if call.rank == call.root else None
    return partial(dist.gather, x, parts, call.root)


def _scatter(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    parts = list(x.chunk(call.size)) if call.rank == call.root else None
    return partial(dist.scatter, out, parts, call.root)


def _send_recv(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    after, before = (call.rank + 1) % call.size, (call.rank - 1) % call.size
    steps = [partial(dist.send, x, after), partial(dist.recv, out, before)]
    return _then(*(steps if call.rank % 2 == 0 else reversed(steps)))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)  # moving data needs no element type, and gloo lacks some


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, Any], Run]] = {
    "all_reduce": _all_reduce,
    "all_gather": lambda x, out, call: partial(_all_gather, _bytes(out), _bytes(x)),
    "reduce_scatter": _reduce_scatter,
    "broadcast": lambda x, out, call: partial(dist.broadcast, _bytes(out), call.root),
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "all_to_allv": _all_to_allv,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _send_recv,
    "barrier": lambda x, out, call: dist.barrier,
}
