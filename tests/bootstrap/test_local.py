import os
import socket
import threading
import time

import pytest

from commlib.bootstrap.exchange import message
from commlib.bootstrap.hub import Hub
from commlib.bootstrap.local import LocalWorld
from commlib.errors import CommError, CommTimeout, PeerLost
from commlib.launch import launch


@pytest.fixture
def hub():
    """A hub whose two ranks live in this process; `hub.ends` are their links."""
    hub = Hub(2)
    hub.ends = [link.dup() for link in hub.links]
    hub.start()
    yield hub
    hub.close()
    for link in hub.ends:
        link.close()


def worlds(hub):
    return [LocalWorld(hub.ends[rank], rank, 2) for rank in range(2)]


def gather_later(world, delay_s, data=b"late"):
    def gather():
        time.sleep(delay_s)
        world.all_gather(data, 5)

    thread = threading.Thread(target=gather)
    thread.start()
    return thread


def test_ranks_of_commlib_run_exchange_bytes_and_name_the_late(program, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ".")
    with (tmp_path / "output").open("w+b") as output:
        code = launch(program.command("exchange", "late"), 2, stdout=output, stderr=output)
        output.seek(0)
        assert code == 0, output.read().decode()
    for rank in range(2):
        report = program.report(rank)
        assert (report["name"], report["rank"], report["size"], report["local_rank"]) == (
            "local",
            rank,
            2,
            rank,
        )
    assert "CommTimeout" in program.report(0)["late"] and "for rank 1" in program.report(0)["late"]


def test_a_late_rank_is_named_and_its_round_does_not_spoil_the_next(hub):
    ours, theirs = worlds(hub)
    with pytest.raises(CommTimeout, match=r"rank 0 waited 0.1 s in init\(\) for rank 1"):
        ours.all_gather(b"", 0.1)
    thread = gather_later(theirs, 0)
    thread.join()
    thread = gather_later(theirs, 0.1, b"second")
    assert ours.all_gather(b"mine", 5) == [b"mine", b"second"]
    thread.join()
    ours.close()
    theirs.close()


def test_a_rank_that_closes_is_named_to_those_who_wait_now_and_later(hub):
    ours, theirs = worlds(hub)
    closing = threading.Timer(0.1, theirs.close)
    closing.start()
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 0: rank 1 closed its communicator"):
            ours.all_gather(b"", 5)
    assert time.monotonic() - started < 1
    closing.join()
    ours.close()
    with pytest.raises(CommError, match="closed"):
        ours.all_gather(b"", 5)


def test_a_dead_process_is_named_in_worlds_made_before_and_after(hub):
    before = LocalWorld(hub.ends[0], 0, 2)
    hub.lost(1, "was killed by SIGKILL")
    after = LocalWorld(hub.ends[0], 0, 2)
    for world in (before, after):
        with pytest.raises(PeerLost, match="rank 1 was killed by SIGKILL"):
            world.all_gather(b"", 5)
        world.close()


def test_a_result_that_is_complete_is_delivered_although_a_rank_left(hub):
    ours, theirs = worlds(hub)
    thread = gather_later(ours, 0.1)
    assert theirs.all_gather(b"last", 5) == [b"late", b"last"]
    theirs.close()
    thread.join()
    with pytest.raises(PeerLost):
        ours.all_gather(b"", 5)
    ours.close()


def test_without_its_launcher_a_rank_says_so():
    hub = Hub(1)
    link = hub.links[0].dup()
    hub.start()
    world = LocalWorld(link, 0, 1)
    assert world.all_gather(b"x", 5) == [b"x"]
    hub.close()
    with pytest.raises(PeerLost, match="the launcher is gone"):
        world.all_gather(b"", 5)
    with pytest.raises(PeerLost, match="the launcher is gone"):
        LocalWorld(link, 0, 1)
    world.close()
    link.close()


def test_a_stopped_rank_does_not_stop_the_hub(hub):
    """Rank 1 reads nothing while megabytes wait for it; rank 0 still gets its answers, in other worlds too."""
    pairs = [worlds(hub) for _ in range(3)]
    for ours, theirs in pairs:
        theirs._channel.sendall(message((1, 5), [b"y"]))
        assert ours.all_gather(b"x" * 2_000_000, 5)[1] == b"y"
    other = worlds(hub)
    thread = gather_later(other[1], 0)
    assert other[0].all_gather(b"", 5) == [b"", b"late"]
    thread.join()
    for world in (*other, *(world for pair in pairs for world in pair)):
        world.close()


def test_a_rank_that_ends_in_the_middle_of_its_bytes_is_named(hub):
    ours, theirs = worlds(hub)
    theirs._channel.sendall(message((1, 5), [b"half" * 10])[:30])
    theirs.close()
    with pytest.raises(PeerLost, match="rank 0: rank 1 ended"):
        ours.all_gather(b"", 5)
    ours.close()


def test_a_rank_that_is_interrupted_while_it_waits_is_named(hub):
    ours, theirs = worlds(hub)
    interrupted = threading.Timer(0.1, ours._channel.shutdown, (socket.SHUT_RDWR,))
    interrupted.start()
    with pytest.raises(PeerLost):
        ours.all_gather(b"asked", 5)
    assert theirs.all_gather(b"", 5) == [b"asked", b""]
    with pytest.raises(PeerLost, match="rank 1: rank 0 ended"):
        theirs.all_gather(b"", 5)
    theirs.close()


def test_a_hundred_worlds_leave_nothing_behind(hub):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = descriptors()
    for _ in range(100):
        pair = worlds(hub)
        thread = gather_later(pair[1], 0)
        pair[0].all_gather(b"", 5)
        thread.join()
        for world in pair:
            world.close()
    deadline = time.monotonic() + 2
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert descriptors() <= before
    assert hub._channels == {}
