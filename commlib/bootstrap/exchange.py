"""Exchange takes every rank's bytes of a round and answers all with all of them; ServedWorld asks it over a socket."""

from __future__ import annotations

import contextlib
import io
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from commlib.bootstrap.world import World, named
from commlib.debug.starting import Waiting
from commlib.errors import CommError, CommTimeout, PeerLost

ANSWER_S = 2.0  # how long after its deadline a rank waits for the server to say who is missing
LONGEST_S = 1e6  # that a socket can wait
LOOK_S = 0.2  # between two looks whether a rank that waits is still there
GONE = (OSError, EOFError)  # what reading shows when the other side ends, also half-way
MOST_BYTES = 1 << 20  # of the line of JSON before the bytes

# A rank asks with its round, how long it waits, and its bytes; None is its last word. The answer: "all" and every
# rank's bytes in rank order, "late" and the ranks that did not come, "lost" and a rank that is gone, and how it went,
# "wrong" or "timeout" and why no round of this world will ever be complete. Before it may come "waiting", and the ranks
# that have not come so far.
Question = tuple[int, float, bytes]
Answer = tuple[str, "list[bytes] | str"]


def message(head: object, parts: Sequence[bytes] = ()) -> bytes:
    """Write a line of JSON, with the lengths of the bytes that follow it."""
    return b"".join([json.dumps([head, *map(len, parts)]).encode(), b"\n", *parts])


def read_message(file: io.BufferedIOBase) -> tuple[Any, list[bytes]]:
    """Read a message; EOFError if it ends half-way, or is none."""
    line = file.readline(MOST_BYTES)
    try:
        head, *lengths = json.loads(line)
        parts = [file.read(length) for length in lengths]
    except (ValueError, TypeError):
        raise EOFError from None
    if [*map(len, parts)] != lengths:
        raise EOFError
    return head, parts


class Exchange:
    """The rounds of one world; `answer` serves one rank's socket until it leaves."""

    def __init__(self, size: int, lost: dict[int, str] | None = None, *, meets: bool = False) -> None:
        """`meets`: the ranks come together in the first round, and who is late for one there, is late for all."""
        self.size, self._meets = size, meets
        self.lost = dict(lost or {})  # rank → how it went
        self.ended: tuple[str, str] | None = None
        self._rounds: dict[int, dict[int, bytes]] = {}
        self._busy = 0  # questions that are not answered yet
        self._stopped = False
        self._changed = threading.Condition()

    def lose(self, rank: int, how: str) -> None:
        """Tell all who wait, now and later, that `rank` is gone and how: 'was killed by SIGKILL'."""
        with self._changed:
            self.lost.setdefault(rank, how)
            self._changed.notify_all()

    def end(self, kind: str, why: str) -> None:
        """Answer every question with this from now on: "wrong" or "timeout", and why."""
        with self._changed:
            self.ended = self.ended or (kind, why)
            self._changed.notify_all()

    def stop(self) -> None:
        """Answer nobody any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def drain(self, limit_s: float) -> None:
        """Wait until nobody waits for an answer."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, limit_s)

    def answer(self, sock: socket.socket, rank: int, *, joined: bool = True) -> None:
        """Answer a rank's questions until it leaves; one that has not `joined` and never asks, was never there."""
        how = "ended" if joined else ""
        try:
            with sock.makefile("rwb") as file:
                while (asked := read_message(file))[0] is not None:
                    how = "ended"
                    (number, timeout_s), (data,) = asked
                    tell = partial(_send, file, "waiting")
                    with self._at_work():
                        _send(file, *self._gather(sock, rank, (number, timeout_s, data), tell))
                how = how and "closed its communicator"
        finally:
            if how:
                self.lose(rank, how)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _gather(self, sock: socket.socket, rank: int, question: Question, tell: Callable[[str], None]) -> Answer:
        """Wait until all have brought their bytes, or cannot, or the rank's time is over; `tell` it who is missing."""
        number, timeout_s, data = question
        deadline, waiting = time.monotonic() + timeout_s, Waiting(rank, self.size, timeout_s)
        with self._changed:
            parts = self._rounds.setdefault(number, {})
            parts[rank] = data
            if len(parts) == self.size:
                del self._rounds[number]
                self._changed.notify_all()
            while len(parts) < self.size:
                if self._stopped or _hung_up(sock):
                    raise EOFError
                if self.ended:
                    return self.ended
                if self.lost:
                    gone, how = next(iter(self.lost.items()))
                    return "lost", f"rank {gone} {how}"
                if (left_s := deadline - time.monotonic()) <= 0:
                    return self._late(rank, question, parts)
                if waiting.due():
                    tell(self._missing(parts))
                self._changed.wait(min(left_s, LOOK_S))
        return "all", [parts[peer] for peer in range(self.size)]

    def _late(self, rank: int, question: Question, parts: dict[int, bytes]) -> Answer:
        missing = self._missing(parts)
        if self._meets and question[0] == 1:
            self.end("timeout", f"rank {rank} waited {question[1]:g} s for {missing}")
        return "late", missing

    def _missing(self, parts: dict[int, bytes]) -> str:
        return named([peer for peer in range(self.size) if peer not in parts])


class ServedWorld(World):
    """A rank's half of an Exchange that is served at the other end of a socket."""

    server: str  # in messages
    address = "127.0.0.1"  # all of its ranks are on this machine

    def __init__(self, rank: int, size: int, channel: socket.socket) -> None:
        self.rank, self.size = rank, size
        self._channel = channel
        self._round = 0
        self._lost = ""

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's bytes in rank order."""
        if self._lost:
            self._fail(self._lost)
        if self._channel.fileno() < 0:
            raise CommError(f"rank {self.rank}: this {type(self).__name__} is closed; make a new one with init()")
        self._round += 1
        try:
            kind, answer = self._ask((self._round, timeout_s, data))
        except TimeoutError:
            kind, answer = "late", f"{self.server}, which does not answer"
        except GONE:
            kind, answer = "lost", f"{self.server} is gone"
        if not isinstance(answer, str):
            return answer
        if kind == "late":
            raise self.late(timeout_s, self._round, answer)
        if kind == "lost":
            self._fail(answer)
        raise ValueError(answer) if kind == "wrong" else CommTimeout(f"rank {self.rank}: {answer} ({self.name})")

    def close(self) -> None:
        """Leave the channel; ranks that wait for this one are told."""
        if self._channel.fileno() >= 0:
            with contextlib.suppress(OSError):  # nobody listens any more
                self._channel.send(message(None), socket.MSG_DONTWAIT)
            self._channel.close()

    def _ask(self, question: Question) -> Answer:
        answered = False
        timeout_s = min(question[1] + ANSWER_S, LONGEST_S)
        deadline = time.monotonic() + timeout_s
        self._channel.settimeout(timeout_s)
        try:
            self._channel.sendall(message(question[:2], [question[2]]))
            with self._channel.makefile("rb") as file, Waiting(self.rank, self.size, question[1]) as waiting:
                (kind, text), parts = read_message(file)
                while kind == "waiting":
                    waiting.tell(text)
                    self._channel.settimeout(max(deadline - time.monotonic(), ANSWER_S))
                    (kind, text), parts = read_message(file)
            answered = True
        finally:
            if not answered:  # half a question may be out: nothing that follows would be understood
                self._channel.close()
        return kind, parts if kind == "all" else text

    def _fail(self, why: str) -> NoReturn:
        self._lost = why
        raise PeerLost(f"rank {self.rank}: {why} ({self.name} exchange {self._round})")


class Attendants:
    """A thread for each socket, which closes it at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._ended = False

    def serve(self, sock: socket.socket, attend: Callable[..., None], *arguments: object) -> None:
        """Call attend(sock, *arguments) in a thread of its own."""

        def run() -> None:
            with sock, contextlib.suppress(*GONE):
                attend(sock, *arguments)
            with self._lock:
                del self._serving[sock]

        with self._lock:
            if self._ended:
                sock.close()
                return
            self._serving[sock] = threading.Thread(target=run, name="commlib-hub", daemon=True)
            self._serving[sock].start()

    def close(self) -> None:
        """Hang up on everyone, and wait for the threads."""
        with self._lock:
            self._ended = True
            serving = dict(self._serving)
        for sock, thread in serving.items():
            with contextlib.suppress(OSError):  # its thread was first
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()


def _send(file: io.BufferedRWPair, kind: str, answer: list[bytes] | str) -> None:
    file.write(message([kind, answer]) if isinstance(answer, str) else message([kind, ""], answer))
    file.flush()


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))
