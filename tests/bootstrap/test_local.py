import threading
import time

import pytest

from commlib.bootstrap.exchange import message
from commlib.bootstrap.hub import Hub
from commlib.bootstrap.local import LocalWorld
from commlib.errors import CommError, PeerLost
from tests.bootstrap.processes import in_threads


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
    assert in_threads(*((world.all_gather, b"late", 5) for world in other)) == [[b"late"] * 2] * 2
    for world in (*other, *(world for pair in pairs for world in pair)):
        world.close()
