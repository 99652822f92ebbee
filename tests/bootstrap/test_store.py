import contextlib
import os
import signal
import socket
import socketserver
import subprocess
import threading

import pytest

from commlib.bootstrap.store import StoreWorld
from commlib.bootstrap.tcp import connect_store, served
from commlib.bootstrap.world import Identity, process_info
from commlib.errors import CommError, CommTimeout
from tests.bootstrap.processes import in_threads, wait_until
from tests.bootstrap.test_rendezvous import join, store_at

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


class Taken(socketserver.ThreadingTCPServer):
    """Another program, which answers at once or never."""

    daemon_threads, answer = True, b""

    def finish_request(self, request, client_address):
        with contextlib.suppress(OSError):
            request.sendall(self.answer)
            while request.recv(1 << 16):
                pass


@pytest.fixture(params=[b"", HTTP], ids=["silent", "http"])
def taken(request):
    """An address that another program holds."""
    with Taken(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.answer = request.param
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address
        server.shutdown()


def test_a_port_that_another_program_holds_is_an_error_at_once_or_by_the_deadline(taken):
    import torch.distributed  # noqa: F401 - its import takes seconds

    in_use = r"rank 0: no store at 127.0.0.1:.* in use.*; give all ranks a free port"
    for rank, timeout_s, message in (
        (1, 1.0, r"no store at 127\.0\.0\.1"),
        (0, 300.0, in_use),
    ):  # a test may take 120 s
        with pytest.raises(CommError, match=message):
            connect_store("test", taken, Identity(rank, 2), timeout_s)


def test_ctrl_c_is_answered_while_a_port_of_another_program_is_silent(taken):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises((KeyboardInterrupt, CommError)):
        connect_store("test", taken, Identity(1, 2), 300.0)  # a test may take 120 s


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_rank_0_serves_at_the_address_asked_for_alone(free_port, host):
    store = served((host, int(free_port)), wait_for_workers=False)
    store.set("here", "yes")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", int(free_port)), timeout=1)


@pytest.fixture
def store():
    from torch.distributed import HashStore

    return HashStore()


def test_two_jobs_that_start_at_one_store_say_so_on_every_rank(start):
    store = store_at(0, serves=True)
    before = store.num_keys()
    first = start(join, store.port, 0, 2)
    wait_until(lambda: store.num_keys() == before + 4, 15)  # it waits for its rank 1
    second = start(join, store.port, 0, 2)
    results = {second.result(), start(join, store.port, 1, 2).result(), first.result()}
    assert all("rank 0" in result and "another address" in result for result in results), results


def test_a_process_that_cannot_be_asked_or_has_ended_is_no_second_rank(store):
    from torch.distributed import PrefixStore

    mine, ended = process_info(), subprocess.Popen(["true"])
    ended.wait()
    for holder in (mine._replace(pid=1, hostname="elsewhere"), mine._replace(pid=ended.pid), mine):
        base = PrefixStore("commlib", store)
        base.set("world", "before")
        base.set("before/rank/1", holder.encode())
        with pytest.raises(CommTimeout, match=r"rank 1 waited 0\.2 s for rank 0"):
            StoreWorld("test", store, Identity(1, 2), 0.2)


def gather_or_leave(store, rank, size):
    with contextlib.closing(StoreWorld("test", store, Identity(rank, size), 5.0)) as world:
        return rank and world.all_gather(b"", 5.0)


def test_a_rank_that_leaves_is_named_at_once_and_so_are_two_numbers_of_ranks(store):
    zero, one = in_threads((gather_or_leave, store, 0, 2), (gather_or_leave, store, 1, 2))
    assert (zero, one) == (0, "PeerLost: rank 1: rank 0 closed its communicator before exchange 2 (test)")
    numbers = in_threads((gather_or_leave, store, 0, 2), (gather_or_leave, store, 1, 3))
    assert all(said.startswith("ValueError: ranks disagree on their number: rank ") for said in numbers), numbers


def gather_with(store, rank, secret):
    with contextlib.closing(StoreWorld("test", store, Identity(rank, 2), 5.0, secret=secret)) as world:
        return world.all_gather(b"%d" % rank, 5.0)


def count_keys(store, rank):
    with contextlib.closing(StoreWorld("test", store, Identity(rank, 2), 5.0)) as world:
        return [len(world.all_gather(b"x", 5.0)) and store.num_keys() for _ in range(20)]


def test_a_store_does_not_grow_with_the_rounds(store):
    for counts in in_threads(*((count_keys, store, rank) for rank in range(2))):
        assert max(counts) <= counts[0] + 4  # a round that some have left and others have not


@pytest.mark.parametrize("secrets", [("a", "b"), ("a", "")])
def test_ranks_with_different_secrets_say_so_on_each(store, secrets):
    for rank, result in enumerate(in_threads(*((gather_with, store, rank, secrets[rank]) for rank in range(2)))):
        assert f"ValueError: rank {rank}: what came from rank {1 - rank} is not signed" in result


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
            world._ask(lambda: world._store.set(world._at("2/1"), signed))
            return first and world.all_gather(b"first", 5.0)

    zero, one = in_threads((forge, store, 0), (forge, store, 1))
    assert "rank 0: what came from rank 1 is not signed" in zero and "somebody else writes to the store" in zero
    assert "ValueError" in one
