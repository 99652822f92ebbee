"""Findings on ranks whose GPUs replay graphs, from records as ranks with GPUs write them."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from commlib.debug.findings import Finding, findings_of
from commlib.debug.jobs import Job, Process, Rank
from commlib.debug.record import Call, Gpu, Graph, Peer, Slot, Wait
from commlib.tools.debug.flight import flights

NOW_NS, PIDS = 10_000_000_000, (101, 102)
CALL = "all_reduce float32 max by lsa_ll_oneshot of 4096 bytes"
IDLE = Gpu(NOW_NS, 0, 0, 0, 0, 0, 0, 0, 0, "nothing of 0 bytes", "")
# Two graphs of three and of two calls; the first one has run twice, the second one not at all.
GRAPHS = {1: Graph(1, 77, 6, 3, 3, "model.py:8"), 2: Graph(4, 78, 0, 2, 2, "model.py:9")}


def captured(number: int, graph: int) -> Call:
    return Call(
        number=number,
        op="all_reduce",
        dtype="float32",
        count=1024,
        redop="max",
        root=-1,
        algorithm="lsa_ll_oneshot",
        site=f"/x/model.py:{10 + number}",
        thread=1,
        entered_ns=1,
        what=5,
        flags=4,
        graph=graph,
    )


def slot_of(rank: int, gpu: Gpu, graphs: dict[int, Graph] = GRAPHS) -> Slot:
    calls = {number: captured(number, 1 + (number > 3)) for number in range(1, 6)}
    return Slot(
        id=7,
        rank=rank,
        world=2,
        backend="nccl",
        opened_ns=1,
        timeout_s=60.0,
        closed=False,
        entered=5,
        finished=5,
        ended="",
        ended_kind="",
        waits=gpu.waits,
        gpu=gpu,
        peers=tuple(Peer(pid, number, 0, 0, 0, 0) for number, pid in enumerate(PIDS)),
        calls=calls,
        messages={},
        large={},
        graphs=graphs,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(({"dtype": "int8"}, "type"), ({"count": 8}, "size"), ({"redop": "min"}, "reduction"), ({"root": 1}, "root")),
        *(({"op": "reduce", "root": 1}, "operation"), ({"count": 8, "root": 1}, "size and root"), ({}, "arguments")),
    ],
)
def test_of_two_ranks_that_made_different_calls_both_are_named_and_the_fields_that_differ(
    change: dict[str, Any], said: str
) -> None:
    calls = captured(1, 0), replace(captured(1, 0), what=6, **change)
    (one,) = findings_in(*(replace(slot_of(rank, IDLE), calls={1: call}, graphs={}) for rank, call in enumerate(calls)))
    assert (one.kind, one.ranks) == ("differs", (0, 1))
    assert f"ranks differ in call #1, in its {said}: rank" in one.text


def test_the_first_call_that_a_rank_made_otherwise_is_named() -> None:
    ranks, peers = {}, tuple(Peer(101 + rank, rank, 0, 0, 0, 0) for rank in range(3))
    for rank, whats in enumerate(((1, 2, 3), (1, 3, 4), (1, 2, 3))):
        calls = {at: replace(captured(at, 0), what=what) for at, what in enumerate(whats, 1)}
        slot = replace(slot_of(rank, IDLE, {}), world=3, peers=peers, calls=calls)
        ranks[101 + rank] = Rank(Process(101 + rank, "S"), [slot], number=rank)
    (one,) = findings_of(Job(ranks, NOW_NS))
    assert (one.kind, one.ranks, one.calls) == ("differs", (1,), ((7, 2),))
    assert one.text.endswith("model.py:12")


@pytest.mark.parametrize(
    ("message", "theirs", "said"),
    [
        (0, {"closed": True}, "rank 1 has closed its communicator: rank 0 waits for it, for 10 s in all_reduce #5 "),
        (0, {"entered": 5}, "rank 1 is in all_reduce #5 (float32, 1024 elements, max) too, but does not go on: rank 0"),
        (0, {"entered": 4}, "rank 1 has not made all_reduce #5 (float32, 1024 elements, max): rank 0 waits for it"),
        (1, {}, "rank 1 has not made the other end of send to rank 1 (message #5): rank 0 waits for it"),
        (2, {}, "rank 1 has not made the other end of recv from rank 1 (message #5): rank 0 waits for it"),
    ],
)
def test_what_a_rank_owes_is_told_by_what_it_has_done(message: int, theirs: dict[str, Any], said: str) -> None:
    waits = (Wait(thread=1, peer=1, number=5, since_ns=1, message=message),)
    ours = replace(slot_of(0, IDLE, {}), waits=waits)
    (one,) = findings_in(ours, replace(slot_of(1, IDLE, {}), **theirs))
    assert (one.kind, one.ranks, one.calls) == ("missing", (1,), ((7, 5),))
    assert one.text.startswith(said)


def test_of_a_ring_in_which_no_call_has_the_majority_all_ranks_are_named() -> None:
    ranks, peers = {}, tuple(Peer(pid, number, 0, 0, 0, 0) for number, pid in enumerate(range(101, 105)))
    for rank, (communicator, peer) in enumerate(((7, 2), (7, 2), (8, 0), (9, 0))):
        slots = [replace(slot_of(rank, IDLE, {}), id=number, world=4, peers=peers) for number in (7, 8, 9)]
        slots = [replace(slot, calls={1: captured(1, 0)}, entered=1) for slot in slots]
        waits = (Wait(thread=1, peer=peer, number=1, since_ns=1, message=0),)
        slots[communicator - 7] = replace(slots[communicator - 7], waits=waits)
        ranks[101 + rank] = Rank(Process(101 + rank, "S"), slots, number=rank)
    assert [(one.kind, one.ranks) for one in findings_of(Job(ranks, NOW_NS))] == [("order", (0, 1, 2, 3))]


def findings_in(*slots: Slot) -> list[Finding]:
    ranks = {pid: Rank(Process(pid, "S"), [slot], number=slot.rank) for pid, slot in zip(PIDS, slots, strict=True)}
    return findings_of(Job(ranks, NOW_NS))


def waiting(over: int, of_graph: int) -> Slot:
    """Rank 0, whose GPU waits for rank 1 in a call of graph 1."""
    gpu = replace(IDLE, over=over, waits_in=over + 1, waits_for=1, since_ns=NOW_NS - 3_000_000_000, graph=1, what=CALL)
    return slot_of(0, gpu, {**GRAPHS, 1: replace(GRAPHS[1], over=of_graph)})


def test_the_replay_and_the_call_in_it_are_named() -> None:
    (one,) = findings_in(waiting(7, 7), slot_of(1, replace(IDLE, over=6)))
    assert (one.kind, one.ranks, one.calls) == ("missing", (1,), ((7, 8),))
    place = f"has not come to {CALL}, call 2 of 3 in replay 3 of graph 1 (captured at model.py:12)"
    assert place in one.text
    assert "its GPU has finished 6 calls and 2 replays of graph 1" in one.text


def test_where_gpus_were_in_different_calls_both_are_named() -> None:
    left = replace(IDLE, left_in=7, left_graph=1, left_of_graph=6, left_what=CALL)
    other = replace(left, left_graph=2, left_of_graph=1)
    (one,) = findings_in(slot_of(0, left), slot_of(1, other))
    assert (one.kind, one.ranks, one.calls) == ("differs", (0, 1), ((7, 7),))
    assert f"rank 0 was in {CALL}, call 1 of 3 in replay 3 of graph 1 (captured at model.py:11)" in one.text
    assert f"rank 1 was in {CALL}, call 2 of 2 in replay 1 of graph 2 (captured at model.py:15)" in one.text


def test_gpus_that_had_not_come_equally_far_do_not_differ_and_the_end_says_where_they_were() -> None:
    left = replace(IDLE, left_in=7, left_graph=1, left_of_graph=6, left_what=CALL)
    ends = {"ended": "rank 0 aborted the communicator", "ended_kind": "CommError"}
    first = replace(slot_of(0, left), **ends)
    (one,) = findings_in(first, replace(slot_of(1, replace(left, left_in=8, left_of_graph=7)), **ends))
    assert (one.kind, one.serious) == ("ended", True)
    assert f"; the GPU of rank 0 was in {CALL}, call 1 of 3 in replay 3 of graph 1" in one.text
    assert f"; the GPU of rank 1 was in {CALL}, call 2 of 3 in replay 3 of graph 1" in one.text


def test_graphs_that_differ_are_named_also_where_their_calls_are_no_longer_recorded() -> None:
    other = {**GRAPHS, 1: replace(GRAPHS[1], what=79, calls=4, kernels=4)}
    slots = [replace(slot_of(0, IDLE), calls={}), replace(slot_of(1, IDLE, other), calls={})]
    (one,) = findings_in(*slots)
    assert (one.kind, one.ranks) == ("differs", (0, 1))
    text = "in the calls of graph 1: rank 0 captured 3 calls at model.py:8; rank 1 captured 4 calls at model.py:8"
    assert text in one.text


def test_a_dump_of_the_flight_recorder_has_as_many_elements_as_go_in_and_come_out() -> None:
    ops = {"all_reduce": (1, 1), "all_gather": (1, 2), "reduce_scatter": (2, 1), "all_to_all": (2, 2)}
    calls = {at: replace(captured(at, 0), op=op) for at, op in enumerate(ops, 1)}
    ranks = {PIDS[0]: Rank(Process(PIDS[0], "S"), [replace(slot_of(0, IDLE, {}), calls=calls)], number=0)}
    (dump,) = flights(Job(ranks, NOW_NS)).values()
    sizes = [(entry["input_sizes"], entry["output_sizes"]) for entry in pickle.loads(dump)["entries"]]
    assert sizes == [([[1024 * taken]], [[1024 * given]]) for taken, given in ops.values()]
