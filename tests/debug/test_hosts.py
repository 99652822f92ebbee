"""commlib debug: a job on several hosts is looked at from one of them."""

import hmac
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from commlib.bootstrap.world import World
from commlib.communicator import Communicator
from commlib.debug import answering, asking, card, jobs, wire
from commlib.debug.card import HOSTS, Card
from commlib.debug.record import descriptors
from commlib.tools.cli.debug import debug
from commlib.tools.testing import Ranks
from tests.debug.test_debug import come, stay_away
from tests.hosts import create

LONG_S = 30.0


def create_apart(world: World, hosts: str, **options: Any) -> Communicator:
    """Make ranks that count as on several machines, to readers of records too."""
    for module in (card, answering, asking):
        module.here = lambda: ("boot", hosts[world.rank])  # type: ignore[assignment]
    return create(world, hosts, **options)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(4, create=create_apart, hosts="aabb", timeout_s=LONG_S) as ranks:
        yield ranks


@pytest.fixture
def on_a(four: Ranks, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Have this process be on host a, which sees its own ranks alone."""
    for module in (card, answering, asking):
        monkeypatch.setattr(module, "here", lambda: ("boot", "a"))
    monkeypatch.setattr(jobs, "_pids", lambda: iter(four.pids[:2]))
    return four


def said_of(ranks: Ranks, *options: str) -> tuple[Any, str]:
    shown = CliRunner().invoke(debug, [str(ranks.pids[0]), *options], standalone_mode=False)
    return shown.return_value, " ".join(shown.output.split())


@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_who_has_not_come_is_named_on_whatever_host_it_is(on_a: Ranks, rank: int) -> None:
    handle = on_a.start(stay_away, LONG_S, rank)
    time.sleep(1.5)
    end, text, code = time.monotonic() + LONG_S / 2, "", None
    while "4 of 4 ranks" not in text and time.monotonic() < end:  # a loaded host answers late
        code, text = said_of(on_a)
    assert code == 3
    assert "4 of 4 ranks here and on b" in text
    assert f"rank {rank} has not made all_reduce #" in text
    assert "(bfloat16, 14336 elements, sum)" in text
    place = str(on_a.pids[rank]) if rank < 2 else f"b:{on_a.pids[rank]}"
    assert f"rank {rank}: process {place} is in test_debug.py:{stay_away.__code__.co_firstlineno + 4} in stay" in text
    come(on_a, handle, rank)


def test_a_host_of_which_one_rank_is_stopped_answers_and_one_without_any_is_named(on_a: Ranks) -> None:
    handle = on_a.start(stay_away, 0.0, 0)
    handle.join()
    os.kill(on_a.pids[2], signal.SIGSTOP)
    handle = on_a.start(stay_away, 0.0, 0)
    try:
        time.sleep(1.5)
        _, text = said_of(on_a)
        assert "rank 2: process b:" in text
        assert "is stopped by a signal" in text
        os.kill(on_a.pids[3], signal.SIGSTOP)
        started = time.monotonic()
        code, text = said_of(on_a)
        assert time.monotonic() - started < LONG_S / 2
        assert code == 3
        assert "b does not answer: what ranks 2 and 3 do is not known; run commlib debug there" in text
    finally:
        for pid in on_a.pids[2:]:
            os.kill(pid, signal.SIGCONT)
    handle.join()


def test_the_key_is_kept_where_only_the_user_reads_it_and_is_not_shown(on_a: Ranks) -> None:
    (kept,) = descriptors(on_a.pids[0], HOSTS)
    assert kept.stat().st_mode & 0o777 == 0o600
    cards = [Card.read(text) for text in json.loads(kept.read_bytes())]
    assert [bool(one.address) for one in cards] == [True] * 4
    _, text = said_of(on_a, "--json")
    assert not any(one.key in text for one in cards)


def exchanged(key: bytes, theirs: bytes) -> Any:
    """Return what a reader with `theirs` gets from a rank with `key`."""
    rank, reader = socket.socketpair()
    with rank, reader:
        for end in (rank, reader):
            end.settimeout(5.0)

        def serve() -> None:
            try:
                wire.answer(rank, key, lambda request: {"you said": request})
            except (OSError, ValueError):
                rank.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return wire.ask(reader, wire.knock(reader), theirs, "hello")
        finally:
            thread.join()


def test_whoever_does_not_know_the_key_gets_no_answer() -> None:
    assert exchanged(b"key", b"key") == {"you said": "hello"}
    with pytest.raises(OSError, match="hung up"):
        exchanged(b"key", b"another")


def test_an_answer_of_somebody_else_is_not_believed() -> None:
    rank, reader = socket.socketpair()
    with rank, reader:
        reader.settimeout(5.0)
        said = b"{}"
        rank.sendall(bytes(16) + hmac.digest(b"another", said, "sha256") + len(said).to_bytes(8, "big") + said)
        with pytest.raises(ValueError, match="not signed with the key"):
            wire.ask(reader, wire.knock(reader), b"key", "hello")


def fork_one(comm: Communicator) -> int:
    before = len(answering._OPEN)
    child = os.fork()
    if child == 0:
        os._exit(len(answering._OPEN))
    return before - os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_keeps_no_port(four: Ranks) -> None:
    assert four.run(fork_one) == [1] * 4
