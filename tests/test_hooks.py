"""Hooks: the program is told once of the error that ends a communicator, and of calls that take unusually long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from commlib.communicator import Communicator
from commlib.errors import Closed, CommError, CommTimeout
from commlib.hooks import KNOWN, Hooks, SlowCall
from commlib.testing import Ranks


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=1.0, max_bytes=1 << 20) as ranks:
        yield ranks


def fail(comm: Communicator, kind: str) -> tuple[list[str], list[str]]:
    told: list[BaseException] = []
    said: list[BaseException] = []

    def broken(error: CommError) -> None:
        raise ValueError("a hook that fails")

    comm.on_error(broken)
    comm.on_error(told.append)
    comm.all_reduce(torch.ones(3))
    for _ in range(2):
        try:
            if kind == "late" and comm.rank == 1:
                time.sleep(2.0)
            if kind == "async":
                comm.all_reduce(torch.ones(3 + comm.rank), async_op=True).wait()
            else:
                comm.all_reduce(torch.ones(3 + comm.rank * (kind == "size")))
        except CommError as error:
            said.append(error)
    try:
        comm.check()
    except CommError as error:
        said.append(error)
    assert told[0] is said[0]
    return [type(error).__name__ for error in told], [type(error).__name__ for error in said]


@pytest.mark.parametrize(("kind", "error"), [("size", CommError), ("async", CommError), ("late", CommTimeout)])
def test_the_error_that_ends_it_is_told_once(three: Ranks, kind: str, error: type[CommError]) -> None:
    for told, said in three.run(fail, kind):
        assert told == [error.__name__]
        assert said == [error.__name__] * 3
    three.restart()


def close_when_told(comm: Communicator) -> list[str]:
    said = []

    def close(error: CommError) -> None:
        try:
            comm.close()
        except Exception as failed:
            said.append(str(failed))

    comm.on_error(close)
    with pytest.raises(CommError):
        comm.all_reduce(torch.ones(3 + comm.rank), async_op=True).wait()
    with pytest.raises(Closed):
        comm.barrier()
    return said


def test_a_hook_may_close_the_communicator_also_in_an_asynchronous_call(three: Ranks) -> None:
    assert three.run(close_when_told) == [[]] * 3
    three.restart()


def mistake(comm: Communicator) -> int:
    told: list[CommError] = []
    comm.on_error(told.append)
    with pytest.raises(TypeError):
        comm.all_reduce("no tensor")  # type: ignore[call-overload]
    comm.all_reduce(torch.ones(3))
    comm.check()
    return len(told)


def test_a_mistake_of_the_caller_is_not_told(three: Ranks) -> None:
    assert three.run(mistake) == [0, 0, 0]


def slow(comm: Communicator) -> list[SlowCall]:
    told: list[SlowCall] = []
    comm.on_slow(told.append, factor=20.0)
    for step in range(40):
        if step == 30 and comm.rank == 2:
            time.sleep(0.5)
        comm.all_reduce(torch.ones(8))
    return told


def test_a_slow_call_is_told_with_the_rank_that_was_late(three: Ranks) -> None:
    results = three.run(slow)
    for rank in (0, 1):
        call = max(results[rank], key=lambda call: call.seconds)
        assert (call.op, call.num_bytes, call.dtype, call.late) == ("all_reduce", 32, "float32", 2)
        assert call.seconds > 20 * call.usual_s
        assert call.waited_s[2] > call.seconds / 2
        assert str(call).startswith("all_reduce of 32 bytes (float32) took ")
        assert str(call).endswith("of it waiting for rank 2")
    three.restart()


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


class OnGpu(SimpleNamespace):
    """In the place of a communicator."""


def test_on_a_gpu_a_slow_call_is_told_when_a_later_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Clock())
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])

    def all_reduce(x: torch.Tensor, took_ms: float) -> None:
        NOW[0] += took_ms

    comm = OnGpu(device=torch.device("cuda"), size=2, rank=0, _backend=SimpleNamespace(recorded_as=0))
    comm.calls, comm.told = SimpleNamespace(all_reduce=all_reduce), []
    hooks = Hooks(comm.calls, comm)  # type: ignore[arg-type]
    hooks.on_slow(comm.told.append, factor=20.0)
    for _ in range(KNOWN):
        hooks.all_reduce(torch.ones(8), 10.0)
    capturing[0] = True
    hooks.all_reduce(torch.ones(8), 900.0)
    capturing[0] = False
    hooks.all_reduce(torch.ones(8), 500.0)
    NOW[0] += 1.0
    assert comm.told == []
    hooks.all_reduce(torch.ones(8), 10.0)
    (call,) = comm.told
    assert (call.op, call.num_bytes, call.seconds, call.usual_s, call.late) == ("all_reduce", 32, 0.5, 0.01, None)


def refused(comm: Communicator) -> None:
    with pytest.raises(ValueError, match=r"factor is 1, but must be above 1"):
        comm.on_slow(print, 1)
    with pytest.raises(TypeError, match=r"callback is of type int, but must be a function"):
        comm.on_error(3)  # type: ignore[arg-type]


def test_what_is_no_hook_is_refused(three: Ranks) -> None:
    three.run(refused)


def untouched(comm: Communicator) -> str:
    return type(comm._calls).__name__


def test_without_hooks_the_calls_are_the_native_ones() -> None:
    with Ranks(2, backend="shm", max_bytes=1 << 20) as ranks:
        assert ranks.run(untouched) == ["Calls", "Calls"]
