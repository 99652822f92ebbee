"""Phases of calls: what is made of stamps of the host, and of the marks of a kernel's blocks."""

import time

import pytest
import torch

from commlib.errors import CommError
from commlib.tools.bench.phases import PHASES, TRACKS, host_calls, kernel_calls, kernel_durations, max_marks
from tests.on_ranks import on_ranks

BLOCKS, ROOM = 3, 9


def stamps_of(*rows, room=8):
    words = torch.zeros(room + 1, 2, dtype=torch.int64)
    words[0, 0] = len(rows)
    for at, (ns, phase) in enumerate(rows[:room], 1):
        words[at] = torch.tensor([ns, PHASES.index(phase)])
    return words.view(-1)


def marks_of(tracks):
    """Marks as a GPU has them; tracks: (track, block) → marks (phase, clock, ns)."""
    words = torch.zeros(len(TRACKS), BLOCKS, ROOM + 1, 2, dtype=torch.int64)
    for (track, block), marks in tracks.items():
        words[TRACKS.index(track), block, 0] = torch.tensor([len(marks), ROOM])
        for at, (phase, clock, ns) in enumerate(marks[:ROOM], 1):
            words[TRACKS.index(track), block, at] = torch.tensor([PHASES.index(phase) << 56 | clock, ns])
    return words.view(-1)


def call(clock, ns, *, wait=10):
    """One call of a block: two cycles of its clock take a nanosecond."""
    steps = [("start", 0, ns), ("publish", 4, 0), ("wait", 10, 0), ("over", 10 + 2 * wait, ns + 5 + wait)]
    return [(phase, clock + after, at) for phase, after, at in steps]


def test_stamps_are_cut_at_the_calls_and_what_is_outside_is_left_out():
    stamps = stamps_of((5, "native"), (8, "python"), (12, "native"), (14, "plan"), (17, "python"), (25, "native"))
    first, second = host_calls(stamps, [10, 20, 30])
    assert first == [("python", 2), ("native", 2), ("plan", 3), ("python", 3)]
    assert second == [("python", 5), ("native", 5)]


def test_stamps_and_marks_that_found_no_room_are_an_error():
    with pytest.raises(CommError, match="3 stamps were made, but there is room for 2"):
        host_calls(stamps_of((1, "native"), (2, "plan"), (3, "python"), room=2), [0, 9])
    with pytest.raises(CommError, match="a block made 12 marks, but there is room for 9"):
        kernel_calls(marks_of({("blocks", 0): call(0, 0) * 3}))


def test_marks_become_spans_on_the_clock_of_the_gpu():
    marks = marks_of(
        {
            ("blocks", 0): call(1000, 500) + call(1200, 600),
            ("blocks", 1): call(70, 505) + call(300, 602, wait=20),
            ("senders", 0): [("publish", 1004, 0), ("over", 1030, 515), ("publish", 1204, 0), ("over", 1230, 615)],
        }
    )
    first, second = kernel_calls(marks)
    assert first[0] == [("start", 500, 502), ("publish", 502, 505), ("wait", 505, 515)]
    assert [spans[-1][2] for spans in second] == [615, 627]
    assert (max_marks(marks), len(first), len(second)) == (8, 2, 2)


def test_the_phases_of_blocks_add_up_to_the_time_until_the_last_one_is_done():
    _, second = kernel_calls(marks_of({("blocks", b): call(0, 500) + call(99, 600, wait=10 + b) for b in range(3)}))
    found = kernel_durations(second)
    assert sum(found.values()) == pytest.approx(617 - 600)
    assert all(ns >= 0 for ns in found.values())
    assert found["gpu", "wait"] == pytest.approx(11)


def test_a_call_that_did_not_come_to_its_end_is_left_out():
    broken = call(0, 500)[:2]
    assert len(kernel_calls(marks_of({("blocks", 0): broken + call(90, 600)}))) == 1
    assert kernel_calls(marks_of({("blocks", 0): broken, ("blocks", 1): call(0, 500)})) == []


@on_ranks()
def test_a_rank_stamps_its_calls_while_it_is_asked_to(comm):
    x, backend = torch.ones(3000), comm.resources
    before = time.perf_counter_ns()
    stamps = backend.stamp(1000)
    comm.all_reduce(x)
    comm.barrier()
    after = time.perf_counter_ns()
    made = int(stamps[0])
    assert backend.stamp(0) is None
    comm.all_reduce(x)
    assert int(stamps[0]) == made, "nobody asks for stamps any more"
    times, numbers = stamps.view(-1, 2)[1 : made + 1].T.tolist()
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= after
    phases = [PHASES[number] for number in numbers]
    assert {"publish", "wait", "reduce", "copy"} <= set(phases)
    assert (phases[:2], phases[-1]) == (["native", "plan"], "python")
    assert not {"launch", "start", "over"} & set(phases)


@on_ranks(fixture="torch_ranks")
def test_a_backend_without_native_code_has_no_stamps(comm):
    with pytest.raises(Exception, match="calls are stamped by native code, which the torch backend has not"):
        comm.resources.stamp(1)
