"""What `commlib debug` says where a process has no record, or a record has no room for all communicators."""

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import commlib
from commlib.communicator import Communicator
from commlib.debug.jobs import look, process
from commlib.debug.record import GPU, NAME, OPEN, Graph, Slot, descriptors, records_of
from commlib.errors import CommError
from commlib.tools.cli.debug import debug
from commlib.tools.debug.page import page
from commlib.tools.testing import Ranks
from tests.on_ranks import on_ranks


def slot_of() -> Slot:
    """Return what the record has of the only communicator of this process."""
    (slot,) = [slot for record in records_of(os.getpid()) for slot in record.slots() if not slot.closed]
    return slot


def alone(**options: Any) -> Communicator:
    return commlib.init(**{"backend": "shm", "bootstrap": "single", "max_bytes": 0, **options})


@on_ranks()
def test_communicators_beyond_the_record_are_counted(comm: Communicator) -> None:
    for number, expected in ((258, True), (10, False)) if comm.rank == 1 else ():
        with ExitStack() as opened:
            for _ in range(number):
                opened.enter_context(alone())
            before, job = (look([os.getpid()]) for _ in range(2))
            assert ("communicators of rank 1 nothing is known" in page(job, before, [])) == expected


def test_the_communicator_that_was_closed_last_stays_when_records_are_used_again() -> None:
    for timeout_s in (*range(1, 41), 99):
        with alone(timeout_s=timeout_s):
            (record,) = records_of(os.getpid())
            timeouts = [slot.timeout_s for slot in record.slots()]
    assert timeouts == [40, 99]


def test_a_call_that_is_not_timed_has_no_end_of_the_call_that_was_there_before() -> None:
    with alone(backend="torch") as comm:
        for count in (1 << 16, 1):  # of 256 KiB, timed; of 4 bytes, not
            for _ in range(256):  # as many as a record has room for
                comm.all_reduce(torch.ones(count))
            calls = slot_of().calls.values()
            assert len(calls) == 256
            assert {call.finished_ns > 0 for call in calls} == {count > 1}


def test_graphs_and_where_a_gpu_is_are_read_as_native_code_writes_them() -> None:
    with alone():
        (record,) = records_of(os.getpid())
        (slot,) = [slot for slot in record.mapped_slots() if slot.state == OPEN]
        slot.graphs[0].first, slot.graphs[0].calls, slot.graphs[0].kernels, slot.graphs_used = 5, 3, 2, 2
        slot.gpu[0].at_ns, slot.gpu[0].over, slot.gpu[0].waits_in, slot.gpu[0].what = 9, 6, 7, b"all_reduce"
        read = slot_of()
    assert read.graphs == {1: Graph(first=5, what=0, over=0, calls=3, kernels=2, site="")}
    assert [(wait.thread, wait.peer, wait.number) for wait in read.waits] == [(GPU, 0, 7)]
    assert read.gpu.what == "all_reduce"


def test_memory_that_could_shrink_while_it_is_read_is_no_record() -> None:
    with alone(), ExitStack() as opened:
        (path,) = descriptors(os.getpid(), NAME)
        original = opened.enter_context(path.open("rb"))
        copy = opened.enter_context(os.fdopen(os.memfd_create(NAME), "wb"))
        copy.write(original.read(1 << 20))
        copy.truncate(path.stat().st_size)
        assert len(descriptors(os.getpid(), NAME)) == 2
        assert len(records_of(os.getpid())) == 1


def test_a_process_that_has_ended_is_gone_also_before_its_parent_has_asked_how() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert process(ended.pid).gone


def fork_for_a_while(comm: Communicator) -> int:
    if (child := os.fork()) == 0:
        time.sleep(30.0)
        os._exit(0)
    return child


def test_a_forked_child_is_said_to_be_one(shm_ranks: Ranks) -> None:
    children = shm_ranks.run(fork_for_a_while)
    text = CliRunner().invoke(debug, [str(children[1])]).output
    assert f"process {children[1]} is no rank: it was forked from rank process {shm_ranks.pids[1]}" in text
    for child in children:
        os.kill(child, signal.SIGKILL)


def test_a_call_that_is_refused_after_the_end_is_in_the_record() -> None:
    with alone() as comm:
        comm.abort()
        with pytest.raises(CommError):
            comm.all_reduce(torch.ones(3))
        assert [(call.op, call.count) for call in slot_of().calls.values()] == [("all_reduce", 3)]


def fork_and_close(comm: Communicator) -> list[bool]:
    if (child := os.fork()) == 0:
        comm.close()
        del comm.resources
        os._exit(0)
    os.waitpid(child, 0)
    (record,) = records_of(os.getpid())
    closed = [slot.closed for slot in record.slots()]
    return closed


def test_a_forked_child_closes_no_communicator_of_its_parent(shm_ranks: Ranks) -> None:
    before, after = shm_ranks.run(fork_and_close), shm_ranks.run(fork_and_close)
    assert all(False in closed for closed in before)
    assert before == after
