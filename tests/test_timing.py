"""The timing protocol: what it counts, what ranks agree on, in which order it measures; never how long things took."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from commlib.collectives import COLLECTIVES, Call
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.env import settings
from commlib.errors import Unsupported
from commlib.tools.timing import (
    Candidate,
    Measurement,
    Protocol,
    Run,
    fingerprint,
    measure,
    measure_calls,
    plain,
    protocol,
    public_call,
)
from commlib.tools.timing.blocks import Entry
from commlib.tools.timing.candidate import Truth
from tests.on_ranks import on_ranks

QUICK = Protocol(block_s=20e-6, blocks=(3, 3), budget_s=0.0)
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool, torch.complex64),
]


def call_of(comm: Communicator, count: int = 1000, dtype: torch.dtype = torch.float32, redop: str = "sum") -> Call:
    return Call(comm.rank, comm.size, count, dtype, redop, root=comm.size - 1)


def found(comm: Communicator, name: str, candidates: list[Candidate], **changes: Any) -> list[Measurement]:
    return measure(comm, COLLECTIVES[name], call_of(comm), ordered, candidates, replace(QUICK, **changes))


@on_ranks(3)
def test_every_collective_is_measured_and_right(comm: Communicator) -> None:
    for name, collective in COLLECTIVES.items():
        forms = [False] * collective.out_of_place + [True] * collective.has_in_place
        candidates = [Candidate(name, public_call(comm, collective), form) for form in forms]
        rows = [(r.label, r.wrong, len(r.times_s), r.skipped) for r in found(comm, name, candidates)]
        assert set(rows) == {(name, 0, 3, "")}


@on_ranks(2)
def test_every_type_is_checked_exactly(comm: Communicator) -> None:
    collective = COLLECTIVES["all_reduce"]
    candidates = [Candidate("ours", public_call(comm, collective), form) for form in (False, True)]
    for dtype in DTYPES:
        results = measure(comm, collective, call_of(comm, 99, dtype), ordered, candidates, QUICK)
        assert [result.wrong for result in results] == [0, 0], dtype


@on_ranks(2)
def test_a_wrong_element_is_counted_in_every_check_and_known_to_all_ranks(comm: Communicator) -> None:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        def run() -> None:
            comm.all_reduce(x, out=out)
            if comm.rank == 1:
                out[-1] += 1

        return run

    right = Candidate("right", public_call(comm, COLLECTIVES["all_reduce"]))
    # Once with each of three buffers before the blocks, and once after them.
    assert [r.wrong for r in found(comm, "all_reduce", [Candidate("wrong", prepare), right])] == [4, 0]


class Replayed:
    """Stands in for a graph of one call: its replay loses the last element on rank 1."""

    def __init__(self, comm: Communicator, runs: Sequence[Run], out: torch.Tensor) -> None:
        self.comm, self.runs, self.out = comm, runs, out

    def replay(self) -> None:
        for run in self.runs:
            run()
        self.out[-1] += self.comm.rank

    def reset(self) -> None:
        pass


@on_ranks(2)
def test_what_only_a_replayed_graph_gets_wrong_is_counted(comm: Communicator) -> None:
    with pytest.MonkeyPatch.context() as patch:
        collective, call = COLLECTIVES["all_reduce"], call_of(comm)
        entry = Entry(Measurement("right", False))
        entry.pairs = [(torch.empty(1000), torch.empty(1000)) for _ in range(3)]
        entry.runs = [public_call(comm, collective)(x, out, call) for x, out in entry.pairs]
        outs = iter(out for _, out in entry.pairs)
        patch.setattr(protocol.graph, "capture", lambda runs: Replayed(comm, runs, next(outs)))
        patch.setattr(torch.cuda, "synchronize", lambda device: None)
        protocol._check_replays(comm, [entry], Truth(collective, call, ordered))
        assert entry.result.wrong == 3 * comm.rank


EVERYTHING = 2 * 2000 * 4  # ranks, elements, checks


@pytest.mark.parametrize(
    ("checked", "check", "wrong"), [(True, True, EVERYTHING), (False, True, None), (True, False, None)]
)
@on_ranks(2)
def test_an_output_that_nobody_writes_is_wrong_everywhere_but_in_a_probe_and_without_a_check(
    comm: Communicator, checked: bool, check: bool, wrong: int | None
) -> None:
    candidate = Candidate("idle", lambda x, out, call: lambda: None, checked=checked)
    (result,) = found(comm, "all_gather", [candidate], check=check)
    assert (result.wrong, len(result.times_s)) == (wrong, 3)


@on_ranks(2)
def test_what_one_rank_cannot_run_and_what_raises_is_skipped_on_all(comm: Communicator) -> None:
    def half(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        if comm.rank == 1:
            raise Unsupported("rank 1 has no such engine")
        return lambda: comm.all_reduce(x, out=out)

    def raising() -> None:
        raise RuntimeError("this library\nhas no such call")

    ours = Candidate("ours", public_call(comm, COLLECTIVES["all_reduce"]))
    candidates = [Candidate("half", half), ours, Candidate("raising", lambda x, out, call: raising)]
    results = found(comm, "all_reduce", candidates)
    assert [r.skipped for r in results] == [
        "rank 1 has no such engine",
        "",
        "RuntimeError: this library has no such call",
    ]
    assert [len(r.times_s) for r in results] == [0, 3, 0]


def order_of_blocks(comm: Communicator, op: str) -> list[str]:
    order: list[str] = []
    make = public_call(comm, COLLECTIVES[op])
    candidates = [Candidate(label, make, enter=partial(order.append, label)) for label in "abc"]
    found(comm, op, candidates, blocks=(8, 8), iterations=1)
    # Checks and calibrating blocks come first, eight blocks of each, and a check of each last.
    return order[-27:-3]


@on_ranks(3)
def test_the_order_is_random_and_the_same_on_all_ranks(comm: Communicator) -> None:
    first, again, other = orders = [order_of_blocks(comm, op) for op in ("all_reduce", "all_reduce", "broadcast")]
    assert comm.all_gather_object(orders) == [orders] * 3
    assert first == again != other
    rounds = [tuple(first[at : at + 3]) for at in range(0, 24, 3)]
    assert all(sorted(of_round) == ["a", "b", "c"] for of_round in rounds)
    assert len(set(rounds)) > 1


@on_ranks(2)
def test_a_candidate_that_takes_ages_is_checked_and_measured_once(comm: Communicator) -> None:
    calls: list[int] = []
    slow = Candidate("slow", lambda x, out, _: lambda: (calls.append(1), comm.all_reduce(x, out=out), time.sleep(0.2)))
    pauses = iter([0.2])  # as a call of NCCL's that connects first: the others are measured
    late = Candidate("late", lambda x, out, _: lambda: (time.sleep(next(pauses, 0)), comm.all_reduce(x, out=out)))
    results = found(comm, "all_reduce", [slow, late], slow_s=0.15)
    assert [(len(r.times_s), r.wrong) for r in results] == [(1, 0), (3, 0)]
    assert len(calls) == 2


@on_ranks(2)
def test_buffers_rotate_and_are_shared_by_candidates_of_one_kind_of_memory(comm: Communicator) -> None:
    seen: list[int] = []
    shared = [Candidate(label, lambda x, out, _: lambda: seen.append(x.data_ptr())) for label in "ab"]
    moved = replace(shared[0], label="c", empty=lambda elements, dtype: plain(elements, dtype))
    found(comm, "all_reduce", shared, iterations=7, check=False)
    # The last call of each candidate is the check after the blocks.
    assert not any(a == b for a, b in pairwise(seen[-9:-2]))
    assert len(set(seen)) == 3
    found(comm, "all_reduce", [*shared, moved], iterations=7, check=False)
    assert len(set(seen)) >= 6


@on_ranks(2)
def test_nothing_stands_between_the_clock_and_the_public_call(comm: Communicator) -> None:
    x, out, call = torch.zeros(4), torch.zeros(4), call_of(comm, 4)
    for name, given in (("all_reduce", 3), ("broadcast", 2)):
        run: Any = public_call(comm, COLLECTIVES[name])(x, out, call)
        assert (run.func.__name__, len(run.args), run.keywords) == (name, given, {})


def test_percentiles_are_of_the_blocks() -> None:
    result = Measurement("x", False, times_s=[5.0, 1.0, 3.0, 2.0, 4.0])
    assert [result.percentile_s(p) for p in (0, 25, 50, 90, 100)] == [1.0, 2.0, 3.0, 5.0, 5.0]
    assert result.median_s == 3.0


def test_a_fingerprint_names_the_machine_and_keeps_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMLIB_ISA", "v3")
    monkeypatch.setenv("COMMLIB_PLAN", "somewhere/plan.json")
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    monkeypatch.setenv("COMMLIB_SECRET", "abc")
    found_here = fingerprint()
    assert {"cpu", "cores", "kernel", "torch", "commlib", "python"} <= set(found_here)
    assert found_here["settings"]["COMMLIB_ISA"] == "v3"
    assert "abc" not in settings().values()
    assert set(settings()) <= {"COMMLIB_ISA", "OMP_NUM_THREADS", *settings()} - {"COMMLIB_PLAN", "SECRET_TOKEN"}


@on_ranks(2)
def test_who_is_far_behind_is_left_out_after_a_few_blocks(comm: Communicator) -> None:
    candidates = [
        Candidate(f"{ms} ms", lambda x, out, call, ms=ms: lambda: time.sleep(ms * 1e-3)) for ms in (5, 5, 250)
    ]
    changes = {"blocks": (4, 12), "budget_s": 4.0, "iterations": 1, "check": False, "race": 5.0}
    results = [(result.raced_out, len(result.times_s)) for result in found(comm, "all_reduce", candidates, **changes)]
    assert comm.all_gather_object(results) == [results] * 2
    assert [raced_out for raced_out, _ in results] == [False, False, True]
    assert [blocks > 4 for _, blocks in results] == [True, True, False]


@on_ranks(2)
def test_calls_of_all_ranks_are_timed_on_the_slowest_and_entered_before_each_block(comm: Communicator) -> None:
    made: list[str] = []
    calls = {"late": [lambda: time.sleep(2e-3 * comm.rank)], "even": [lambda: made.append("even")]}
    rows = measure_calls(comm, calls, QUICK, "calls", {"even": lambda: made.append("enter")})
    found = [(row.label, row.iterations, row.times_s, row.median_s) for row in rows]
    assert comm.all_gather_object(found) == [found] * 2
    assert [(row.label, len(row.times_s)) for row in rows] == [("late", 3), ("even", 3)]
    assert rows[0].median_s >= 2e-3  # rank 0 does not sleep
    assert made[0] == "enter"
    assert made[-1] == "even"
    assert made.count("enter") >= 3
