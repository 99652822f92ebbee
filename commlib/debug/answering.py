"""Answering: where ranks are on several hosts, two on each tell readers elsewhere what the ranks of their host are in.

A thread waits at a port for that, and costs calls nothing. It answers whoever signs with the key, which the ranks have
exchanged and each keeps where only its user can read it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from commlib.debug.card import HOSTS, Card, here
from commlib.debug.jobs import job_of
from commlib.debug.process import command_of, process
from commlib.debug.record import Record, Taken, records_of
from commlib.debug.wire import answer

ANSWERERS = 2  # on each host: one may be stopped
_PATIENCE_S = 2.0
_OPEN: set[Answering] = set()


class Answering:
    """The port of one rank, and its key."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.address = str(self._listener.getsockname()[0]), int(self._listener.getsockname()[1])
        self.key = secrets.token_hex(16)
        self._cards: Sequence[Card] = ()
        _OPEN.add(self)

    def start(self, cards: Sequence[Card], key: str) -> None:
        """Answer for those of these ranks that are on this host, from now on, whoever knows the key."""
        self._cards, self.key = cards, key
        threading.Thread(target=self._serve, name="commlib-debug", daemon=True).start()

    def close(self) -> None:
        """Stop."""
        _OPEN.discard(self)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def forget(self) -> None:
        """Close a parent's port in a forked child, which has no thread for it."""
        os.close(self._listener.detach())

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock, contextlib.suppress(OSError, ValueError):
                sock.settimeout(_PATIENCE_S)
                answer(sock, self.key.encode(), self._say)

    def _say(self, request: dict[str, Any]) -> dict[str, Any]:
        at_ns = time.monotonic_ns()
        pids = [card.pid for card in self._cards if card.place == here()]
        records = [record for pid in pids for record in records_of(pid)]
        for record in records:
            if request["sites"] is not None:
                record.keep_sites(request["sites"])
        first = _moment(records)
        time.sleep(request["apart_s"])
        moments = [first, _moment(records)]
        job = job_of(records)
        job.ask_stacks(pids)
        for record in records:
            record.close()
        found = {pid: [asdict(stack) for stack in job.ranks[pid].stacks] for pid in pids if pid in job.ranks}
        return {"at_ns": at_ns, "moments": moments, "stacks": found, "command": command_of(os.getpid())}


def _moment(records: Iterable[Record]) -> list[dict[str, Any]]:
    taken = [(record, record.taken()) for record in records]
    return [
        {"process": asdict(process(record.pid)), "head": _text(then.head), "slots": _slots(record, then)}
        for record, then in taken
    ]


def _slots(record: Record, taken: Taken) -> list[list[str]]:
    return [[_text(one), _text(again)] for one, again in record.recent(taken.slots)]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def keep_cards(cards: Sequence[Card]) -> int:
    """Keep cards where readers of this user find them; return the descriptor."""
    fd = os.memfd_create(HOSTS)
    os.fchmod(fd, 0o600)
    os.write(fd, json.dumps([str(card) for card in cards]).encode())
    return fd


def _forget() -> None:
    for one in list(_OPEN):
        one.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget)
