"""Which calls of torch's group spare a GPU: all ranks decide alike; and receives from any rank. No GPU is needed."""

import datetime
import time
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from commlib.core.work import ThreadWork
from commlib.errors import CommTimeout, PeerLost
from commlib.torch_backend.engine import INLINE_BYTES, Engine
from commlib.torch_backend.point_to_point import HostMessages
from commlib.torch_backend.works import Done, OnStream, Works
from commlib.worker import run_now


def engine(rank: int) -> Engine:
    made = Engine(mock.Mock(device=torch.device("cpu"), rank=rank, size=2))
    made._gpu, made._index = True, 0
    return made


def asked(options: Any, **more: Any) -> Any:
    made = options()
    made.asyncOp = True
    for key, value in more.items():
        setattr(made, key, value)
    return made


def way(made: Engine, work: object) -> str:
    """Say how a call was made."""
    if isinstance(work, OnStream):
        return "as fast as it can"
    (call,) = made.comm.dispatcher.later.call_args_list  # type: ignore[attr-defined]
    return "sparing" if call.kwargs.get("spares", True) else "as usual"


@pytest.fixture(autouse=True)
def on_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)


def test_a_call_spares_the_gpu_where_it_runs_on_a_stream_of_its_own() -> None:
    for num_bytes, expected in ((INLINE_BYTES, "as fast as it can"), (INLINE_BYTES + 1, "sparing")):
        x = torch.empty(num_bytes, dtype=torch.uint8)
        for call, options in (("allreduce", dist.AllreduceOptions), ("broadcast", dist.BroadcastOptions)):
            made = engine(0)
            assert way(made, getattr(made, call)([x], asked(options))) == expected


def test_ranks_with_other_outputs_decide_alike() -> None:
    x, found = torch.empty(INLINE_BYTES * 3 // 4, dtype=torch.uint8), set()
    for rank in (0, 1):
        made, opts = engine(rank), asked(dist.GatherOptions, rootRank=0)
        found.add(way(made, made.gather([[x, x]] if rank == 0 else [], [x], opts)))
    assert len(found) == 1
    small, large, opts = x[:8], torch.cat([x, x]), asked(dist.ReduceScatterOptions)
    made, other = engine(0), engine(1)
    ways = [
        way(each, each.reduce_scatter([out], [[small, large]], opts)) for each, out in ((made, small), (other, large))
    ]
    assert ways == ["sparing"] * 2
    opts = asked(dist.AllToAllOptions)
    made = engine(0)
    assert way(made, made.alltoall([large, large], [large, large], opts)) == "as usual"
    for splits, expected in (([], "sparing"), ([1, len(large) - 1], "as usual")):
        made = engine(0)
        assert way(made, made.all_to_all_single(large, large.clone(), splits, splits, opts)) == expected


def test_a_receive_from_any_rank_has_a_deadline_and_lets_others_receive_then() -> None:
    messages = HostMessages(mock.Mock(size=2, rank=1, **{"options.timeout_s": 0.05}))
    started = time.monotonic()
    with pytest.raises(CommTimeout, match=r"rank 1: recv from any rank: no message with tag 3 within 0\.05 s"):
        messages._take_any(torch.ones(1), 3, lambda src: False)
    assert time.monotonic() - started < 1
    assert not any(lock.locked() for lock in messages._taking.values())


def test_a_call_of_one_tensor_refuses_several() -> None:
    for name in ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter"):
        lists = [[[torch.ones(1)]]] if name in ("allgather", "gather") else []
        more = [[[torch.ones(1)]]] if name in ("reduce_scatter", "scatter") else []
        with pytest.raises(ValueError, match="got 2 tensors, but takes one on each rank"):
            getattr(engine(0), name)(*lists, [torch.ones(1)] * 2, *more, mock.MagicMock())


def test_works_are_one_that_fails_with_the_first_that_failed() -> None:
    fails = ThreadWork(run_now(mock.Mock(side_effect=PeerLost("rank 1 died"))), "all_reduce")
    works, open_ = Works([Done(), fails, fails]), Works([Done(), ThreadWork(Future(), "all_reduce")])
    assert (works.is_completed(), works.is_success(), str(works.exception())) == (True, False, "rank 1 died")
    assert (open_.is_completed(), open_.is_success(), open_.exception()) == (False, False, None)
    for wait in (works.wait, works.result, works.get_future().wait):
        with pytest.raises((PeerLost, RuntimeError), match="rank 1 died"):
            wait()
    each, timeout = mock.Mock(), datetime.timedelta(seconds=3)
    Works([each]).wait(timeout)
    each.wait.assert_called_once_with(timeout)


def test_a_receive_from_any_rank_ends_when_the_communicator_does() -> None:
    comm = mock.Mock(size=2, rank=0, **{"options.timeout_s": 5.0, "check.side_effect": PeerLost("rank 1 died")})
    with pytest.raises(PeerLost, match="rank 1 died"):
        HostMessages(comm)._take_any(torch.ones(1), 0, lambda src: False)
