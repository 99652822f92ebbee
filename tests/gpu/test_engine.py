"""engine_pull: copy engines read the peers' tensors, in graphs and eager; errors name the rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.errors import CommError
from commlib.plan import Plan
from commlib.testing import Ranks
from commlib.testing.conformance import Scope, check_algorithm
from tests.gpu.fresh import fresh
from tests.gpu.steady import Steady, capture, first, pinned, warm_up

ENGINE = "engine_pull"
NAMES = [name for name, spec in COLLECTIVES.items() if ENGINE in spec.rows("nccl")]
FORMS = [(name, False) for name in NAMES]
FORMS += [
    (name, True) for name in NAMES if COLLECTIVES[name].out_of_place and COLLECTIVES[name].algorithm(ENGINE).in_place
]
REPLAYS = 200
PATIENCE_S, LATE_S = 1.0, 1.7
ARENA = 32 << 20


def steady(comm: Communicator, name: str, count: int, in_place: bool = False) -> Steady:
    return Steady(comm, name, count, symmetric=True, in_place=in_place)


def replay_and_call(comm: Communicator, name: str, in_place: bool) -> str:
    """Graphs of two sizes and a call of a third take turns, the values checked each time."""
    with pinned(comm, name, ENGINE):
        calls = [steady(comm, name, count, in_place) for count in (33, 70_001, 300_007)]
        warm_up(*calls)
        graphs = capture(calls[0], calls[1]), capture(calls[1], calls[0], calls[1])
        found = []
        for step in range(REPLAYS):
            for call in calls:
                call.load(step)
            for turn in range(3):
                calls[2].run() if (step + turn) % 3 == 0 else graphs[turn % 2].replay()
            found += [call.wrong(step) for call in calls]
    return first(found)


def between_kernels(comm: Communicator, name: str) -> str:
    """Packets and tiles before and behind it, on one stream and on others; ranks lag differently."""
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    with pinned(comm, name, ENGINE):
        calls = [steady(comm, name, 50_021) for _ in range(4)] + [Steady(comm, "all_reduce", n) for n in (9, 70_001)]
        warm_up(*calls)
        found = []
        for step in range(30):
            for call in calls:
                call.load(step)
            torch.cuda.synchronize()
            for number, call in enumerate(calls):
                with torch.cuda.stream(streams[number % (1 + step % 3)]):
                    if comm.rank == (step + number) % comm.size:
                        torch.cuda._sleep(1_000_000)
                    call.run()
            torch.cuda.synchronize()
            found += [call.wrong(step) for call in calls]
    return first(found)


def two_communicators(comm: Communicator, name: str) -> str:
    """Each on a stream of its own, captured and eager, in the same order on all ranks."""
    made = [fresh(comm, max_bytes=ARENA) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in made]
    calls = []
    for part in made:
        part.use(Plan.only({name: ENGINE}, base=part.plan))
        calls.append(steady(part, name, 200_003))
    warm_up(*calls)
    graphs = [capture(call) for call in calls]
    found = []
    for step in range(30):
        for number, call in enumerate(calls):
            with torch.cuda.stream(streams[number]):
                call.load(step + number)
                graphs[number].replay() if step % 3 == number else call.run()
        torch.cuda.synchronize()
        found += [call.wrong(step + number) for number, call in enumerate(calls)]
    del graphs
    for part in made:
        part.barrier()
        part.close()
    return first(found)


def captured_beside_a_call(comm: Communicator, name: str) -> str:
    """While one stream is captured, another one makes calls; then a second capture of the same."""
    with pinned(comm, name, ENGINE):
        inside, outside = steady(comm, name, 20_011), steady(comm, name, 20_011)
        warm_up(inside, outside)
        found, stream = [], torch.cuda.Stream()
        for step in range(3):
            inside.load(step)
            outside.load(step)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="relaxed")
                inside.run()
            outside.run()
            with torch.cuda.stream(stream):
                inside.run()
                graph.capture_end()
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            found += [inside.wrong(step), outside.wrong(step)]
    return first(found)


def by_the_plain_rules(comm: Communicator) -> str:
    """What engines cannot read where it lies: plain tensors, and an all_to_all in place."""
    with pinned(comm, "all_to_all", ENGINE), pinned(comm, "all_gather", ENGINE):
        calls = [Steady(comm, "all_gather", 70_001), Steady(comm, "all_to_all", 5003, symmetric=True, in_place=True)]
        warm_up(*calls)
        for call in calls:
            call.load(2)
            call.run()
        return first([call.wrong(2) for call in calls])


def made_anew(comm: Communicator) -> str:
    """Tensors of asynchronous calls, which ranks let go of at other times, and new ones in their place."""
    found = []
    with pinned(comm, "all_gather", ENGINE):
        for step in range(30):
            call = steady(comm, "all_gather", 20_011 + 1000 * (step % 3))
            call.load(step)
            if step % comm.size == comm.rank:
                torch.cuda._sleep(1_000_000)
            comm.all_gather_into_tensor(call.out, call.x, async_op=True).wait()
            found.append(call.wrong(step))
            comm.all_gather_into_tensor(call.out, call.x, async_op=True).wait()
    return first(found)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
        return ""
    except CommError as error:
        return f"{type(error).__name__}: {error}"


def finish(comm: Communicator) -> str:
    torch.cuda.synchronize()
    return error_of(comm.check)


def impatient(comm: Communicator, name: str) -> Communicator:
    made = fresh(comm, patience_s=PATIENCE_S, max_bytes=ARENA)
    made.use(Plan.only({name: ENGINE}, base=made.plan))
    return made


def come_late(comm: Communicator, name: str, in_graph: bool) -> tuple[list[str], str, float]:
    """The last rank comes when the others have gone: what everyone hears, and what the output holds."""
    made = impatient(comm, name)
    call = steady(made, name, 100_003)
    warm_up(call)
    graph = capture(call) if in_graph else None
    call.load(1)
    torch.cuda.synchronize()
    comm.barrier()
    if made.rank == made.size - 1:
        time.sleep(LATE_S)
    start = time.monotonic()
    heard = [error_of(graph.replay if graph else call.run) or finish(made), error_of(made.check), error_of(call.run)]
    for _ in range(5 if graph else 0):
        graph.replay()  # type: ignore[union-attr]
    torch.cuda.synchronize()
    spent = time.monotonic() - start
    del graph
    made.close()
    return heard, call.wrong(1), spent


def disagree(comm: Communicator, how: str) -> tuple[str, bool]:
    """The last rank's call is not that of the others; what the others' tensors hold stays."""
    made = impatient(comm, "all_gather")
    odd = made.rank == made.size - 1
    warm_up(steady(made, "all_gather", 1000))
    ahead = made.empty(5000 + 3000 * (odd and how == "place")).fill_(7)
    call = steady(made, "all_gather", 1000 + (odd and how == "size"), in_place=odd and how == "in place")
    behind = made.empty(5000).fill_(7)
    other = Steady(made, "all_gather", 1000, torch.int32, symmetric=True)
    torch.cuda.synchronize()
    comm.barrier()
    text = error_of((other if odd and how == "dtype" else call).run) or finish(made)
    kept = bool((ahead == 7).all() and (behind == 7).all())
    made.close()
    return text, kept


def abort_while_others_wait(comm: Communicator) -> tuple[str, float]:
    made = fresh(comm, max_bytes=ARENA)
    made.use(Plan.only({"all_gather": ENGINE}, base=made.plan))
    call = steady(made, "all_gather", 100_003)
    warm_up(call)
    comm.barrier()
    start = time.monotonic()
    if made.rank == 0:
        time.sleep(0.3)
        made.abort("rank 0 has had enough of it")
    else:
        call.run()
    text = finish(made)
    spent = time.monotonic() - start
    made.close()
    return text, spent


@pytest.mark.parametrize("name", NAMES)
def test_a_large_tensor_of_any_size_is_right(nccl_ranks: Ranks, name: str) -> None:
    scope = Scope((1_000_003, 4_000_037), (torch.bfloat16, torch.uint8, torch.float32))
    assert [verdict.wrong for verdict in nccl_ranks.run(check_algorithm, name, ENGINE, scope)] == [""] * nccl_ranks.size


@pytest.mark.parametrize(("name", "in_place"), FORMS)
def test_replays_and_calls_take_turns(nccl_ranks: Ranks, name: str, in_place: bool) -> None:
    assert set(nccl_ranks.run(replay_and_call, name, in_place)) == {""}


@pytest.mark.parametrize("name", NAMES)
def test_kernels_go_before_and_behind_on_any_stream(nccl_ranks: Ranks, name: str) -> None:
    assert set(nccl_ranks.run(between_kernels, name)) == {""}


@pytest.mark.parametrize("name", NAMES)
def test_two_communicators_copy_at_once(nccl_ranks: Ranks, name: str) -> None:
    assert set(nccl_ranks.run(two_communicators, name)) == {""}


@pytest.mark.parametrize("name", NAMES)
def test_a_call_goes_on_beside_a_capture(nccl_ranks: Ranks, name: str) -> None:
    assert set(nccl_ranks.run(captured_beside_a_call, name)) == {""}


def test_what_engines_cannot_read_goes_by_the_plain_rules(nccl_ranks: Ranks) -> None:
    assert set(nccl_ranks.run(by_the_plain_rules)) == {""}


def test_new_tensors_lie_at_the_same_place_whenever_calls_are_over(nccl_ranks: Ranks) -> None:
    assert set(nccl_ranks.run(made_anew)) == {""}


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_late_rank_is_named(nccl_ranks: Ranks, name: str, in_graph: bool) -> None:
    *others, late = nccl_ranks.run(come_late, name, in_graph)
    for rank, (heard, _, spent) in enumerate(others):
        assert heard[0].startswith(f"CommTimeout: rank {rank}: "), heard[0]
        assert f"waited 1 s for rank {len(others)}, which did not come" in heard[0]
        assert heard[1:] == [heard[0]] * 2
        assert spent < 3 * PATIENCE_S
    assert any(f" by {ENGINE} of " in heard[0] for heard, _, _ in others), others
    heard, wrong, _ = late
    assert heard[0].startswith("CommTimeout: ") or not wrong, (wrong, heard)


@pytest.mark.parametrize("how", ["size", "dtype", "place", "in place"])
def test_a_disagreement_is_an_error_and_changes_no_other_tensor(nccl_ranks: Ranks, how: str) -> None:
    found = nccl_ranks.run(disagree, how)
    odd = nccl_ranks.size - 1
    words = " at another place in symmetric memory than " if how in ("place", "in place") else "ranks disagree: "
    assert all(text.startswith("CommError: ") and words in text for text, _ in found), found
    assert any(f"rank {odd}" in text for text, _ in found[:odd]), found
    assert all(kept for _, kept in found)


def test_an_abort_on_one_rank_ends_the_others(nccl_ranks: Ranks) -> None:
    for rank, (text, spent) in enumerate(nccl_ranks.run(abort_while_others_wait)):
        assert text.startswith("CommError: "), (rank, text)
        assert "rank 0" in text
        assert spent < 2.3
