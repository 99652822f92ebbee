import os
import signal
import socket
import threading
import time

import pytest

from commlib.bootstrap import local
from commlib.bootstrap.hub import Hub
from commlib.bootstrap.launcher import Identity
from commlib.bootstrap.store import StoreWorld, connect_store
from commlib.errors import CommError, PeerLost

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
    from commlib.bootstrap.store import served

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
