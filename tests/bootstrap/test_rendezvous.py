"""Ranks that find each other: whoever else comes, whatever happens to a rank on the way, and in namespaces."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from commlib.bootstrap import local_world
from commlib.bootstrap.local_world import MemoryStore, Place, Server, meet
from commlib.bootstrap.store import StoreWorld
from commlib.bootstrap.world import Identity, process_info
from commlib.debug.jobs import state_of
from commlib.errors import CommError, CommTimeout, PeerLost
from tests.bootstrap.processes import NOBODY, caught, in_threads, needs_root, wait_until


@pytest.fixture
def place():
    return Place(f"a test {random.getrandbits(64)}", "the test")


@pytest.fixture(autouse=True)
def no_long_waits_at_close(monkeypatch):
    monkeypatch.setattr(local_world, "LINGER_S", 0.3)


def world_of(where, rank, size, timeout_s=10.0):
    """Meet the other ranks at a place or at the port of a store."""
    if isinstance(where, Place):
        return meet("test", where, Identity(rank, size), timeout_s)
    return StoreWorld("test", store_at(where), Identity(rank, size), timeout_s)


def join(where, rank, size, timeout_s=10.0, delay_s=0.0):
    """Be a rank: join the others, exchange, leave; return the rank."""
    time.sleep(delay_s)
    with contextlib.closing(world_of(where, rank, size, timeout_s)) as world:
        for number in range(3):
            sent = [b"%d of %d" % (peer, number) for peer in range(size)]
            assert world.all_gather(sent[rank], timeout_s) == sent
    return world.rank


def store_at(port, serves=False):
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", port, None, serves, wait_for_workers=False)


@pytest.fixture(params=["place", "store"])
def where(request, place):
    if request.param == "place":
        yield place
    else:
        store = store_at(0, serves=True)
        yield store.port


@pytest.mark.parametrize("late", range(3))
def test_ranks_meet_in_whatever_order_they_start(where, late):
    for _ in range(2):  # the second time, in a later world of theirs
        assert in_threads(*((join, where, rank, 3, 10.0, 0.2 * (rank == late)) for rank in range(3))) == [0, 1, 2]
    assert not isinstance(where, Place) or where.servers() == []


def join_again(place, rank):
    return [join(place, rank, 2) for _ in range(20)]


def test_a_rank_that_comes_again_at_once_does_not_take_the_old_world_for_a_new_one(place):
    assert in_threads((join_again, place, 0), (join_again, place, 1)) == [[0] * 20, [1] * 20]


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_never_starts_is_named_on_every_other_rank(where, missing):
    started = time.monotonic()
    results = in_threads(*((join, where, rank, 3, 0.8) for rank in range(3) if rank != missing))
    assert all(result.startswith("CommTimeout") and f"for rank {missing}" in result for result in results), results
    assert time.monotonic() - started < 1.5


def test_waiting_for_rank_0_is_part_of_the_deadline(place):
    started = time.monotonic()
    zero, one = in_threads((join, place, 0, 3, 10.0, 1.6), (join, place, 1, 3, 2.0))
    assert all("CommTimeout" in result and "for rank 2" in result for result in (zero, one)), (zero, one)
    assert time.monotonic() - started < 3  # not 2 s once more


def test_ranks_that_expect_different_numbers_raise_the_same(place):
    first, second = in_threads((join, place, 0, 2), (join, place, 1, 3))
    assert first == second
    assert re.match("ValueError: .*(0 expects 2, another rank 3|1 expects 3, another rank 2)", first), first


def test_two_processes_with_one_number_are_named_on_every_rank(where, start):
    zero, one, other = (start(join, where, rank, 3) for rank in (0, 1, 1))
    results = {running.result() for running in (zero, one, other)}
    assert all("both are rank 1" in result for result in results), results
    assert all(str(running.process.pid) in result for running in (one, other) for result in results), results


def join_fork_and_die(where):
    world_of(where, 1, 2).all_gather(b"", 10)
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_dies_is_named_at_once_though_a_child_of_it_outlives_it(where, start):
    start(join_fork_and_die, where)
    with contextlib.closing(world_of(where, 0, 2)) as world:
        world.all_gather(b"", 10)
        with pytest.raises(PeerLost, match="rank 1 died"):
            world.all_gather(b"", 10)


def test_a_rank_that_is_killed_while_others_come_is_named_at_once(place, start):
    zero, one = start(join, place, 0, 3), start(join, place, 1, 3)
    time.sleep(1.0)
    one.signal(signal.SIGKILL)
    assert zero.result(5) == "PeerLost: rank 0: rank 1 died before exchange 1 (test)"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_rank_0_killed_or_stopped_is_an_error_by_the_deadline(place, start, signum):
    zero = start(join, place, 0, 3)
    wait_until(place.servers)
    one = start(join, place, 1, 3, 1.5)
    time.sleep(0.3)
    zero.signal(signum)
    wait_until(lambda: state_of(zero.process.pid) in "TZX")
    two = caught(join, place, 2, 3, 0.5)
    kind = "PeerLost: rank 1: rank 0 died" if signum == signal.SIGKILL else "CommTimeout: rank 1 waited 1.5 s"
    assert one.result().startswith(kind)
    assert two.startswith("CommTimeout: rank 2 waited 0.5 s for rank 0")
    assert signum == signal.SIGKILL or "does not answer" in two


def test_two_jobs_that_start_at_one_place_say_so_on_every_rank(place, start):
    zeros = [start(join, place, 0, 2), start(join, place, 0, 2)]
    wait_until(lambda: len(place.servers()) == 2)
    # Each has asked the other then: a rank 1 that comes before may be the only one that one of them waits for.
    time.sleep(0.3)
    results = {caught(join, place, 1, 2), *(running.result() for running in zeros)}
    assert all("both are rank 0 (the test): two jobs meet" in str(result) for result in results), results


def test_a_second_job_does_not_disturb_one_that_is_past_its_start(place, start):
    worlds = in_threads(*((meet, "test", place, Identity(rank, 2), 10) for rank in range(2)))
    second = [start(join, place, rank, 2) for rank in range(2)]
    assert all("(the test): two jobs meet" in running.result() for running in second)
    for world in worlds:
        world.close()


def attack(place, how, seconds):
    """Do one thing to every server of a place, again and again; return how often, and all that came back."""
    deadline, held, times, answers = time.monotonic() + seconds, [], 0, b""
    while time.monotonic() < deadline:
        for name in place.servers() * (200 if how == "flood" else 1):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.connect(f"\0{name}")
                times += 1
                if how == "garbage":
                    sock.send(os.urandom(64))
                elif how == "join":
                    sock.settimeout(0.5)
                    data, memory, _, _ = socket.recv_fds(sock, 1, 1)
                    answers += data + bytes(memory)
            held.append(sock)
            if len(held) > 300 or how != "hold":
                held.pop(0).close()
        time.sleep(0 if how == "flood" else 0.002)
    return times, answers


@pytest.mark.parametrize(
    ("hows", "user"),
    [
        (("hold", "garbage"), None),
        pytest.param(("hold", "flood"), NOBODY, marks=needs_root),
        pytest.param(("garbage", "join"), NOBODY, marks=needs_root),
    ],
)
def test_who_says_nothing_or_nonsense_does_not_stall_the_ranks_and_another_user_is_not_read(place, start, hows, user):
    attackers = [start(attack, place, how, 1.2, user=user) for how in hows]
    assert in_threads(*((join, place, rank, 3, 10.0, 0.5 * (rank == 2)) for rank in range(3))) == [0, 1, 2]
    for attacker in attackers:
        times, answers = attacker.result()
        assert times > 5 and answers == b""


def open_servers(place):
    """Sockets that answer nobody, and a server that sends its memory to everyone."""
    held = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    for sock in held:
        sock.bind(f"\0{place.prefix}{random.getrandbits(128):032x}")
        sock.listen(0)
    local_world.peer_user = lambda sock: os.geteuid()
    Server(place)
    time.sleep(30)


@needs_root
def test_servers_of_another_user_are_passed_by(place, start):
    start(open_servers, place, user=NOBODY)
    wait_until(lambda: len(place.servers()) == 201)
    assert in_threads((join, place, 0, 2, 10.0, 0.3), (join, place, 1, 2)) == [0, 1]


@needs_root
def test_ranks_of_two_users_raise_that_they_must_be_of_one(place, start):
    start(join, place, 0, 2, user=NOBODY)
    wait_until(place.servers)
    with pytest.raises(CommTimeout, match=f"only a process of user {NOBODY} serves there; all ranks must run as one"):
        join(place, 1, 2, 0.5)


def test_thirty_worlds_leave_nothing_behind(place):
    def in_use():
        return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208

    in_threads((join, place, 0, 2), (join, place, 1, 2))
    before = in_use()
    for _ in range(30):
        assert in_threads((join, place, 0, 2), (join, place, 1, 2)) == [0, 1]
    wait_until(lambda: all(now <= then for now, then in zip(in_use(), before, strict=True)))  # a thread that ends


def test_a_world_that_nobody_closes_leaves_no_server(place):
    worlds = in_threads(*((meet, "test", place, Identity(rank, 2), 10) for rank in range(2)))
    assert len(place.servers()) == 1
    del worlds
    wait_until(lambda: not place.servers())


def test_a_rank_that_closes_is_named_at_once_and_a_world_that_is_closed_says_so(place):
    ours, theirs = in_threads(*((meet, "test", place, Identity(rank, 2), 10) for rank in range(2)))
    closing = threading.Timer(0.1, theirs.close)
    closing.start()
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 0: rank 1 closed its communicator"):
            ours.all_gather(b"", 5)
    closing.join()
    ours.close()
    with pytest.raises(CommError, match="closed"):
        ours.all_gather(b"", 5)


def join_job(job, rank, size, timeout_s):
    return meet("test", Place(job, "a job", of_one_job=True), Identity(rank, size), timeout_s)


def test_processes_of_a_job_have_worlds_of_their_own_and_wait_for_the_one_that_is_theirs(start):
    job = f"{random.getrandbits(64)}"
    first = in_threads(*((join_job, job, rank, 2, 10) for rank in range(2)))
    with pytest.raises(CommTimeout, match="it is still in a communicator that this rank has left"):
        join_job(job, 1, 2, 0.1)
    second = [start(exchange_in_job, job, rank) for rank in range(2)]  # while the first world is open
    assert [running.result() for running in second] == [[b"0", b"1"]] * 2
    for world in first:
        world.close()


def exchange_in_job(job, rank):
    with contextlib.closing(join_job(job, rank, 2, 10)) as world:
        return world.all_gather(b"%d" % rank, 5)


def test_a_change_that_a_killed_process_wrote_in_part_is_no_change():
    memory = os.memfd_create("test")
    first, second = (MemoryStore(os.dup(memory), "", process_info()) for _ in range(2))
    first.set("a", b"\n\xff")
    os.pwrite(memory, b'\n["a", "b', os.fstat(memory).st_size)
    second.set("b", "ä")
    assert (second.get("a"), first.multi_get(["b", "a"])) == (b"\n\xff", ["ä".encode(), b"\n\xff"])
    for store in (first, second):
        store.close()
    os.close(memory)


PROGRAM = """
import torch, commlib
with commlib.init(timeout_s=60) as comm:
    total = comm.all_reduce(torch.full((200_001,), comm.rank + 1.0))
    print(comm.backend, comm.explain("all_reduce", 4 * 200_001).algorithm, comm.local_rank, float(total[-1]))
"""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces():
    """Names of two network namespaces, which stand for hosts, with an address each."""
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` (iproute2)")
    names = [f"commlib{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.99.7.{number + 1}/24", "dev", "veth0")
            for device in ("veth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        pytest.skip(f"network namespaces are refused here: {error.stderr.strip()}")
    yield [(name, f"10.99.7.{number + 1}") for number, name in enumerate(names)]
    for name in names:
        ip("netns", "del", name)


@pytest.mark.slow
def test_hosts_with_addresses_of_their_own_reach_each_other(namespaces):
    ranks = []
    for rank, (name, _) in enumerate([namespaces[0], namespaces[1], namespaces[1]]):
        where = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": namespaces[0][1], "MASTER_PORT": "29411"}
        command = ["ip", "netns", "exec", name, sys.executable, "-c", PROGRAM]
        environ = {**os.environ, **where, "COMMLIB_HOST": name}
        ranks.append(subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    outputs = [process.communicate(timeout=120) for process in ranks]
    expected = [["torch", "torch_direct", local, "6.0"] for local in ("0", "0", "1")]
    assert [out.split() for out, _ in outputs] == expected, outputs


UNMAPPED = """
import os
from commlib.bootstrap.local_world import Place, Server, meet
from commlib.bootstrap.world import Identity
from commlib.tools.debug.host import jobs_here
from commlib.errors import Unsupported

assert os.geteuid() == 65534
place = Place("0 ", "here")
for trusts in (lambda: Server(place), lambda: meet("test", place, Identity(1, 2), 0.1), jobs_here):
    try:
        trusts()
    except Unsupported as error:
        assert "; run as a user that is mapped" in str(error)
    else:
        raise AssertionError(trusts)
"""


def test_where_every_user_looks_alike_nobody_is_trusted():
    unshare = ["unshare", "--user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("user namespaces are refused here")
    subprocess.run([*unshare, sys.executable, "-c", UNMAPPED], check=True)
