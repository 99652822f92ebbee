"""The rounds of a world: each rank sends its bytes to one process, which answers with the bytes of all ranks.

A message is a line of JSON and then bytes. A rank sends [round, timeout_s] with its bytes, or null when it leaves. The
answer is one of

    ["all", ""]            with the bytes of every rank in rank order
    ["waiting", ranks]     who has not come so far; another answer follows
    ["late", ranks]        who did not come by the deadline
    ["lost", reason]       a rank is gone
    ["wrong", reason]      no round of this world can complete: ValueError
    ["timeout", reason]    the same: CommTimeout, as a rank gave up in the first round, in which the ranks come together
"""

from __future__ import annotations

import io
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from commlib.bootstrap.world import named
from commlib.debug.starting import Waiting

CHECK_S = 0.2  # between two checks whether a rank that waits is still connected
MAX_LINE_BYTES = 1 << 20

Answer = tuple[str, "list[bytes] | str"]


def message(head: object, parts: Sequence[bytes] = ()) -> bytes:
    """Write a line of JSON, with the lengths of the bytes that follow it."""
    return b"".join([json.dumps([head, *map(len, parts)]).encode(), b"\n", *parts])


def read_message(file: io.BufferedIOBase) -> tuple[Any, list[bytes]]:
    """Read a message; EOFError if it ends half-way, or is none."""
    line = file.readline(MAX_LINE_BYTES)
    try:
        head, *lengths = json.loads(line)
        parts = [file.read(length) for length in lengths]
    except (ValueError, TypeError, RecursionError):
        raise EOFError from None
    if [*map(len, parts)] != lengths:
        raise EOFError
    return head, parts


class Exchange:
    """The rounds of one world; `serve` answers one rank until it leaves."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[int, tuple[int, str]] = {}  # rank → the process that joined
        self.lost: dict[int, str] = {}  # rank → what happened to it
        self.ended: tuple[str, str] | None = None  # the answer to every question from now on
        self._rounds: dict[int, dict[int, bytes]] = {}
        self._stopped = False
        self._changed = threading.Condition()

    def lose(self, rank: int, reason: str) -> None:
        """Tell all who wait, now and later, that `rank` is gone: "was killed by SIGKILL"."""
        with self._changed:
            self.lost.setdefault(rank, reason)
            self._changed.notify_all()

    def end(self, kind: str, reason: str) -> None:
        """Answer every question with this from now on: "wrong" or "timeout", and the reason."""
        with self._changed:
            self.ended = self.ended or (kind, reason)
            self._changed.notify_all()

    def stop(self) -> None:
        """Answer nobody any more who still waits for others."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def serve(self, sock: socket.socket, file: io.BufferedIOBase, rank: int) -> None:
        """Answer a rank's questions until it leaves; one that leaves without a question may join again."""
        reason = ""
        try:
            while (question := read_message(file))[0] is not None:
                reason = "ended"
                (number, timeout_s), (data,) = question
                for kind, answer in self._answers(sock, rank, number, timeout_s, data):
                    head, parts = (answer, []) if isinstance(answer, str) else ("", answer)
                    file.write(message([kind, head], parts))
                    file.flush()
            reason = reason and "closed its communicator"
        finally:
            if reason:
                self.lose(rank, reason)
            else:
                self.members.pop(rank, None)

    def _answers(self, sock: socket.socket, rank: int, number: int, timeout_s: float, data: bytes) -> Iterator[Answer]:
        """Yield who is missing as long as the rank has to wait, and at last the answer."""
        deadline, waiting = time.monotonic() + timeout_s, Waiting(rank, self.size, timeout_s)
        with self._changed:
            round_ = self._rounds.setdefault(number, {})
            round_[rank] = data
            if len(round_) == self.size:
                del self._rounds[number]
                self._changed.notify_all()
        while True:
            left_s = deadline - time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._answer(sock, round_) is not None, max(min(left_s, CHECK_S), 0))
                answer = self._answer(sock, round_)
                missing = named([peer for peer in range(self.size) if peer not in round_])
            if answer is not None:
                yield answer
                return
            if left_s <= 0:
                if number == 1:
                    self.end("timeout", f"rank {rank} waited {timeout_s:g} s for {missing}")
                yield "late", missing
                return
            if waiting.due():
                yield "waiting", missing

    def _answer(self, sock: socket.socket, round_: dict[int, bytes]) -> Answer | None:
        if len(round_) == self.size:
            return "all", [round_[peer] for peer in range(self.size)]
        if self.ended:
            return self.ended
        if self.lost:
            rank, reason = next(iter(self.lost.items()))
            return "lost", f"rank {rank} {reason}"
        if self._stopped or _hung_up(sock):
            raise EOFError
        return None


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))
