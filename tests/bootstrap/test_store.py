import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from commlib.bootstrap import local
from commlib.bootstrap.hub import Hub
from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.neighbours import card
from commlib.bootstrap.rendezvous import rendezvous
from commlib.bootstrap.store import TOKEN_BYTES, StoreWorld
from commlib.bootstrap.tcp import connect_store, served
from commlib.debug import starting
from commlib.errors import CommError, CommTimeout, PeerLost
from tests.bootstrap.processes import Running, in_threads

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(params=["silent", "http"])
def taken(request):
    """An address that another program holds."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve():
        while True:
            try:
                held.append(listener.accept()[0])
                if request.param == "http":
                    held[-1].sendall(HTTP)
            except OSError:
                return

    server = threading.Thread(target=serve)
    server.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    server.join()
    listener.close()
    for sock in held:
        sock.close()


def test_a_port_that_another_program_holds_is_an_error_by_the_deadline(taken):
    import torch.distributed  # noqa: F401 - its import takes seconds

    started = time.monotonic()
    with pytest.raises(CommError, match=r"no store at 127\.0\.0\.1"):
        connect_store("test", taken, Identity(1, 2), 1.0)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_at_a_store_says_for_whom_it_waits(rank, monkeypatch, caplog):
    from torch.distributed import HashStore

    monkeypatch.setattr(starting, "FIRST_S", 0.1)
    monkeypatch.setattr(starting, "LOG_S", 0.3)
    with pytest.raises(CommTimeout):
        StoreWorld("test", HashStore(), Identity(rank, 2), 0.8)
    assert f"rank {rank} waits in commlib.init() for rank {1 - rank}: " in caplog.text


def test_rank_0_says_at_once_that_its_port_is_taken(taken):
    with pytest.raises(
        CommError, match=r"rank 0: no store at 127.0.0.1:.* in use.*give all ranks a free port of rank 0"
    ):
        connect_store("test", taken, Identity(0, 2), 30.0)


def test_ranks_of_one_host_need_no_port_so_a_taken_one_is_none_of_their_business(taken):
    results = in_threads(*((rendezvous, "torchrun", taken, Identity(rank, 2), 10.0) for rank in range(2)))
    assert [world.rank for world in results] == [0, 1]
    for world in results:
        world.close()


def test_ctrl_c_is_answered_while_a_port_of_another_program_is_silent(taken):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises((KeyboardInterrupt, CommError)):
        connect_store("test", taken, Identity(1, 2), 30.0)
    assert time.monotonic() - started < 25


def test_ranks_that_were_told_different_numbers_all_say_so(program, by_hand):
    first, second = by_hand
    codes, output = program.run(first, {**second, "WORLD_SIZE": "3"}, steps=())
    assert codes == [1, 1]
    assert output.count("ValueError: ranks disagree on their number") == 2, output


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_rank_0_serves_at_the_address_asked_for_alone(free_port, host):
    store = served((host, int(free_port)), wait_for_workers=False)
    store.set("here", "yes")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", int(free_port)), timeout=1)


def test_a_socket_that_has_our_links_number_is_not_taken_for_it(monkeypatch):
    hub = Hub(1)
    link = hub.links[0]
    variables = {"COMMLIB_LOCAL_RANK": "0", "COMMLIB_LOCAL_SIZE": "1"}
    own = f"{link.fileno()}:{os.fstat(link.fileno()).st_ino}"
    assert local.detect({**variables, "COMMLIB_LOCAL_FD": own}) == 1
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), link.fileno())
    assert local.detect({**variables, "COMMLIB_LOCAL_FD": own}) is None
    ours.close()
    theirs.close()
    hub.close()


def test_a_rank_that_came_and_left_while_another_looked_is_not_lost(monkeypatch):
    world = StoreWorld.__new__(StoreWorld)
    world.rank, world.size, world.name, world._round, world._neighbours = 0, 2, "torchrun", 5, None
    answers = {"refused": [False], "5/0": [True], "5/1": [False, True], "left/1": [True]}
    monkeypatch.setattr(world, "_there", lambda key: answers[key].pop(0))
    world._raise_if_lost(["5/0", "5/1"])
    answers.update({"refused": [False], "5/0": [True], "5/1": [False, False], "left/1": [True]})
    with pytest.raises(PeerLost, match="rank 1 closed its communicator before exchange 5"):
        world._raise_if_lost(["5/0", "5/1"])


@pytest.fixture
def store():
    from torch.distributed import HashStore

    return HashStore()


def join(store, rank, size=2, timeout_s=10.0, delay_s=0.0, secret=""):
    """Be a rank: join the others, exchange, leave; return what came in the last exchange."""
    time.sleep(delay_s)
    world = StoreWorld("test", store, Identity(rank, size), timeout_s, secret=secret)
    with contextlib.closing(world):
        for number in range(3):
            gathered = world.all_gather(b"%d of %d" % (rank, number), timeout_s)
    return gathered


def join_at(port, rank, size=2, timeout_s=10.0, delay_s=0.0):
    from torch.distributed import TCPStore

    return join(TCPStore("127.0.0.1", port, None, False, wait_for_workers=False), rank, size, timeout_s, delay_s)


@pytest.mark.parametrize("late", range(3))
def test_ranks_meet_at_a_store_in_whatever_order_they_come(store, late):
    calls = ((join, store, rank, 3, 10.0, 0.3 * (rank == late)) for rank in range(3))
    assert in_threads(*calls) == [[b"0 of 2", b"1 of 2", b"2 of 2"]] * 3
    assert in_threads((join, store, 0), (join, store, 1)) == [[b"0 of 2", b"1 of 2"]] * 2  # a later world of them


@pytest.mark.parametrize("stage", ["named", "put down"])
def test_ranks_leave_a_world_whose_rank_0_was_killed_for_that_of_its_successor(store, stage):
    store.set("commlib/world", "before")
    if stage == "put down":  # rank 1 of the round before was killed, too
        dead = card_of_a_dead_process()
        store.set("commlib/before/rank/0", dead)
        store.set("commlib/before/rank/1", dead)
    assert in_threads((join, store, 0, 2, 10.0, 0.5), (join, store, 1)) == [[b"0 of 2", b"1 of 2"]] * 2


def card_of_a_dead_process():
    process = Running(card)
    text = process.result()
    process.end()
    return b"0" * TOKEN_BYTES + text


def test_two_processes_with_one_rank_at_a_store_are_named_on_every_rank(start):
    with served_store() as port:
        running = [start(join_at, port, rank, 3, 10.0) for rank in (0, 1, 1)]
        results = {process.result() for process in running}
    assert all("both are rank 1 (test): two jobs meet at one address" in result for result in results), results


def test_two_jobs_that_start_at_one_store_say_so_on_every_rank(start):
    with served_store() as port:
        first = start(join_at, port, 0)
        time.sleep(0.5)
        results = {process.result() for process in (start(join_at, port, 0), start(join_at, port, 1), first)}
    assert all("rank 0" in result and "of its own" in result for result in results), results


@contextlib.contextmanager
def served_store():
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    yield store.port


@pytest.mark.parametrize("secrets", [("a", "b"), ("a", "")])
def test_ranks_with_different_secrets_say_so_on_each(store, secrets):
    results = in_threads(*((join, store, rank, 2, 5.0, 0.0, secrets[rank]) for rank in range(2)))
    for rank, result in enumerate(results):
        assert f"ValueError: rank {rank}: what came from rank {1 - rank} is not signed with this rank's COMML" in result


def test_what_somebody_else_writes_into_the_store_is_found_where_there_is_a_secret(store, monkeypatch):
    monkeypatch.setenv("COMMLIB_SECRET", "of the job")

    def forge(store, rank):
        world = StoreWorld("test", store, Identity(rank, 2), 10.0)
        with contextlib.closing(world):
            first = world.all_gather(b"first", 5.0)
            signed = world._signature(rank, b"first") + b"first"
            if rank == 0:
                return world.all_gather(b"second", 5.0)
            world._signature = lambda *_: signed[:32]  # what was signed in another round
            world._ask(lambda: world._store.set("2/1", signed))
            return first and world.all_gather(b"first", 5.0)

    zero, one = in_threads((forge, store, 0), (forge, store, 1))
    assert "rank 0: what came from rank 1 is not signed" in zero and "somebody else writes to the store" in zero
    assert "ValueError" in one
