"""lsa_pipe_*: large data through few blocks, beside graphs and other communicators; messages; errors name the rank."""

import random
import time
from functools import partial

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.tools.testing import Ranks
from tests.gpu.faults import assert_late_rank_is_named, come_late, error_of, finish, impatient
from tests.gpu.fresh import fresh, leave
from tests.gpu.on_ranks import on_every_rank
from tests.gpu.steady import Steady, capture, first, pinned, settled, take_turns, warm_up

PIPES = {name: row for name, spec in COLLECTIVES.items() for row in spec.rows("nccl") if row.startswith("lsa_pipe_")}
WAITING = ("all_gather", "all_to_all", "all_reduce", "reduce_scatter")  # every rank waits for every other one
REPLAYS = 30


@pytest.mark.parametrize("name", [name for name in PIPES if name != "send_recv"])
@on_every_rank
def test_replays_and_calls_take_turns(comm: Communicator, name: str) -> str:
    """Graphs of two sizes and a call of a third take turns, among them more than all slots hold."""
    with pinned(comm, name, PIPES[name]):
        calls = [Steady(comm, name, count, shifts=(count % 4, 0)) for count in (33, 70_001, 5_000_008)]
        warm_up(*calls)
        graphs = capture(calls[0], calls[1], calls[2]), capture(calls[1], calls[0], calls[1])
        return take_turns(REPLAYS, graphs, *calls)


@on_every_rank
def test_large_calls_of_two_communicators_run_side_by_side_in_no_order(comm: Communicator) -> str:
    made = [fresh(comm, max_bytes=1 << 20) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in made]
    calls = []
    for part, name in zip(made, ("all_reduce", "all_gather"), strict=True):
        part.use(Plan.only({name: PIPES[name]}, base=part.plan))
        calls.append(Steady(part, name, 3_000_008))
    warm_up(*calls)
    graphs = [capture(call) for call in calls]

    def start(step: int) -> None:
        for turn in range(2):  # on every second rank the other way round
            number = (turn + comm.rank) % 2
            with torch.cuda.stream(streams[number]):
                graphs[number].replay()

    wrong = settled(REPLAYS, start, *calls)
    graphs.clear()
    leave(made)
    return wrong


def message(source: int, target: int, number: int, device: torch.device) -> torch.Tensor:
    """The number-th of a pair: any length, at any address."""
    length = int(2 ** random.Random((source, target, number).__hash__()).uniform(0, 19))  # in packets, or in tiles
    values = torch.arange(length + number % 3, device=device) + 31 * source + 7 * target + number
    return values.to(torch.uint8)[number % 3 :]


@pytest.mark.parametrize("seed", range(3))
@on_every_rank
def test_messages_of_pairs_come_in_order_whatever_ranks_do_between(comm: Communicator, seed: int) -> str:
    """Everyone sends all its messages, then takes those for it: pairs keep their order, and ranks keep none."""
    draw, peers, each = random.Random(seed + comm.rank), [r for r in range(comm.size) if r != comm.rank], 3
    found = []
    with pinned(comm, "send_recv", PIPES["send_recv"]), pinned(comm, "all_reduce", PIPES["all_reduce"]):
        total = Steady(comm, "all_reduce", 300_007)
        total.load(seed)
        sends, takes = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
        for _ in range(each * len(peers)):
            peer = draw.choice([r for r in peers if sends[r] < each])
            comm.send(message(comm.rank, peer, sends[peer], comm.device), peer)
            sends[peer] += 1
        total.run()
        for _ in range(each * len(peers)):
            peer = draw.choice([r for r in peers if takes[r] < each])
            expected = message(peer, comm.rank, takes[peer], comm.device)
            out = torch.zeros_like(expected)
            comm.recv(out, peer)
            takes[peer] += 1
            if not torch.equal(out, expected):
                found.append(f"message {takes[peer]} of rank {peer} differs at rank {comm.rank}")
        found.append(total.wrong(seed))
    return first(found) if any(found) else ""


@on_every_rank
def test_a_message_longer_than_all_slots_waits_for_a_late_rank(comm: Communicator) -> str:
    """Both directions in one call, longer than all slots, of different lengths, to a rank that comes late."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    lengths = [(40 << 20) + 4099 * rank for rank in range(comm.size)]
    x = torch.full((lengths[comm.rank],), comm.rank + 1, dtype=torch.uint8, device=comm.device)
    out = torch.zeros(lengths[left], dtype=torch.uint8, device=comm.device)
    with pinned(comm, "send_recv", PIPES["send_recv"]):
        comm.barrier()
        torch.cuda.synchronize()
        if comm.rank == 0:
            time.sleep(0.3)
        comm.send_recv(x, right, out, left)
    return "" if bool((out == left + 1).all()) else f"rank {comm.rank}: what rank {left} sent has changed"


@pytest.mark.parametrize("in_graph", [False, True])
@on_every_rank
def test_a_call_sends_in_packets_and_takes_tiles(comm: Communicator, in_graph: bool) -> str:
    """Around a ring, more at a time than a mailbox holds: of each call's lengths, any may be short."""
    draw, right, left = random.Random(7), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    lengths = [
        [draw.choice((1, 13, 4096, 1 << 18, (1 << 18) + 1, 1 << 20)) for _ in range(comm.size)] for _ in range(9)
    ]
    x = [torch.empty(each[comm.rank], dtype=torch.uint8, device=comm.device) for each in lengths]
    out = [torch.empty(each[left], dtype=torch.uint8, device=comm.device) for each in lengths]

    def run() -> None:
        for each_x, each_out in zip(x, out, strict=True):
            comm.send_recv(each_x, right, each_out, left)

    wrong, graph = [], torch.cuda.CUDAGraph()
    with pinned(comm, "send_recv", PIPES["send_recv"]):
        run()
        if in_graph:
            with torch.cuda.graph(graph):
                run()
        for turn in range(5):
            for number, (each_x, each_out) in enumerate(zip(x, out, strict=True)):
                each_x.fill_((64 * comm.rank + 9 * turn + number) % 251)
                each_out.fill_(255)
            graph.replay() if in_graph and turn != 3 else run()
            for number, each_out in enumerate(out):
                if bool((each_out != (64 * left + 9 * turn + number) % 251).any()):
                    wrong.append(f"rank {comm.rank}: message {number} of turn {turn} has changed")
        graph.reset()
    return first(wrong) if wrong else ""


def disagree(comm: Communicator, name: str) -> str:
    made = impatient(comm, name, PIPES[name])
    warm_up(Steady(made, name, 1000))
    call = Steady(made, name, 100_000 + 16 * (made.rank == made.size - 1))
    comm.barrier()
    text = error_of(call.run) or finish(made)
    made.close()
    return text


def misunderstand(comm: Communicator, name: str, sent: int, expected: int) -> str:
    """Rank 0 sends more than the others expect, or less: all of it, before they look. A message is of two ranks."""
    made = impatient(comm, name, PIPES[name], patience_s=30.0)  # told at once, once it is compiled
    x = torch.zeros(expected if made.rank else sent, dtype=torch.uint8, device=made.device)
    calls = [(made.send, 1), (made.recv, 0)] if name == "send_recv" else [(made.broadcast, 0)] * made.size
    comm.barrier()
    time.sleep(0.1 if made.rank else 0)
    call, peer = calls[made.rank] if made.rank < len(calls) else (lambda *_: None, 0)
    text = error_of(lambda: call(x, peer)) or finish(made)
    comm.barrier()
    made.close()
    return text


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("name", WAITING)
def test_a_late_rank_is_named(nccl_ranks: Ranks, name: str, in_graph: bool) -> None:
    *others, _ = nccl_ranks.run(partial(come_late, in_graph=in_graph), name, PIPES[name], 3_000_008)
    assert_late_rank_is_named(others, f" by {PIPES[name]} of ")


@pytest.mark.parametrize("name", WAITING)
def test_different_sizes_are_an_error(nccl_ranks: Ranks, name: str) -> None:
    found = nccl_ranks.run(disagree, name)
    assert all("ranks disagree" in text for text in found), found


BYTES = [(4096, 4000), (1 << 20, 1 << 19), (4000, 1 << 19), (1 << 19, 4000)]  # packets, tiles, the one or the other


@pytest.mark.parametrize("name, sent, got", [("broadcast", 1 << 20, 1 << 19), *(("send_recv", *x) for x in BYTES)])
def test_more_or_less_than_a_rank_expects_is_an_error_there(nccl_ranks: Ranks, name: str, sent: int, got: int) -> None:
    found = nccl_ranks.run(misunderstand, name, sent, got)
    assert "ranks disagree" in found[1], found
