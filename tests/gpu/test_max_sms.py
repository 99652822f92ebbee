"""max_sms: no kernel of a call has more blocks than that, and every value is right with as few as one."""

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib import env
from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.debug.record import records_of
from commlib.errors import CommError
from commlib.plan import Plan
from commlib.plan.plan import HEAD
from tests.epilogues import INT8
from tests.gpu.fresh import fresh
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import KERNELS, Steady, capture, checked, first, pinned
from tests.gpu.test_bench_phases import profiled
from tests.limited import Limited
from tests.on_ranks import on_ranks

COUNTS = (1, 5003, 1 << 20)


@pytest.mark.parametrize(("of_all", "of_call"), [*product((1, 3, 16), (0,)), *product((0,), (1, 3, 16))])
@on_every_rank
def test_every_kernel_is_right_on_few_multiprocessors(comm: Communicator, of_all: int, of_call: int) -> str:
    """Of a communicator, or of calls with a limit of their own beside others without; eager and in a graph."""
    found = []
    with fresh(comm, max_sms=of_all) as own:
        for name, algorithm in KERNELS:
            with pinned(own, name, algorithm):
                for count in COUNTS:
                    few, usual = Steady(Limited(own, of_call), name, count), Steady(own, name, count)
                    found += [checked(1, call.run, call) for call in (few, usual, few)]
                found.append(checked(3, capture(few, usual).replay, few, usual))
    return first(found)


@pytest.mark.parametrize("max_sms", [1, 6])
@on_every_rank
def test_a_norm_and_an_epilogue_have_the_same_bits_on_few(comm: Communicator, max_sms: int) -> list[str]:
    """Behind a sum, by each algorithm."""
    rows, weight = torch.arange(96 * 256.0, device=comm.device).view(96, 256) % 7, torch.ones(256, device=comm.device)
    found = []
    for algorithm in COLLECTIVES["all_reduce_rms_norm"].rows("nccl"):
        with pinned(comm, "all_reduce_rms_norm", algorithm):
            few, usual = (
                (*comm.all_reduce_rms_norm(rows.clone(), None, weight, max_sms=most), *INT8(comm, rows, max_sms=most))
                for most in (max_sms, 0)
            )
            if any(bool((a.float() != b.float()).any()) for a, b in zip(few, usual, strict=True)):
                found.append(algorithm)
    return found


def last_algorithm(comm: Communicator) -> str:
    """What ran, as the record of this process has it."""
    slots = [slot for record in records_of(os.getpid()) for slot in record.slots()]
    slot = next(slot for slot in slots if slot.id == comm.resources.recorded_as)
    return slot.calls[slot.entered].algorithm


@on_ranks(2, "nccl_ranks")
def test_a_limit_or_else_the_knee_for_an_asynchronous_call_decides_on_the_curve(comm: Communicator) -> list[str]:
    """What is wrong with calls on a curve, eager and in a graph: values, what ran, and what explain says of it."""
    curve = [
        {"sms": 8, "algorithm": "lsa_oneshot", "params": {"blocks": 8}, "slower": 0.2},
        {"sms": 24, "algorithm": "lsa_ll128_twoshot", "params": {"blocks": 24}, "slower": 0.1},
    ]
    usual = {"algorithm": "lsa_twoshot", "params": {"blocks": 132}, "curve": curve}
    plan = Plan({**HEAD, "rules": [{"op": "all_reduce", "ranges": [usual]}]}, "made up").completed(comm.plan)
    found = []
    for of_all, max_sms, async_op, expected in (
        (0, 0, True, "lsa_ll128_twoshot"),
        (0, 8, True, "lsa_oneshot"),
        (0, 1000, True, "lsa_twoshot"),
        (0, 0, False, "lsa_twoshot"),
        (8, 0, True, "lsa_oneshot"),
        (0, 8, False, "lsa_oneshot"),
        (8, 0, False, "lsa_oneshot"),
    ):
        with fresh(comm, plan=plan, max_sms=of_all) as own:
            call, graph = Steady(own, "all_reduce", 1 << 20), torch.cuda.CUDAGraph()

            def run(call: Steady = call, keys: tuple[bool, int] = (async_op, max_sms)) -> None:
                work: Any = call.comm.all_reduce(call.x, out=call.out, async_op=keys[0], max_sms=keys[1])
                if keys[0]:
                    work.wait()

            for step in range(4):
                call.load(step)
                if step == 2:
                    with torch.cuda.graph(graph):
                        run()
                (run if step < 2 else graph.replay)()
                found.append(call.wrong(step))
            why = own.explain("all_reduce", 4 << 20, max_sms=max_sms, async_op=async_op)
            few = why.sms <= 24 or expected == "lsa_twoshot"
            ran = {why.algorithm, last_algorithm(own)}
            found.append("" if ran == {expected} and few else f"{of_all} {max_sms} {async_op}: {ran} {why}")
            del graph
    return [text for text in found if text]


@on_ranks(2, "nccl_ranks")
def test_ranks_with_different_limits_are_told_so(comm: Communicator) -> None:
    """Where these make for different blocks."""
    with fresh(comm, max_bytes=8 << 20) as own, pinned(own, "all_gather", "lsa_ll128_oneshot"):
        x = torch.ones(1 << 18, device=own.device)
        out = torch.empty(own.size << 18, device=own.device)
        own.all_gather_into_tensor(out, x, max_sms=8)
        own.barrier()
        with pytest.raises(CommError, match=r"ranks disagree.*dtype, size and max_sms on every rank"):
            own.all_gather_into_tensor(out, x, max_sms=4 + own.rank)
            own.barrier()


@pytest.mark.parametrize("compiled", [False, True])
@on_ranks(2, "nccl_ranks")
def test_a_call_that_is_nccls_alone_is_refused(comm: Communicator, compiled: bool) -> None:
    """A gather, a norm and an epilogue where NCCL carries what travels."""
    import torch._dynamo

    ops = {"all_gather": "nccl_direct", "all_reduce": "nccl_direct", "all_reduce_rms_norm": "nccl_composed"}
    before, rules = comm.plan, [{"op": op, "ranges": [{"algorithm": name}]} for op, name in ops.items()]
    x = torch.ones(8, device=comm.device)
    calls: tuple[Callable[[], object], ...] = (
        lambda: comm.all_gather_into_tensor(x.new_empty(8 * comm.size), x, max_sms=4),
        lambda: comm.all_reduce_rms_norm(x.clone(), None, x, max_sms=4),
        lambda: INT8(comm, x, max_sms=4),
    )
    comm.use(Plan({**HEAD, "rules": rules}, "NCCL alone"))
    try:
        for call, carried in zip(calls, ("all_gather", "all_reduce", "all_reduce"), strict=True):
            torch._dynamo.reset()
            told = rf"max_sms is 4, but {carried} runs nccl_direct here.*needs 32.*commlib.init\(max_sms=4\)"
            with pytest.raises(ValueError, match=told):
                (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)()
    finally:
        comm.use(before)


@pytest.mark.parametrize(("algorithm", "size"), [("lsa_ll128_oneshot", "256K"), ("lsa_twoshot", "16M")])
def test_a_large_call_has_no_more_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, size: str
) -> None:
    monkeypatch.setenv(env.MAX_SMS.name, "5")
    ranks = profiled(tmp_path, "all_reduce", "--algorithms", algorithm, "--sizes", size)["ranks"]
    assert [rank["blocks"] for rank in ranks] == [5, 5]
