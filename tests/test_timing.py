"""The timing protocol: what it counts, what ranks agree on, in which order it measures; never how long things took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from commlib.collectives import COLLECTIVES, Call
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.env import settings
from commlib.errors import Unsupported
from commlib.testing import Ranks
from commlib.timing import (
    Candidate,
    Measurement,
    Prepare,
    Protocol,
    Run,
    cpu_share,
    fingerprint,
    measure,
    measure_calls,
    plain,
    protocol,
    public_call,
)
from commlib.timing.blocks import Entry
from commlib.timing.truth import Truth

QUICK = Protocol(block_s=20e-6, blocks=(3, 3), budget_s=0.0)
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool, torch.complex64),
]


def call_of(comm: Communicator, count: int = 1000, dtype: torch.dtype = torch.float32, redop: str = "sum") -> Call:
    return Call(comm.rank, comm.size, count, dtype, redop, root=comm.size - 1)


def found(comm: Communicator, name: str, candidates: list[Candidate], **changes: Any) -> list[Measurement]:
    return measure(comm, COLLECTIVES[name], call_of(comm), ordered, candidates, replace(QUICK, **changes))


def measure_every_collective(comm: Communicator) -> list[tuple[str, bool, int | None, int, str]]:
    rows = []
    for name, collective in COLLECTIVES.items():
        forms = [False] * collective.out_of_place + [True] * (collective.in_place is not None)
        candidates = [Candidate(name, public_call(comm, collective), form) for form in forms]
        rows += [(r.label, r.in_place, r.wrong, len(r.times_s), r.skipped) for r in found(comm, name, candidates)]
    return rows


def test_every_collective_is_measured_and_right(shm_ranks: Ranks) -> None:
    of_ranks = shm_ranks.run(measure_every_collective, world=3)
    assert {(wrong, blocks, skipped) for *_, wrong, blocks, skipped in of_ranks[0]} == {(0, 3, "")}
    assert {label for label, *_ in of_ranks[0]} == set(COLLECTIVES)
    assert of_ranks[0] == of_ranks[1] == of_ranks[2]


def measure_every_type(comm: Communicator) -> list[tuple[str, int | None]]:
    collective = COLLECTIVES["all_reduce"]
    candidates = [Candidate("ours", public_call(comm, collective), form) for form in (False, True)]
    return [
        (str(dtype), result.wrong)
        for dtype in DTYPES
        for result in measure(comm, collective, call_of(comm, 99, dtype), ordered, candidates, QUICK)
    ]


def test_every_type_is_checked_exactly(shm_ranks: Ranks) -> None:
    assert [row for row in shm_ranks.run(measure_every_type, world=2)[0] if row[1] != 0] == []


def one_element_wrong_on_rank_1(comm: Communicator) -> list[int | None]:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Callable[[], object]:
        def run() -> None:
            comm.all_reduce(x, out=out)
            if comm.rank == 1:
                out[-1] += 1

        return run

    right = Candidate("right", public_call(comm, COLLECTIVES["all_reduce"]))
    return [r.wrong for r in found(comm, "all_reduce", [Candidate("wrong", prepare), right])]


def test_a_wrong_element_is_counted_in_every_check_and_known_to_all_ranks(shm_ranks: Ranks) -> None:
    # Once with each of three buffers before the blocks, and once after them.
    assert shm_ranks.run(one_element_wrong_on_rank_1, world=2) == [[4, 0], [4, 0]]


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


def wrong_only_in_replays(comm: Communicator) -> int | None:
    with pytest.MonkeyPatch.context() as patch:
        collective, call = COLLECTIVES["all_reduce"], call_of(comm)
        entry = Entry(Measurement("right", False))
        entry.pairs = [(torch.empty(1000), torch.empty(1000)) for _ in range(3)]
        entry.runs = [public_call(comm, collective)(x, out, call) for x, out in entry.pairs]
        outs = iter(out for _, out in entry.pairs)
        patch.setattr(protocol.graph, "capture", lambda runs: Replayed(comm, runs, next(outs)))
        patch.setattr(torch.cuda, "synchronize", lambda device: None)
        protocol._check_replays(comm, [entry], Truth(collective, call, ordered))
        return entry.result.wrong


def test_what_only_a_replayed_graph_gets_wrong_is_counted(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(wrong_only_in_replays, world=2) == [0, 3]


def probed(comm: Communicator) -> tuple[int | None, int]:
    probe = Candidate("probe", lambda x, out, call: lambda: None, checked=False)
    (result,) = found(comm, "all_gather", [probe])
    return result.wrong, len(result.times_s)


def test_the_values_of_a_probe_are_not_compared(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(probed, world=2) == [(None, 3), (None, 3)]


def writes_nothing(comm: Communicator) -> int | None:
    (result,) = found(comm, "all_gather", [Candidate("idle", lambda x, out, call: lambda: None)])
    return result.wrong


def test_an_output_that_nobody_writes_is_wrong_everywhere(shm_ranks: Ranks) -> None:
    everything = 2 * 2000 * 4  # ranks, elements, checks
    assert shm_ranks.run(writes_nothing, world=2) == [everything, everything]


def breaks_after_the_first_checks(comm: Communicator) -> int | None:
    calls = []

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Callable[[], object]:
        def run() -> None:
            calls.append(1)
            comm.all_reduce(x, out=out)
            if len(calls) > 10:
                out.zero_()

        return run

    (result,) = found(comm, "all_reduce", [Candidate("tired", prepare)], iterations=5)
    return result.wrong


def test_values_are_checked_again_after_the_clock_stopped(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(breaks_after_the_first_checks, world=2) == [2000, 2000]


def without_a_check(comm: Communicator) -> int | None:
    (result,) = found(comm, "all_gather", [Candidate("idle", lambda x, out, call: lambda: None)], check=False)
    return result.wrong


def test_without_a_check_nothing_is_said_about_values(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(without_a_check, world=2) == [None, None]


def refuses_on_rank_1(comm: Communicator) -> list[tuple[str, int]]:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Callable[[], object]:
        if comm.rank == 1:
            raise Unsupported("rank 1 has no such engine")
        return lambda: comm.all_reduce(x, out=out)

    ours = Candidate("ours", public_call(comm, COLLECTIVES["all_reduce"]))
    return [(r.skipped, len(r.times_s)) for r in found(comm, "all_reduce", [Candidate("half", prepare), ours])]


def test_what_one_rank_cannot_run_is_skipped_on_all(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(refuses_on_rank_1, world=2) == 2 * [[("rank 1 has no such engine", 0), ("", 3)]]


def order_of_blocks(comm: Communicator, seed: int) -> list[str]:
    order: list[str] = []

    def candidate(label: str) -> Candidate:
        make = public_call(comm, COLLECTIVES["all_reduce"])
        return Candidate(label, make, enter=lambda: order.append(label))

    found(comm, "all_reduce", [candidate("a"), candidate("b"), candidate("c")], blocks=(8, 8), iterations=1, seed=seed)
    # Checks and calibrating blocks come first, eight blocks of each, and a check of each last.
    return order[-27:-3]


def test_the_order_is_random_and_the_same_on_all_ranks(shm_ranks: Ranks) -> None:
    orders = [shm_ranks.run(order_of_blocks, seed, world=3) for seed in (0, 0, 1)]
    assert all(len({tuple(of_rank) for of_rank in order}) == 1 for order in orders)
    first, again, other = (order[0] for order in orders)
    assert first == again != other
    rounds = [tuple(first[at : at + 3]) for at in range(0, 24, 3)]
    assert all(sorted(of_round) == ["a", "b", "c"] for of_round in rounds)
    assert len(set(rounds)) > 1


def times_with_a_slow_rank(comm: Communicator) -> list[float]:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Callable[[], object]:
        return lambda: time.sleep(0.002 * comm.rank)

    (result,) = found(comm, "barrier", [Candidate("asleep", prepare)], iterations=1)
    return result.times_s


def test_a_time_is_the_slowest_ranks(shm_ranks: Ranks) -> None:
    of_ranks = shm_ranks.run(times_with_a_slow_rank, world=2)
    assert of_ranks[0] == of_ranks[1]
    assert min(of_ranks[0]) >= 0.002  # rank 0 alone would say about nothing


def a_slow_candidate(comm: Communicator) -> list[tuple[int, int | None]]:
    calls: list[int] = []

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Callable[[], object]:
        return lambda: (calls.append(1), comm.all_reduce(x, out=out), time.sleep(0.02))

    ours = Candidate("ours", public_call(comm, COLLECTIVES["all_reduce"]))
    results = found(comm, "all_reduce", [Candidate("slow", prepare), ours], slow_s=0.015)
    return [*((len(r.times_s), r.wrong) for r in results), (len(calls), None)]


def test_a_candidate_that_takes_ages_is_checked_and_measured_once(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(a_slow_candidate, world=2)[0] == [(1, 0), (3, 0), (2, None)]


def buffers_seen(comm: Communicator) -> tuple[int, int, bool]:
    seen: list[int] = []

    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Callable[[], object]:
        return lambda: seen.append(x.data_ptr())

    shared = [Candidate(label, prepare) for label in "ab"]
    moved = Candidate("c", prepare, empty=lambda elements, dtype: plain(elements, dtype))
    found(comm, "all_reduce", shared, iterations=7, check=False)
    # The last call of each candidate is the check after the blocks.
    in_a_row = sum(a == b for a, b in pairwise(seen[-9:-2]))
    of_shared = len(set(seen))
    found(comm, "all_reduce", [*shared, moved], iterations=7, check=False)
    return of_shared, in_a_row, len(set(seen)) >= 2 * of_shared


def test_buffers_rotate_and_are_shared_by_candidates_of_one_kind_of_memory(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(buffers_seen, world=2)[0] == (3, 0, True)


def recorded(comm: Communicator) -> list[str]:
    x, out, call = torch.zeros(4), torch.zeros(4), call_of(comm, 4)
    made = {name: public_call(comm, COLLECTIVES[name])(x, out, call) for name in ("all_reduce", "broadcast")}
    return [f"{run.func.__name__} {len(run.args)} {run.keywords}" for run in made.values()]  # type: ignore[attr-defined]


def test_nothing_stands_between_the_clock_and_the_public_call(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(recorded, world=2)[0] == ["all_reduce 3 {}", "broadcast 2 {}"]


def test_percentiles_are_of_the_blocks() -> None:
    result = Measurement("x", False, times_s=[5.0, 1.0, 3.0, 2.0, 4.0])
    assert [result.percentile_s(p) for p in (0, 25, 50, 100)] == [1.0, 2.0, 3.0, 5.0]
    assert result.median_s == 3.0


def test_a_process_that_sleeps_uses_no_core_and_one_that_works_uses_one() -> None:
    assert cpu_share(lambda: time.sleep(0.05)) < 0.5
    end = time.process_time() + 0.05
    assert cpu_share(lambda: [None for _ in iter(lambda: time.process_time() < end, False)]) > 0.2


def test_a_fingerprint_names_the_machine_and_keeps_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMLIB_BIND", "core")
    monkeypatch.setenv("COMMLIB_PLAN", "somewhere/plan.json")
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    found_here = fingerprint()
    assert {"cpu", "cores", "kernel", "torch", "commlib", "python"} <= set(found_here)
    assert found_here["settings"]["COMMLIB_BIND"] == "core"
    assert set(settings()) <= {"COMMLIB_BIND", "OMP_NUM_THREADS", *settings()} - {"COMMLIB_PLAN", "SECRET_TOKEN"}


def race(comm: Communicator) -> list[tuple[bool, int]]:
    """Two that are alike and one that is ten times as slow."""

    def sleeping(seconds: float) -> Prepare:
        def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
            def run() -> None:
                out.copy_(x)
                time.sleep(seconds)

            return run

        return prepare

    call = Call(comm.rank, comm.size, 16, torch.float32)
    candidates = [Candidate(f"{ms} ms", sleeping(ms * 1e-3)) for ms in (5, 5, 50)]
    protocol = Protocol(blocks=(4, 12), budget_s=2.0, iterations=1, check=False, race=1.5)
    found = measure(comm, COLLECTIVES["all_reduce"], call, ordered, candidates, protocol)
    return [(result.raced_out, len(result.times_s)) for result in found]


def test_who_is_far_behind_is_left_out_after_a_few_blocks(shm_ranks: Ranks) -> None:
    answers = shm_ranks.run(race, world=2)
    assert answers[0] == answers[1]
    first, second, slow = answers[0]
    assert slow == (True, 4)
    assert first == second
    assert not first[0]
    assert first[1] > 4


def a_peer_raises(comm: Communicator) -> list[str]:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        def run() -> None:
            raise RuntimeError("this library\nhas no such call")

        return run

    ours = Candidate("ours", public_call(comm, COLLECTIVES["all_reduce"]))
    return [r.skipped for r in found(comm, "all_reduce", [Candidate("theirs", prepare), ours])]


def test_what_a_peer_raises_is_why_it_is_left_out(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(a_peer_raises, world=2) == [["RuntimeError: this library has no such call", ""]] * 2


def timed_calls(comm: Communicator) -> tuple[list[tuple[str, int, list[float], float]], list[str]]:
    made: list[str] = []
    calls = {"late": [lambda: time.sleep(2e-3 * comm.rank)], "even": [lambda: made.append("even")]}
    rows = measure_calls(comm, calls, QUICK, "calls", {"even": lambda: made.append("enter")})
    return [(row.label, row.iterations, row.times_s, row.median_s) for row in rows], made


def test_calls_of_all_ranks_are_timed_on_the_slowest_and_entered_before_each_block(shm_ranks: Ranks) -> None:
    (rows, made), (same, _) = shm_ranks.run(timed_calls, world=2)
    assert rows == same
    assert [(label, len(times)) for label, _, times, _ in rows] == [("late", 3), ("even", 3)]
    assert rows[0][3] >= 2e-3  # rank 0 does not sleep
    assert made[0] == "enter"
    assert made[-1] == "even"
    assert made.count("enter") >= 3
