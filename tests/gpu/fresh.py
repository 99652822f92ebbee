"""Communicators that a test may break: over the world of the live ranks, which go on with their own afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from commlib import native
from commlib.bootstrap.world import World
from commlib.collectives import rows
from commlib.communicator import Communicator, create
from commlib.errors import Unsupported
from commlib.plan import Plan, table


class Borrowed(World):
    """The world of a live communicator, left open by those made over it."""

    name = "borrowed"

    def __init__(self, world: World) -> None:
        self._world = world
        self.rank, self.size, self.local_rank, self.infos = world.rank, world.size, world.local_rank, world.infos

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        return self._world.all_gather(data, timeout_s)


def fresh(comm: Communicator, *, patience_s: float = 30.0, **limits: Any) -> Communicator:
    """Make one more communicator of all ranks; `patience_s` is the deadline of its calls, not of its start."""
    open_nccl = native.library.open_nccl

    def impatient(*args: Any) -> Any:
        *most, _, user_bytes, multiprocessors, max_sms, first = args
        return open_nccl(*most, patience_s, user_bytes, multiprocessors, max_sms, first)

    with mock.patch.object(native.library, "open_nccl", impatient):
        limits = {"timeout_s": 30.0, "max_bytes": 1 << 20} | limits
        return create(Borrowed(comm.world), backend="nccl", **limits)


def leave(made: list[Communicator]) -> None:
    """Close together: after a capture only a call in no graph tells the library that all is done."""
    for part in made:
        part.barrier()
        part.close()


@contextmanager
def as_if_nccl_were_new() -> Iterator[None]:
    """Communicators made inside take the symmetric kernels of any NCCL for safe; the call itself refuses an old one."""
    with mock.patch.object(rows, "refuses_old_nccl", lambda *call: None):
        table.rows_text.cache_clear()
        yield
    table.rows_text.cache_clear()


def recognised(comm: Communicator, x: Tensor, out: Tensor | None = None) -> bool:
    """Whether a call takes them for symmetric: an NCCL that is too old for symmetric kernels refuses it then."""
    before = comm.plan
    comm.use(Plan.only({"all_reduce": "nccl_symmetric"}, base=before))
    try:
        comm.all_reduce(x, out=out)
        return False
    except Unsupported as error:
        assert "2.30.7" in str(error)
        return True
    finally:
        comm.use(before)
