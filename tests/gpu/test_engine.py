"""engine_pull: copy engines read the peers' tensors, in graphs and eager; errors name the rank."""

from functools import partial

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from tests.gpu import faults
from tests.gpu.faults import ARENA_BYTES, error_of, finish, impatient
from tests.gpu.fresh import fresh, leave
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import Steady, capture, checked, first, pinned, settled, take_turns, warm_up

ENGINE = "engine_pull"
NAMES = [name for name, spec in COLLECTIVES.items() if ENGINE in spec.rows("nccl")]
FORMS = [(name, False) for name in NAMES]
FORMS += [
    (name, True) for name in NAMES if COLLECTIVES[name].out_of_place and COLLECTIVES[name].algorithm(ENGINE).in_place
]
REPLAYS = 200


def steady(comm: Communicator, name: str, count: int, in_place: bool = False) -> Steady:
    return Steady(comm, name, count, symmetric=True, in_place=in_place)


@pytest.mark.parametrize(("name", "in_place"), FORMS)
@on_every_rank
def test_replays_and_calls_take_turns(comm: Communicator, name: str, in_place: bool) -> str:
    """Graphs of two sizes and a call of a third take turns, the values checked each time."""
    with pinned(comm, name, ENGINE):
        calls = [steady(comm, name, count, in_place) for count in (33, 70_001, 300_007)]
        warm_up(*calls)
        graphs = capture(calls[0], calls[1]), capture(calls[1], calls[0], calls[1])
        return take_turns(REPLAYS, graphs, *calls)


@pytest.mark.parametrize("name", NAMES)
@on_every_rank
def test_kernels_go_before_and_behind_on_any_stream(comm: Communicator, name: str) -> str:
    """Packets and tiles before and behind it, on one stream and on others; ranks lag differently."""
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    with pinned(comm, name, ENGINE):
        calls = [steady(comm, name, 50_021) for _ in range(4)] + [Steady(comm, "all_reduce", n) for n in (9, 70_001)]
        warm_up(*calls)

        def start(step: int) -> None:
            for number, call in enumerate(calls):
                with torch.cuda.stream(streams[number % (1 + step % 3)]):
                    if comm.rank == (step + number) % comm.size:
                        torch.cuda._sleep(1_000_000)
                    call.run()

        return settled(30, start, *calls)


@pytest.mark.parametrize("name", NAMES)
@on_every_rank
def test_two_communicators_copy_at_once(comm: Communicator, name: str) -> str:
    """Each on a stream of its own, captured and eager, in the same order on all ranks."""
    made = [fresh(comm, max_bytes=ARENA_BYTES) for _ in range(2)]
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
    leave(made)
    return first(found)


@pytest.mark.parametrize("name", NAMES)
@on_every_rank
def test_a_call_goes_on_beside_a_capture(comm: Communicator, name: str) -> str:
    """While one stream is captured, another one makes calls; then a second capture of the same."""
    with pinned(comm, name, ENGINE):
        inside, outside = steady(comm, name, 20_011), steady(comm, name, 20_011)
        warm_up(inside, outside)
        stream, graphs = torch.cuda.Stream(), []

        def start(step: int) -> None:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.stream(stream):
                graphs[-1].capture_begin(capture_error_mode="relaxed")
                inside.run()
            outside.run()
            with torch.cuda.stream(stream):
                inside.run()
                graphs[-1].capture_end()
            torch.cuda.synchronize()
            graphs[-1].replay()

        return settled(3, start, inside, outside)


@on_every_rank
def test_what_engines_cannot_read_goes_by_the_plain_rules(comm: Communicator) -> str:
    """What engines cannot read where it lies: plain tensors, and an all_to_all in place."""
    with pinned(comm, "all_to_all", ENGINE), pinned(comm, "all_gather", ENGINE):
        calls = [Steady(comm, "all_gather", 70_001), Steady(comm, "all_to_all", 5003, symmetric=True, in_place=True)]
        warm_up(*calls)
        return first([checked(3, call.run, call) for call in calls])


@on_every_rank
def test_new_tensors_lie_at_the_same_place_whenever_calls_are_over(comm: Communicator) -> str:
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


def disagree(comm: Communicator, how: str) -> tuple[str, bool]:
    """The last rank's call is not that of the others; what the others' tensors hold stays."""
    made = impatient(comm, "all_gather", ENGINE, max_bytes=ARENA_BYTES)
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


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_late_rank_is_named(nccl_ranks: Ranks, name: str, in_graph: bool) -> None:
    run = partial(faults.come_late, in_graph=in_graph, again=5 if in_graph else 0, symmetric=True)
    *others, late = nccl_ranks.run(run, name, ENGINE, 100_003)
    faults.assert_late_rank_is_named(others, f" by {ENGINE} of ")
    assert all(heard[1:] == [heard[0]] * 2 for heard, _, _ in others)
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
    run = partial(faults.abort_while_others_wait, symmetric=True)
    faults.assert_all_hear_of_the_abort(nccl_ranks.run(run, "all_gather", ENGINE, 100_003))
