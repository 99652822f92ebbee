"""Hub: the launcher's half of the local world; it holds a socket to each rank, on which that opens its worlds."""

from __future__ import annotations

import itertools
import socket
import threading

from commlib.bootstrap.exchange import Attendants, Exchange


class Hub:
    """Serves each socket of each rank in a thread of its own; give rank r `links[r]` and call `start()`."""

    def __init__(self, size: int) -> None:
        self.size = size
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(size)]
        self._ours, self.links = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
        self.joined = False  # whether a rank has come to init()
        self._attendants = Attendants()
        self._lock = threading.Lock()  # guards what follows
        self._channels: dict[int, Exchange] = {}  # the n-th channel of every rank belongs together
        self._lost: dict[int, str] = {}

    def start(self) -> None:
        """Close the ranks' ends of the links and serve; call it once the ranks hold theirs."""
        for rank, (ours, theirs) in enumerate(zip(self._ours, self.links, strict=True)):
            theirs.close()
            self._attendants.serve(ours, self._welcome, rank)

    def lost(self, rank: int, how: str) -> None:
        """Tell all worlds, those to come too, that `rank` is gone and how: 'was killed by SIGKILL'."""
        with self._lock:
            self._lost.setdefault(rank, how)
            for exchange in self._channels.values():
                exchange.lose(rank, how)

    def close(self) -> None:
        """Stop serving; ranks that still wait are told that the launcher is gone."""
        with self._lock:
            for exchange in self._channels.values():
                exchange.stop()
        self._attendants.close()
        for sock in (*self._ours, *self.links):
            sock.close()

    def _welcome(self, link: socket.socket, rank: int) -> None:
        """Take the sockets of a rank's worlds, until its process ends."""
        try:
            for number in itertools.count():
                _, fds, _, _ = socket.recv_fds(link, 64, 1)
                if not fds:
                    return
                self.joined = True
                with self._lock:
                    self._channels.setdefault(number, Exchange(self.size, self._lost))
                self._attendants.serve(socket.socket(fileno=fds[0]), self._answer, rank, number)
        finally:
            self.lost(rank, "ended")

    def _answer(self, sock: socket.socket, rank: int, number: int) -> None:
        """Answer a rank's questions in one world, until it leaves that."""
        exchange = self._channels[number]
        try:
            exchange.answer(sock, rank)
        finally:
            with self._lock:
                if len(exchange.lost) == self.size:
                    self._channels.pop(number, None)
