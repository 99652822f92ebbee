"""Faults on GPUs: a rank that dies, is late, disagrees or leaves never hangs the others, and the error names it.

Calls only start here, so a fault shows after they end: in check() and in every later call.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from commlib.communicator import Communicator
from commlib.errors import PeerLost
from commlib.plan import Plan
from commlib.plan.table import plan_text
from commlib.tools.testing import Ranks
from tests.gpu import faults
from tests.gpu.conftest import GPUS
from tests.gpu.faults import NOTICE_S, PATIENCE_S, error_of, finish, together
from tests.gpu.fresh import fresh
from tests.gpu.steady import pinned

# Few blocks: the tensor goes in many rounds, and a late rank comes into the middle of them.
BLOCKS, COUNT = 4, 1_000_001


@pytest.fixture(scope="module")
def mortal() -> Iterator[Ranks]:
    """Ranks that tests kill; the next call starts them anew."""
    with Ranks(min(GPUS, 4), backend="nccl", timeout_s=30.0, max_bytes=1 << 20, deadline_s=30.0) as ranks:
        yield ranks


def repeat(comm: Communicator, algorithm: str, runs_ahead: bool, times: int = 1 << 40) -> None:
    """Make calls until one raises."""
    with pinned(comm, "all_reduce", algorithm):
        x = torch.zeros(20_011, device=comm.device)
        for _ in range(times):
            comm.all_reduce(x)
            if not runs_ahead:
                torch.cuda.synchronize()


def disagree(comm: Communicator, how: str) -> str:
    """The last rank makes another call than the others."""
    x, large = torch.ones(64, device=comm.device), torch.ones(3_000_001, device=comm.device)
    try_all(comm, x, large)
    made = fresh(comm, patience_s=PATIENCE_S)
    try_all(made, x, large)
    together(comm)
    odd = made.rank == made.size - 1
    calls: dict[str, Callable[[], object]] = {
        "operation": lambda: made.broadcast(x, 0) if odd else made.all_reduce(x),
        "dtype": lambda: by(made, "lsa_ll128_oneshot", x.int() if odd else x),
        "size": lambda: by(made, "lsa_ll128_oneshot", x[:50] if odd else x),
        "dtype without flags": lambda: by(made, "lsa_lamport_oneshot", x.half() if odd else x),
        "size without flags": lambda: by(made, "lsa_lamport_oneshot", x[:50] if odd else x),
        "large size without flags": lambda: by(made, "lsa_lamport_twoshot", large if odd else large[1:].clone()),
        "large size": lambda: by(made, "lsa_twoshot", large if odd else large[1:].clone()),
        "reduction": lambda: by(made, "lsa_ll128_oneshot", x, "max" if odd else "sum"),
        "root": lambda: made.broadcast(x, 1 if odd else 0),
        "kernel": lambda: by(made, "lsa_ll128_oneshot" if odd else "lsa_ll_oneshot", x),
        "NCCL's": lambda: by(made, "nccl_direct" if odd else "lsa_ll_oneshot", x),
        "nothing": lambda: None if odd else made.all_reduce(x),
    }
    text = error_of(calls[how]) or finish(made)
    made.close()
    return text


def try_all(comm: Communicator, x: torch.Tensor, large: torch.Tensor) -> None:
    """Compile and connect: what follows is about disagreement alone."""
    packets = ("lsa_ll_oneshot", "lsa_ll128_oneshot", "lsa_lamport_oneshot", "lsa_lamport_twoshot")
    for algorithm in ("nccl_direct", "lsa_twoshot", *packets):
        with pinned(comm, "all_reduce", algorithm):
            comm.all_reduce(x.clone())
            comm.all_reduce(large.clone())
    with pinned(comm, "all_reduce", "lsa_ll128_oneshot"):
        comm.all_reduce(x.clone(), "max")
        comm.all_reduce(x.int())
    with pinned(comm, "all_reduce", "lsa_lamport_oneshot"):
        comm.all_reduce(x.half())
    comm.broadcast(x, 0)
    torch.cuda.synchronize()


def by(comm: Communicator, algorithm: str, x: torch.Tensor, op: str = "sum") -> None:
    """A plan that only this rank may have, past the check that all have the same."""
    comm.resources.native_group.set_plan(
        plan_text(Plan.only({"all_reduce": algorithm}, base=comm.plan).rules_of(comm.size), "nccl")
    )
    comm.all_reduce(x, op)


def leave_early(comm: Communicator) -> tuple[str, float]:
    """The last rank closes, the others make one more call."""
    made = fresh(comm, patience_s=PATIENCE_S)
    x = torch.ones(64, device=comm.device)
    made.all_reduce(x)
    torch.cuda.synchronize()
    comm.barrier()
    text, start = "", time.monotonic()
    if made.rank < made.size - 1:
        text = error_of(lambda: made.all_reduce(x)) or finish(made)
    made.close()
    return text, time.monotonic() - start


@pytest.mark.parametrize(
    ("algorithm", "runs_ahead"),
    [("lsa_ll_oneshot", False), ("lsa_twoshot", True), ("nccl_direct", False), ("nccl_direct", True)],
)
def test_a_killed_rank_is_named_by_all_others(mortal: Ranks, algorithm: str, runs_ahead: bool) -> None:
    victim = mortal.size - 1
    mortal.run(repeat, algorithm, False, 3)
    handle = mortal.start(repeat, algorithm, runs_ahead)
    time.sleep(0.3)
    mortal.kill(victim)
    died = time.monotonic()
    for rank in range(victim):
        with pytest.raises(PeerLost, match=f"rank {rank}: .*rank {victim}"):
            handle.result(rank)
    # What is queued behind the first call of NCCL's ends call by call.
    assert time.monotonic() - died < (10.0 if algorithm == "nccl_direct" and runs_ahead else NOTICE_S)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("all_reduce", "lsa_ll_oneshot"),
        ("all_reduce", "lsa_ll128_twoshot"),
        ("all_reduce", "lsa_lamport_oneshot"),
        ("all_reduce", "lsa_lamport_twoshot"),
        ("all_reduce", "lsa_twoshot"),
        ("all_gather", "lsa_ll128_oneshot"),
        ("all_gather", "lsa_oneshot"),
        ("all_reduce", "nccl_direct"),
    ],
)
def test_a_late_rank_is_named_and_gets_no_wrong_value_unnoticed(mortal: Ranks, name: str, algorithm: str) -> None:
    params = {} if algorithm == "nccl_direct" else {"blocks": BLOCKS}
    *others, late = mortal.run(partial(faults.come_late, **params), name, algorithm, COUNT)
    if algorithm == "nccl_direct":
        assert all("did not finish within 1 s" in heard[0] for heard, _, _ in others), others
    else:
        what = f"{name} float32 {'sum ' if name == 'all_reduce' else ''}by {algorithm} of {4 * COUNT} bytes (call 2)"
        faults.assert_late_rank_is_named(others, what)
    assert all(heard[1:] == [heard[0]] * 2 for heard, _, _ in others)
    heard, wrong, _ = late
    assert heard[0].startswith("CommTimeout: ") or not wrong, (wrong, heard)
    assert all(spent < 3 * PATIENCE_S for _, _, spent in (*others, late))


WITHOUT_FLAGS = ("dtype without flags", "size without flags", "large size without flags")
WITHIN_A_KERNEL = ("dtype", "size", "large size", *WITHOUT_FLAGS)


@pytest.mark.parametrize("how", ["operation", *WITHIN_A_KERNEL, "reduction", "root", "kernel", "NCCL's", "nothing"])
def test_a_disagreement_is_an_error_that_names_both_sides(mortal: Ranks, how: str) -> None:
    answers = mortal.run(disagree, how)
    odd = mortal.size - 1
    if how == "nothing":
        last = answers.pop()  # it made no call, and may have heard of the others by now
        assert last == "" or last.startswith("CommTimeout: ")
    assert all(answer.startswith(("CommError: ", "CommTimeout: ")) for answer in answers), answers
    assert any(f"rank {rank}" in text and f"rank {odd}" in text for rank, text in enumerate(answers[:odd])), answers
    if how in (*WITHIN_A_KERNEL, "reduction", "root"):
        assert all(text.startswith("CommError: ranks disagree: rank ") for text in answers), answers


@pytest.mark.parametrize("algorithm", ["lsa_ll128_oneshot", "lsa_lamport_oneshot", "lsa_twoshot", "nccl_direct"])
def test_an_abort_on_one_rank_ends_the_others(mortal: Ranks, algorithm: str) -> None:
    faults.assert_all_hear_of_the_abort(mortal.run(faults.abort_while_others_wait, "all_reduce", algorithm, COUNT))


def test_a_rank_that_closes_early_is_named(mortal: Ranks) -> None:
    *others, (_, spent) = mortal.run(leave_early)
    for text, _ in others:
        assert text.startswith(("CommError: ", "CommTimeout: ", "PeerLost: "))
        assert f"rank {len(others)}" in text
    assert spent < 15
