"""Asking: what ranks on other hosts are in, as ranks there answer; of hosts that do not, the names are known."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commlib.debug.card import HOSTS, Card, elsewhere, here
from commlib.debug.kept import Call, Slot
from commlib.debug.process import Process
from commlib.debug.record import Record, Taken, descriptors
from commlib.debug.stacks import Frame, Stack
from commlib.debug.wire import ask, knock

KNOCK_S = 0.4  # a rank that is not stopped says something at once
WITHIN_S = 0.9  # a host has to answer, beyond the time between the two looks


@dataclass
class Seen:
    """A rank elsewhere at one moment, by the number that its process has here."""

    process: Process
    slots: list[Slot]
    started_by: int
    stacks: list[Stack]


@dataclass
class Host:
    """Another host of a job, and what its ranks were in at two moments; none: it has not answered."""

    name: str
    cards: list[Card]
    moments: list[list[Seen]] = field(default_factory=list)

    def ask(self, apart_s: float, sites: bool | None) -> None:
        """Ask its ranks that answer, one after the other, until one has."""
        for card in self.cards:
            with contextlib.suppress(OSError, ValueError, KeyError):
                self._ask(card, {"apart_s": apart_s, "sites": sites})
                return

    def _ask(self, card: Card, request: dict[str, Any]) -> None:
        if card.address is None:
            raise ValueError("a rank that does not answer")
        with socket.create_connection(card.address, timeout=KNOCK_S) as sock:
            number, asked_ns = knock(sock), time.monotonic_ns()
            sock.settimeout(request["apart_s"] + WITHIN_S)
            said = ask(sock, number, card.key.encode(), request)
        shift_ns = asked_ns - said["at_ns"]  # clocks of hosts begin when these start
        records = {int(one["process"]["pid"]): _record(one["head"]) for one in said["moments"][1]}
        self.moments = [[self._seen(one, said, records, shift_ns) for one in moment] for moment in said["moments"]]
        for record in records.values():
            record.close()

    def _seen(self, one: dict[str, Any], said: dict[str, Any], records: dict[int, Record], shift_ns: int) -> Seen:
        pid = int(one["process"]["pid"])
        number, record = self._number(pid), records[pid]
        pairs = [(_data(first), _data(again)) for first, again in one["slots"]]
        slots = [self._here(_shifted(slot, shift_ns)) for slot in record.slots(Taken(_data(one["head"]), pairs))]
        stacks = [_stack(stack) for stack in said["stacks"].get(str(pid), ())]
        return Seen(Process(**{**one["process"], "pid": number}), slots, record.parent, stacks)

    def _number(self, pid: int) -> int:
        return elsewhere(self.cards[0].place, pid) if pid > 0 else pid

    def _here(self, slot: Slot) -> Slot:
        """Give processes the numbers that they have here: of those on this host, their own."""
        mine = {elsewhere(here(), pid): pid for pid in _local_pids()}
        numbers = (mine.get(peer.pid, self._number(peer.pid)) for peer in slot.peers)
        peers = (replace(peer, pid=number) for peer, number in zip(slot.peers, numbers, strict=True))
        return replace(slot, peers=tuple(peers))


def _local_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - names alone


def other_hosts(records: Iterable[Record]) -> list[Host]:
    """Return the other hosts of a job, as its ranks here know them."""
    found: dict[tuple[str, str], Host] = {}
    for pid in {record.pid for record in records}:
        for fd in descriptors(pid, HOSTS):
            with contextlib.suppress(OSError, ValueError):
                for card in map(Card.read, json.loads(fd.read_bytes())):
                    host = found.setdefault(card.place, Host(card.host, []))
                    host.cards += [card] * (card not in host.cards)
    return [host for place, host in found.items() if place != here()]


def ask_all(hosts: Sequence[Host], apart_s: float, sites: bool | None = None) -> Callable[[], None]:
    """Ask hosts, all at once; return what waits for their answers."""
    threads = [threading.Thread(target=host.ask, args=(apart_s, sites), daemon=True) for host in hosts]
    deadline = time.monotonic() + apart_s + WITHIN_S
    for thread in threads:
        thread.start()

    def wait() -> None:
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))

    return wait


def _record(head: str) -> Record:
    fd = os.memfd_create("commlib.answer")
    os.write(fd, _data(head))
    return Record(fd)


def _data(text: str) -> bytes:
    return base64.b64decode(text)


def _stack(said: dict[str, Any]) -> Stack:
    return Stack(said["thread"], tuple(Frame(**frame) for frame in said["frames"]), said["collects"])


def _shifted(slot: Slot, ns: int) -> Slot:
    """Return it with the times that its moments have on this host's clock."""

    def moved(call: Call) -> Call:
        return replace(call, entered_ns=call.entered_ns + ns, finished_ns=call.finished_ns and call.finished_ns + ns)

    return replace(
        slot,
        opened_ns=slot.opened_ns + ns,
        waits=tuple(replace(wait, since_ns=wait.since_ns + ns) for wait in slot.waits),
        gpu=replace(slot.gpu, at_ns=slot.gpu.at_ns and slot.gpu.at_ns + ns, since_ns=slot.gpu.since_ns + ns),
        calls={number: moved(call) for number, call in slot.calls.items()},
        messages={number: moved(call) for number, call in slot.messages.items()},
    )
