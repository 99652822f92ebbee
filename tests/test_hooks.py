"""Hooks: the program is told once of the error that ends a communicator, and of calls that take unusually long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from commlib.communicator import Communicator
from commlib.core.hooks import KNOWN, Hooks, SlowCall
from commlib.errors import Closed, CommError, CommTimeout
from commlib.tools.testing import Ranks
from tests.on_ranks import on_ranks


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=1.0, max_bytes=1 << 20) as ranks:
        yield ranks


@pytest.fixture
def fresh(three: Ranks) -> Iterator[Ranks]:
    """Ranks that the test breaks, or leaves hooks with."""
    yield three
    three.restart()


@pytest.mark.parametrize(("kind", "error"), [("size", CommError), ("async", CommError), ("late", CommTimeout)])
@on_ranks(fixture="fresh")
def test_the_error_that_ends_it_is_told_once(comm: Communicator, kind: str, error: type[CommError]) -> None:
    told: list[BaseException] = []
    ended: list[BaseException] = []

    def broken(error: CommError) -> None:
        raise ValueError("a hook that fails")

    def call() -> None:
        if kind == "late" and comm.rank == 1 and not ended:
            time.sleep(2.0)
        if kind == "async":
            comm.all_reduce(torch.ones(3 + comm.rank), async_op=True).wait()
        else:
            comm.all_reduce(torch.ones(3 + comm.rank * (kind == "size")))

    comm.on_error(broken)
    comm.on_error(told.append)
    comm.all_reduce(torch.ones(3))
    for each in (call, call, comm.check):
        with pytest.raises(CommError) as raised:
            each()
        ended.append(raised.value)
    assert told == ended[:1]
    assert [type(each) for each in ended] == [error] * 3


@on_ranks(fixture="fresh")
def test_a_hook_may_close_the_communicator_also_in_an_asynchronous_call(comm: Communicator) -> None:
    failed = []

    def close(error: CommError) -> None:
        try:
            comm.close()
        except Exception as other:
            failed.append(other)

    comm.on_error(close)
    with pytest.raises(CommError):
        comm.all_reduce(torch.ones(3 + comm.rank), async_op=True).wait()
    with pytest.raises(Closed):
        comm.barrier()
    assert failed == []


@on_ranks(fixture="three")
def test_a_mistake_of_the_caller_is_not_told(comm: Communicator) -> None:
    told: list[CommError] = []
    comm.on_error(told.append)
    with pytest.raises(TypeError):
        comm.all_reduce("no tensor")  # type: ignore[call-overload]
    comm.all_reduce(torch.ones(3))
    comm.check()
    assert told == []
    hooks = Hooks(SimpleNamespace(recorded_as=0, check=lambda: None))  # type: ignore[arg-type]
    hooks.on_error(told.append)
    with pytest.raises(CommError, match="this call only"):
        hooks.watch(mock.Mock(side_effect=CommError("this call only")))
    assert told == []  # the communicator goes on


def test_calls_behind_an_asynchronous_one_are_observed(comm: Communicator) -> None:
    seen: list[str] = []
    observer = SimpleNamespace(observe=lambda name, run, *arguments: seen.append(name) or run(*arguments))
    comm.dispatcher.observe(observer)
    comm.all_reduce(torch.ones(1), async_op=True).wait()
    for _ in range(2):
        comm.broadcast(torch.ones(1), 0)
    assert seen == ["all_reduce", "broadcast", "broadcast"]


@on_ranks(fixture="fresh")
def test_a_slow_call_is_told_with_the_rank_that_was_late(comm: Communicator) -> None:
    told: list[SlowCall] = []
    comm.on_slow(told.append, factor=20.0)
    for step in range(40):
        if step == 30 and comm.rank == 2:
            time.sleep(0.5)
        comm.all_reduce(torch.ones(8))
    if comm.rank != 2:
        call = max(told, key=lambda call: call.seconds)
        assert (call.op, call.num_bytes, call.dtype, call.late) == ("all_reduce", 32, "float32", 2)
        assert call.seconds > 20 * call.usual_s
        assert call.waited_s[2] > call.seconds / 2
        assert str(call).startswith("all_reduce of 32 bytes (float32) took ")
        assert str(call).endswith("of it waiting for rank 2")


class Clock:
    """In the place of an event."""

    now = 0.0

    def record(self) -> None:
        self.now = NOW[0]

    def query(self) -> bool:
        return self.now < NOW[0]

    def elapsed_time(self, end: Clock) -> float:
        return end.now - self.now


NOW = [0.0]  # ms


def test_on_a_gpu_a_slow_call_is_told_when_a_later_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Clock())
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])

    def broadcast(x: torch.Tensor, took_ms: float) -> None:
        NOW[0] += took_ms

    backend = SimpleNamespace(device=torch.device("cuda"), size=2, rank=0, recorded_as=0)
    backend.told = []
    hooks = Hooks(backend)  # type: ignore[arg-type]
    hooks.on_slow(backend.told.append, factor=20.0)
    for _ in range(KNOWN):
        hooks.observe("broadcast", broadcast, torch.ones(8), 10.0)
    capturing[0] = True
    hooks.observe("broadcast", broadcast, torch.ones(8), 900.0)
    capturing[0] = False
    hooks.observe("broadcast", broadcast, torch.ones(8), 500.0)
    NOW[0] += 1.0
    assert backend.told == []
    hooks.observe("broadcast", broadcast, torch.ones(8), 10.0)
    (call,) = backend.told
    assert (call.op, call.num_bytes, call.seconds, call.usual_s, call.late) == ("broadcast", 32, 0.5, 0.01, None)


def test_the_late_rank_took_more_than_half_of_what_is_beyond_the_usual_time() -> None:
    calls = [SlowCall("broadcast", 8, "float32", 1.0, 0.6, {1: 0.1, 2: waited}) for waited in (0.3, 0.15)]
    assert [call.late for call in calls] == [2, None]


def test_a_call_that_takes_less_than_a_millisecond_more_is_not_slow() -> None:
    hooks, told = Hooks(SimpleNamespace(recorded_as=0)), []  # type: ignore[arg-type]
    hooks.on_slow(told.append, 2.0)
    for seconds in [1e-5] * KNOWN + [5e-4, 2e-3]:
        hooks._look(("all_reduce", 4, "float32"), seconds, {})
    assert [call.seconds for call in told] == [2e-3]


@on_ranks(fixture="three")
def test_what_is_no_hook_is_refused(comm: Communicator) -> None:
    with pytest.raises(ValueError, match=r"factor is 1, but must be above 1"):
        comm.on_slow(print, 1)
    with pytest.raises(TypeError, match=r"callback is of type int, but must be a function"):
        comm.on_error(3)  # type: ignore[arg-type]
