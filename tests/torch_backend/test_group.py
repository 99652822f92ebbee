"""init_process_group("commlib"): torch's calls give torch's results."""

import datetime
import os
import signal
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.errors import CommError, CommTimeout
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from commlib.torch_backend import communicator
from commlib.torch_backend.engines import monitored_barrier
from commlib.torch_backend.group import Options
from tests.on_ranks import on_ranks
from tests.torch_backend.cases import CASES, ON_CPUS, run_case, start
from tests.torch_backend.mixtures import mix

SIZE = 3


@pytest.fixture(scope="module")
def live() -> Iterator[Ranks]:
    with Ranks(SIZE, backend="shm", timeout_s=60.0, deadline_s=120.0) as made:
        yield made


@pytest.fixture
def ranks(live: Ranks, tmp_path: Path) -> Ranks:
    """Live ranks whose default process group is commlib's; after a failure they are new ones."""
    live.run(start, str(tmp_path / "store"))
    return live


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize("name", [case.__name__ for case in (*CASES, *ON_CPUS)])
def test_the_result_is_torchs(ranks: Ranks, name: str) -> None:
    ranks.run(run_case, name)


@on_ranks(fixture="ranks")
def test_what_cannot_be_served_is_refused_and_breaks_nothing(comm: Communicator) -> None:
    for said, call in (
        (r"pass x.to_dense\(\)", lambda: dist.all_reduce(torch.eye(3).to_sparse(), op=dist.ReduceOp.MAX)),
        ("not on meta", lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        ("use one of", lambda: dist.reduce(torch.ones(2), 0, dist._make_nccl_premul_sum(2.0))),
    ):
        with pytest.raises((ValueError, RuntimeError), match=said):
            call()
    x = torch.ones(2)
    dist.all_reduce(x)  # nothing is broken
    assert x[0] == SIZE


def gathered_objects(x: Any) -> list[Any]:
    every: list[Any] = [None] * SIZE
    dist.all_gather_object(every, x)
    return every


@on_ranks(fixture="ranks")
def test_sparse_tensors_are_summed(comm: Communicator) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        for shape, at in (((4, 3), [[comm.rank, 3, comm.rank], [0, 1, 0]]), ((5, 2), [[comm.rank] * 3])):
            values = torch.full((3, *shape[len(at) :]), comm.rank + 1.0, dtype=dtype)
            x = torch.sparse_coo_tensor(torch.tensor(at), values, shape, check_invariants=True)
            expected = sum(y.to_dense() for y in gathered_objects(x))
            dist.all_reduce(x)
            assert torch.equal(x.to_dense(), expected)
    empty = torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (4, 4), check_invariants=True)
    work = dist.all_reduce(empty, async_op=True)
    work.wait()
    assert empty._nnz() == 0


def a_late_rank(comm: Communicator) -> str:
    if comm.rank == 2:
        return ""
    with pytest.raises(CommTimeout) as late:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.3))
    return str(late.value)


def test_a_monitored_barrier_names_who_is_missing(ranks: Ranks) -> None:
    said = ranks.run(a_late_rank)
    assert said[0].startswith("Rank 0 timed out in monitoredBarrier after 0.3 s: Rank 2 ")
    assert said[1].startswith("Rank 1 successfully reached monitoredBarrier")
    ranks.run(all_come)


def test_a_monitored_barrier_names_the_first_or_all_that_did_not_come_by_its_deadline() -> None:
    for rank, wait_all_ranks, said in (
        (0, False, "Rank 1 failed"),
        (0, True, "Ranks 1, 2 failed"),
        (1, False, r"Rank 1 .*: it did not come within 0\.5 s"),
    ):
        started = time.monotonic()
        with pytest.raises(CommTimeout, match=said):
            monitored_barrier(dist.HashStore(), rank, SIZE, datetime.timedelta(seconds=0.5), wait_all_ranks)
        assert time.monotonic() - started < 0.95


def all_come(comm: Communicator) -> None:
    group: Any = dist.group.WORLD
    if comm.rank == 2:
        group._barriers += 1  # the one it missed
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))


# --- groups by themselves ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@on_ranks(fixture="ranks")
def test_a_compiled_ddp_model_trains(comm: Communicator) -> None:
    """DDP calls the group from C++ in the middle of what Dynamo compiles."""
    model = torch.nn.Linear(4, 2)
    step = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="eager")
    for _ in range(3):
        model.zero_grad()
        step(torch.full((1, 4), float(comm.rank))).sum().backward()
        assert model.weight.grad is not None
        torch.testing.assert_close(model.weight.grad, torch.full((2, 4), sum(range(SIZE)) / SIZE))


@on_ranks(fixture="ranks")
def test_ddp_joins_ranks_with_uneven_inputs(comm: Communicator) -> None:
    """DDP hands C++ the work of an all_reduce that says who still trains, and drops it: it must end."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    grads = []
    with model.join(divide_by_initial_world_size=False):
        for _ in range(2 + comm.rank):
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            grads.append(model.module.weight.grad.sum().item())
    assert grads == [2.0] * (2 + comm.rank)


@on_ranks(fixture="ranks")
def test_options_of_a_group_are_those_of_init(comm: Communicator) -> None:
    group = dist.new_group(
        pg_options=Options(
            plan=Plan.threshold(4096, below="shm_oneshot", above="shm_twoshot"), checked=True, max_bytes="1M", max_sms=4
        )
    )
    with pytest.raises(TypeError, match=r"pg_options is of type int, but backend 'commlib' takes .*Options"):
        dist.new_group(pg_options=3)
    made = communicator(group).options
    assert (made.checked, made.max_bytes, made.max_sms) == (True, 1 << 20, 4)


@pytest.mark.parametrize("how", ["options", "debug level"])
@on_ranks(fixture="ranks")
def test_checked_ranks_that_disagree_are_told_both_sides(comm: Communicator, how: str) -> None:
    c10d: Any = dist
    before = c10d.get_debug_level()
    try:
        if how == "debug level":
            c10d.set_debug_level(c10d.DebugLevel.DETAIL)
        group = dist.new_group(pg_options=Options(checked=True) if how == "options" else None)
        with pytest.raises(ValueError, match=r"rank.* 4 elements.* 3 elements"):
            dist.all_reduce(torch.ones(3 if comm.rank else 4), group=group)
    finally:
        c10d.set_debug_level(before)


LEFT: list[Any] = []  # alive, and nobody calls it


def goes_on(comm: Communicator, path: str, how: str) -> str:
    start(comm, path, timeout_s=1.0 if how == "late" else 60.0)
    x, group = torch.ones(4), dist.group.WORLD._get_backend(torch.device("cpu"))
    if how == "late in a part":
        group = group.split_group([0, 1, 2], timeout=datetime.timedelta(seconds=1), group_name="part")
    group.allreduce(x).wait()
    if comm.rank == 2:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        LEFT.append(group)
        return ""
    with pytest.raises(CommError) as ended:
        group.allreduce(x).wait()
    return f"{type(ended.value).__name__}: {ended.value}"


@pytest.mark.parametrize(
    ("how", "kind"), [("dies", "PeerLost"), ("late", "CommTimeout"), ("late in a part", "CommTimeout")]
)
def test_a_rank_that_is_gone_or_late_is_named(tmp_path: Path, how: str, kind: str) -> None:
    with Ranks(SIZE, backend="shm", timeout_s=60.0, deadline_s=60.0) as mortal:
        calls = mortal.start(goes_on, str(tmp_path / "store"), how)
        for rank in (0, 1):
            said = calls.result(rank)
            assert said.startswith(f"{kind}: rank 2 ")
            assert "all_reduce #2" in said


@on_ranks(fixture="ranks")
def test_a_wait_has_a_deadline_of_its_own_and_the_call_goes_on(comm: Communicator) -> None:
    x = torch.ones(2)
    dist.barrier()
    if comm.rank:
        time.sleep(0.5)
    work = dist.all_reduce(x, async_op=True)
    if comm.rank == 0:
        with pytest.raises(CommTimeout, match=r"all_reduce is not done after 0\.05 s; it continues in the background"):
            work.wait(datetime.timedelta(milliseconds=50))
    work.wait()
    assert x[0] == SIZE


def a_barrier_with_a_timeout(comm: Communicator, path: str) -> str:
    start(comm, path)
    group = dist.new_group()
    dist.barrier(group=group, timeout=datetime.timedelta(seconds=30))
    if comm.rank == 2:
        return ""
    with pytest.raises(CommTimeout) as late:
        dist.barrier(group=group, timeout=datetime.timedelta(seconds=0.2))
    return str(late.value)


@pytest.mark.skipif("timeout" not in signature(dist.barrier).parameters, reason="this torch's barrier has none")
def test_a_barrier_has_a_timeout_of_its_own(tmp_path: Path) -> None:
    with Ranks(SIZE, backend="shm", timeout_s=60.0, deadline_s=60.0) as mortal:
        said = mortal.run(a_barrier_with_a_timeout, str(tmp_path / "store"))
        assert said[:2] == ["barrier is not done after 0.2 s; it continues in the background"] * 2


@pytest.mark.parametrize("seed", range(2))
def test_a_mixture_of_calls_gives_every_value(ranks: Ranks, seed: int) -> None:
    ranks.run(mix, seed)


def on_two_hosts(comm: Communicator, path: str) -> str:
    os.environ["COMMLIB_HOST"] = str(comm.rank // 2)
    start(comm, path)
    for case in CASES:
        run_case(comm, case.__name__)
    return communicator().backend


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_ranks_of_several_hosts_get_torchs_results(tmp_path: Path) -> None:
    with Ranks(4, backend="shm", timeout_s=60.0, deadline_s=120.0) as spread:
        assert spread.run(on_two_hosts, str(tmp_path / "store")) == ["torch"] * 4
