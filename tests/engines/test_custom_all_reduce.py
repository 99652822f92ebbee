"""The class that vLLM and SGLang call, on gloo groups: what it serves, and what it leaves to the engine."""

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from commlib.backends.base import Backend
from commlib.communicator import Communicator
from commlib.engines.custom_all_reduce import CustomAllReduce
from commlib.tools.testing import Ranks
from tests.errors_and_logs import logged
from tests.on_ranks import on_ranks
from tests.torch_backend.cases import start

WORLD = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(WORLD, backend="shm", timeout_s=30.0) as live:
        live.run(start, str(tmp_path_factory.mktemp("gloo") / "store"), "gloo")
        yield live


def calls() -> CustomAllReduce:
    return CustomAllReduce(dist.group.WORLD, "cpu", name="test")


@on_ranks(fixture="ranks")
def test_sums_are_right_and_out_of_place(comm: Communicator) -> None:
    engine = calls()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        for shape in ((1,), (3, 5), (7, 4096)):
            x = (torch.arange(torch.Size(shape).numel()) % 50).view(shape).to(dtype) + comm.rank
            before = x.clone()
            assert engine.should_custom_ar(x)
            y = engine.custom_all_reduce(x)
            assert y is not None and torch.equal(x, before)
            assert torch.equal(y, (before - comm.rank) * WORLD + 1)
    engine.close()
    assert engine.disabled and not engine.should_custom_ar(x) and engine.custom_all_reduce(x) is None


@on_ranks(fixture="ranks")
def test_rows_are_gathered_and_scattered_along_the_first_dimension(comm: Communicator) -> None:
    engine = calls()
    x = torch.arange(12.0).view(4, 3) + 100 * comm.rank
    whole, part = engine.custom_all_gather(x), engine.custom_reduce_scatter(x)
    everyone = [torch.arange(12.0).view(4, 3) + 100 * rank for rank in range(WORLD)]
    assert whole is not None and torch.equal(whole, torch.cat(everyone))
    assert part is not None and torch.equal(part, sum(everyone)[2 * comm.rank : 2 * comm.rank + 2])
    assert engine.custom_reduce_scatter(torch.ones(3, 2)) is None
    engine.close()


@on_ranks(fixture="ranks")
def test_norms_are_fused_and_leave_their_inputs(comm: Communicator) -> None:
    engine = calls()
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(comm.rank)).to(dtype)
        residual, weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(9)).to(dtype), torch.ones(64)
        whole = engine.custom_all_reduce(x)
        assert whole is not None
        total = whole + residual
        for given, wanted in ((residual, total), (None, whole)):
            before = x.clone()
            fused = engine.fused_allreduce_rmsnorm(x, given, weight, 1e-5)
            assert fused is not None and torch.equal(fused[1], wanted) and torch.equal(x, before)
            reference = torch.nn.functional.rms_norm(wanted.double(), (64,), weight.double(), 1e-5)
            torch.testing.assert_close(fused[0].double(), reference, rtol=1e-2, atol=1e-2)
    assert engine.fused_allreduce_rmsnorm(x, residual.float(), weight, 1e-5) is None
    assert engine.fused_allreduce_rmsnorm(x.to(torch.int32), None, weight, 1e-5) is None
    engine.close()


@on_ranks(fixture="ranks")
def test_what_is_not_served_is_left_to_the_engine(comm: Communicator) -> None:
    engine = calls()
    for x in (torch.ones(4, 6)[:, ::2], torch.ones(4, dtype=torch.bool), torch.ones(4, device="meta")):
        assert not engine.should_custom_ar(x) and engine.custom_all_reduce(x) is None
    number, weight = torch.ones(()), torch.ones(8, dtype=torch.float16)
    assert engine.custom_all_gather(number) is engine.custom_reduce_scatter(number) is None
    assert engine.fused_allreduce_rmsnorm(torch.ones(2, 8), None, weight, 1e-5) is None
    assert engine.custom_all_reduce(torch.ones(1)) is not None  # the ranks still agree
    engine.close()


@on_ranks(fixture="ranks")
def test_a_group_of_one_rank_needs_no_calls(comm: Communicator) -> None:
    groups = [dist.new_group([rank]) for rank in range(WORLD)]
    engine = CustomAllReduce(groups[comm.rank], "cpu")
    assert engine.disabled and engine.custom_all_reduce(torch.ones(2)) is None


@on_ranks(fixture="ranks")
def test_the_log_counts_calls(comm: Communicator) -> None:
    with logged(logging.INFO) as messages:
        engine = calls()
        for x in (torch.ones(2), torch.ones(2, dtype=torch.bool)) * 5:
            engine.should_custom_ar(x)
        engine.close()
    expected = ["test: 2 ranks on commlib, backend shm, cpu", "test: 5 of 10 all_reduce calls on commlib"]
    assert comm.rank or all(text in "\n".join(messages) for text in expected), messages


@on_ranks(fixture="ranks")
def test_ranks_on_several_hosts_or_without_symmetric_memory_stay_on_the_engine_s_path(comm: Communicator) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backend, "has_arena", False)
        assert calls().disabled
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMMLIB_HOST", f"host{comm.rank}")
        return calls().disabled
