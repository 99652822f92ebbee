"""Hub: the launcher's half of the local world; takes every rank's bytes of a round and answers all with all of them."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from commlib.bootstrap.world import named

LOOK_S = 0.2  # between two looks whether a rank that waits is still there
LEFT = "ended or closed its communicator"
GONE = (OSError, EOFError, pickle.UnpicklingError)  # what reading shows when the other side ends, also half-way

# A rank asks with its round, how long it waits, and its bytes. The answer: "all" and every rank's bytes in rank order,
# "late" and the ranks that did not come, or "lost" and a rank that is gone, and how it went.
Question = tuple[int, float, bytes]
Answer = tuple[str, "list[bytes] | str"]


@dataclass(eq=False)
class _Channel:
    """One world: the n-th channel of every rank belongs together."""

    number: int
    lost: dict[int, str]
    rounds: dict[int, dict[int, bytes]] = field(default_factory=dict)


class Hub:
    """Serves each socket of each rank in a thread of its own; give rank r `links[r]` and call `start()`."""

    def __init__(self, size: int) -> None:
        self.size = size
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(size)]
        self._ours, self.links = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
        self._changed = threading.Condition()  # guards what follows
        self._serving: dict[socket.socket, threading.Thread] = {}
        self._channels: dict[int, _Channel] = {}  # by how many came before
        self._lost: dict[int, str] = {}
        self._ended = False

    def start(self) -> None:
        """Close the ranks' ends of the links and serve; call it once the ranks hold theirs."""
        for rank, (ours, theirs) in enumerate(zip(self._ours, self.links, strict=True)):
            theirs.close()
            self._serve(ours, self._welcome, rank)

    def lost(self, rank: int, how: str) -> None:
        """Tell all worlds, those to come too, that `rank` is gone and how: 'was killed by SIGKILL'."""
        with self._changed:
            for table in (self._lost, *(channel.lost for channel in self._channels.values())):
                table.setdefault(rank, how)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop serving; ranks that still wait are told that the launcher is gone."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            serving = dict(self._serving)
        for sock, thread in serving.items():
            with contextlib.suppress(OSError):  # its thread was first
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()
        for sock in (*self._ours, *self.links):
            sock.close()

    def _serve(self, sock: socket.socket, serve: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            with sock, contextlib.suppress(*GONE):
                serve(sock, *arguments)
            with self._changed:
                del self._serving[sock]

        with self._changed:
            if self._ended:
                sock.close()
                return
            self._serving[sock] = threading.Thread(target=run, name="commlib-hub", daemon=True)
            self._serving[sock].start()

    def _welcome(self, link: socket.socket, rank: int) -> None:
        """Take the sockets of a rank's worlds, until its process ends."""
        try:
            for number in itertools.count():
                _, fds, _, _ = socket.recv_fds(link, 64, 1)
                if not fds:
                    return
                with self._changed:
                    channel = self._channels.setdefault(number, _Channel(number, dict(self._lost)))
                self._serve(socket.socket(fileno=fds[0]), self._answer, rank, channel)
        finally:
            self.lost(rank, "ended")

    def _answer(self, sock: socket.socket, rank: int, channel: _Channel) -> None:
        """Answer a rank's questions in one world, until it leaves that."""
        try:
            with sock.makefile("rwb") as file:
                while True:
                    question: Question = pickle.load(file)
                    pickle.dump(self._gather(sock, rank, channel, question), file)
                    file.flush()
        finally:
            with self._changed:
                channel.lost.setdefault(rank, LEFT)
                if len(channel.lost) == self.size:
                    self._channels.pop(channel.number, None)
                self._changed.notify_all()

    def _gather(self, sock: socket.socket, rank: int, channel: _Channel, question: Question) -> Answer:
        """Wait until all have brought their bytes, or cannot, or the rank's time is over."""
        number, timeout_s, data = question
        deadline = time.monotonic() + timeout_s
        with self._changed:
            parts = channel.rounds.setdefault(number, {})
            parts[rank] = data
            if len(parts) == self.size:
                del channel.rounds[number]
                self._changed.notify_all()
            while len(parts) < self.size:
                if self._ended or _hung_up(sock):
                    raise EOFError
                if channel.lost:
                    gone, how = next(iter(channel.lost.items()))
                    return "lost", f"rank {gone} {how}"
                if (left_s := deadline - time.monotonic()) <= 0:
                    return "late", named([peer for peer in range(self.size) if peer not in parts])
                self._changed.wait(min(left_s, LOOK_S))
        return "all", [parts[peer] for peer in range(self.size)]


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))
