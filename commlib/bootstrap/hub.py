"""Hub: the launcher's half of the local world; gathers a frame of each rank per round, sends all to all."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field

from commlib.bootstrap.local import ALL, HEADER, LOST, MINE, MISSING, WHO, take_frame


@dataclass(eq=False)
class _Member:
    """One rank's end of a channel, with what has come and what it has not taken yet."""

    sock: socket.socket
    rank: int
    channel: _Channel
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)


@dataclass(eq=False)
class _Channel:
    """One world: the n-th channel of every rank belongs together."""

    number: int
    members: dict[int, _Member] = field(default_factory=dict)
    rounds: dict[int, dict[int, bytes]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)


class Hub:
    """Runs in a thread of the launcher; give rank r `links[r]`, close it here, and call `start()`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.links: list[socket.socket] = []
        self._lost: dict[int, str] = {}
        self._channels: dict[int, _Channel] = {}  # by how many came before
        self._joined = [0] * size
        self._selector = selectors.DefaultSelector()
        for rank in range(size):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.links.append(theirs)
            self._selector.register(ours, selectors.EVENT_READ, rank)
        # Orders from other threads come as packets, so that only the hub's thread touches its state.
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._selector.register(theirs, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="commlib-hub", daemon=True)

    def start(self) -> None:
        """Close the ranks' ends of the links and serve; call it once the ranks hold theirs."""
        for link in self.links:
            link.close()
        self._thread.start()

    def lost(self, rank: int, how: str) -> None:
        """Tell every rank that `rank` is gone and how: 'was killed by SIGKILL'."""
        with contextlib.suppress(OSError):
            self._orders.send(f"{rank} {how}".encode())

    def close(self) -> None:
        """Stop serving; ranks that still wait are told that the launcher is gone."""
        self._orders.close()
        if self._thread.ident is not None:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self._selector.close()
        for link in self.links:
            link.close()

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select():
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                if isinstance(key.data, _Member):
                    self._exchange(key.data, events)
                elif key.data is None:
                    order = sock.recv(4096).decode()
                    if not order:
                        return
                    rank, how = order.split(" ", 1)
                    self._lose(int(rank), how)
                else:
                    self._join(sock, key.data)

    def _join(self, link: socket.socket, rank: int) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(link, 64, 1)
        except ConnectionError:
            message, fds = b"", []
        if not message or not fds:
            self._selector.unregister(link)
            link.close()
            self._lose(rank, "ended")
            return
        number = self._joined[rank]
        self._joined[rank] += 1
        channel = self._channels.setdefault(number, _Channel(number, lost=dict(self._lost)))
        member = _Member(socket.socket(fileno=fds[0]), rank, channel)
        member.sock.setblocking(False)  # a stopped rank must not stop the others
        channel.members[rank] = member
        self._selector.register(member.sock, selectors.EVENT_READ, member)
        for gone, how in list(channel.lost.items()):  # a post that fails adds to them
            self._post(member, LOST, 0, f"rank {gone} {how}".encode())

    def _exchange(self, member: _Member, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                piece = member.sock.recv(1 << 20)
                if not piece:
                    raise ConnectionResetError
                member.inbox += piece
                while member.rank in member.channel.members and (frame := take_frame(member.inbox)):
                    self._take(member, *frame)
            if member.outbox:
                self._flush(member)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(member)

    def _take(self, member: _Member, kind: bytes, round_: int, data: bytes) -> None:
        channel = member.channel
        if kind == WHO and round_ not in channel.rounds:
            return  # complete since it was asked; the answer is on its way
        parts = channel.rounds.setdefault(round_, {})
        if kind == WHO:
            missing = [str(rank) for rank in range(self.size) if rank not in parts]
            plural = "s" if len(missing) > 1 else ""
            self._post(member, MISSING, round_, f"rank{plural} {', '.join(missing)}".encode())
        elif kind == MINE:
            parts[member.rank] = data
        if len(parts) == self.size:
            del channel.rounds[round_]
            ordered = [parts[rank] for rank in range(self.size)]
            everything = struct.pack(f"<{self.size}Q", *map(len, ordered)) + b"".join(ordered)
            for peer in list(channel.members.values()):
                self._post(peer, ALL, round_, everything)

    def _lose(self, rank: int, how: str) -> None:
        """Note that a process is gone: for every channel there is, and every one to come."""
        if rank not in self._lost:
            self._lost[rank] = how
            for channel in list(self._channels.values()):
                self._tell(channel, rank, how)

    def _drop(self, member: _Member) -> None:
        """Note that a rank left one channel; its process may live on."""
        if member.channel.members.pop(member.rank, None) is not None:
            self._selector.unregister(member.sock)
            member.sock.close()
            self._tell(member.channel, member.rank, "ended or closed its communicator")

    def _tell(self, channel: _Channel, rank: int, how: str) -> None:
        if rank not in channel.lost:
            channel.lost[rank] = how
            for peer in list(channel.members.values()):
                self._post(peer, LOST, 0, f"rank {rank} {how}".encode())
        if len(channel.lost) == self.size:
            self._channels.pop(channel.number, None)

    def _post(self, member: _Member, kind: bytes, round_: int, data: bytes) -> None:
        member.outbox += HEADER.pack(kind, round_, len(data)) + data
        try:
            self._flush(member)
        except BlockingIOError:
            self._selector.modify(member.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, member)
        except OSError:
            self._drop(member)

    def _flush(self, member: _Member) -> None:
        while member.outbox:
            sent = member.sock.send(memoryview(member.outbox)[: 1 << 20])
            del member.outbox[:sent]
        self._selector.modify(member.sock, selectors.EVENT_READ, member)
