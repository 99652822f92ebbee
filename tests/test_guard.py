"""COMMLIB_GUARD names the first call with NaN, or with results that differ, on every rank; healthy calls pass."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

from commlib.bootstrap.world import World
from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Call
from commlib.communicator import Communicator, create
from commlib.tools.testing import Ranks
from tests.errors_and_logs import message_of
from tests.on_ranks import on_ranks

WORLD = 3
NAN = float("nan")


def guarded(mode: str, world: World, **options: Any) -> Communicator:
    """Make a rank's communicator; the mode is in the environment for so long alone."""
    with mock.patch.dict(os.environ, {"COMMLIB_GUARD": mode}):
        return create(world, timeout_s=30.0, **options)


@pytest.fixture(scope="module", params=["shm", "torch"])
def nan_ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(WORLD, backend=request.param, create=partial(guarded, "nan")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def crc_ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, backend="shm", create=partial(guarded, "crc")) as ranks:
        yield ranks


@on_ranks(fixture="nan_ranks")
def test_nan_in_an_input_is_told_on_every_rank(comm: Communicator) -> None:
    calls = {
        "all_reduce": lambda x: comm.all_reduce(x),
        "reduce": lambda x: comm.reduce(x, 0),
        "broadcast": lambda x: comm.broadcast(x, 1),
        "all_gather": lambda x: comm.all_gather_into_tensor(torch.empty(WORLD * len(x)), x),
        "reduce_scatter": lambda x: comm.reduce_scatter_tensor(torch.empty(4), x),
        "all_to_all": lambda x: comm.all_to_all_single(torch.empty(4 * WORLD), x),
        "gather": lambda x: comm.gather(x, 0),
        "all_reduce_rms_norm": lambda x: comm.all_reduce_rms_norm(x[:8].view(1, 8), None, torch.ones(8)),
        "async": lambda x: comm.all_reduce(x, async_op=True).wait(),
    }
    for name, call in calls.items():
        x = torch.zeros(4 * WORLD)
        if comm.rank == 1:
            x[5] = NAN
        text = message_of(partial(call, x))
        assert text.startswith(f"{'all_reduce' if name == 'async' else name} #")
        assert "x of rank 1 holds NaN at element 5 (COMMLIB_GUARD=nan)" in text
        assert "test_guard.py:" in text
        comm.barrier()  # the communicator goes on


@on_ranks(fixture="nan_ranks")
def test_nan_in_a_complex_number_is_told(comm: Communicator) -> None:
    x = torch.tensor([0j, complex(0, NAN)])
    assert "x of rank 0 holds NaN at element 1" in message_of(lambda: comm.broadcast(x, 0))


@on_ranks(fixture="nan_ranks")
def test_nan_that_the_call_makes_is_told_as_such(comm: Communicator) -> None:
    infinite = torch.tensor([0.0, float("inf") if comm.rank == 0 else -float("inf")])
    text = message_of(lambda: comm.all_reduce(infinite))
    assert "the result x of rank 0 holds NaN at element 1, and no rank's input did" in text


@on_ranks(fixture="nan_ranks")
def test_messages_are_looked_at_where_they_are(comm: Communicator) -> None:
    x = torch.tensor([0.0, NAN])
    if comm.rank == 0:
        assert "x of rank 0 holds NaN at element 1" in message_of(lambda: comm.send(x, 1))
    if comm.rank == 1:
        assert "the result x of rank 1 holds NaN at element 1" in message_of(lambda: comm.recv(x, 0))


def every_call(comm: Communicator) -> None:
    for name, spec in COLLECTIVES.items():
        if name in ("barrier", "send_recv"):
            continue
        call = Call(comm.rank, comm.size, spec.whole(24), torch.float32, root=1 if spec.rooted else 0)
        elements = spec.shapes(call)
        x, out = torch.ones(elements[0]), torch.full((elements[1],), NAN)  # nobody reads what is written
        if name == "broadcast" and comm.rank == call.root:
            out.fill_(1.0)
        for _ in range(2):
            spec.invoke(comm, x, out, call)
    comm.send_recv(torch.ones(3), (comm.rank + 1) % WORLD, torch.full((3,), NAN), (comm.rank - 1) % WORLD)
    comm.all_reduce(torch.ones(5), out=torch.full((5,), NAN))
    comm.all_reduce(torch.ones(5, dtype=torch.int32))
    comm.all_reduce(torch.ones(4)[::2][:1])  # one element of any stride is contiguous
    comm.broadcast(torch.full((6,), 0xFF, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), 1)
    comm.all_reduce(torch.full((4,), float(comm.rank)), out=torch.empty(4))
    assert comm.all_gather_object(comm.rank) == list(range(WORLD))
    comm.barrier()


def test_calls_without_a_fault_pass(nan_ranks: Ranks, crc_ranks: Ranks) -> None:
    nan_ranks.run(every_call)
    crc_ranks.run(every_call)


@on_ranks(fixture="crc_ranks")
def test_results_that_differ_are_told_with_their_checksums(comm: Communicator) -> None:
    """The first of rank 2's two results has one bit more, as from a broken link."""
    raw, x = comm.dispatcher.calls, torch.ones(2, 8)

    class Broken:
        def all_reduce_rms_norm(self, *given: Any) -> Any:
            result = raw.all_reduce_rms_norm(*given)
            if comm.rank == 2:
                given[5].view(torch.int32)[0, 1] ^= 1
            return result

        all_gather = raw.all_gather

    outs = {"out": torch.empty(2, 8), "residual_out": torch.empty(2, 8)}
    with mock.patch.object(comm.dispatcher, "calls", Broken()):
        text = message_of(lambda: comm.all_reduce_rms_norm(x, torch.ones(2, 8), torch.ones(8), **outs))
    comm.all_reduce(torch.ones(4))
    assert "the ranks' results differ; their checksums: rank 0 " in text
    assert "test_guard.py:" in text
