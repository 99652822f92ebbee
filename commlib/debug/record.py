"""The record of a process, csrc/record/layout.h, read from another one: its memfd says itself where things are."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

from commlib.debug.kept import CAPTURED, INNER, Call, Gpu, Graph, Peer, Slot, Total, Wait

NAME = "commlib.record"
VERSION = 6  # csrc/record/layout.h: kVersion
_HEAD = struct.Struct("=8sII")
_NO_REDUCTION = 255
_TAKEN = 0xFFFFFFFF  # csrc/record/layout.h: kTaken
_OPEN, _STATE, _NUMBER = 1, struct.Struct("=I"), struct.Struct("=Q")  # of a slot: its state in use, and two types


class Taken(NamedTuple):
    """What a record held at one moment: its head, and each slot twice."""

    head: bytes
    slots: list[tuple[bytes, bytes]]


class Record:
    """The open record of one process; `slots()` is what it says now."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        magic, self.version, size = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
        if (magic.rstrip(b"\0"), self.version) != (b"commlib", VERSION):
            raise ValueError("not a record of this version of commlib")
        self._described: dict[str, Any] = json.loads(os.pread(fd, size, _HEAD.size))
        self._types = {name: _Type(name, self._described["types"]) for name in self._described["types"]}
        self._header = self._types["Header"]
        head = self._header.read(os.pread(fd, self._header.size, 0))
        self.pid, self.parent, self.opened_ns = int(head["pid"]), int(head["parent"]), int(head["opened_ns"])

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self.fd)

    def taken(self) -> Taken:
        """Copy the communicators as they are, twice: what changes meanwhile is left out."""
        size = self.layout("Slot").size
        head = os.pread(self.fd, self._header.size, 0)
        return Taken(head, [(os.pread(self.fd, size, at), os.pread(self.fd, size, at)) for at in self.slot_places()])

    def slots(self, taken: Taken | None = None) -> list[Slot]:
        """Return the open communicators and the last closed one, in the order in which they were made."""
        taken = taken or self.taken()
        self._strings = taken.head[self._header.place("strings") :]
        self._sites = self._header.read(taken.head)["wants_sites"]  # where it is off, places of calls are old
        kind, found = self.layout("Slot"), []
        for one, other in self.recent(taken.slots):
            first, again = kind.read(one), kind.read(other)
            if first["opened_ns"] == again["opened_ns"]:
                found.append(self._slot(first, again, self._described))
        return sorted(found, key=lambda slot: slot.opened_ns)

    def collects(self, taken: Taken) -> int:
        """Return the thread that was in Python's garbage collection; 0: none."""
        return int(self._header.read(taken.head)["collects"])

    def unrecorded(self, taken: Taken) -> int:
        """Return how many open communicators had no room in it."""
        return int(self._header.read(taken.head)["unrecorded"])

    def recent(self, slots: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Leave out those that were closed long ago: a process may have had many, and to read one takes long."""
        place = {name: self.layout("Slot").place(name) for name in ("state", "opened_ns")}
        opened = [pair for pair in slots if _STATE.unpack_from(pair[1], place["state"])[0] == _OPEN]
        closed = [pair for pair in slots if _STATE.unpack_from(pair[1], place["state"])[0] != _OPEN]
        return opened + sorted(closed, key=lambda pair: _NUMBER.unpack_from(pair[1], place["opened_ns"]))[-1:]

    def open_communicators(self) -> set[int]:
        """Return those that the process has open, by their ids: quick, however many it has had."""
        kind = self.layout("Slot")

        def number(what: struct.Struct, at: int) -> int:
            return int(what.unpack(os.pread(self.fd, what.size, at))[0])

        opened = (at for at in self.slot_places() if number(_STATE, at + kind.place("state")) == _OPEN)
        return {number(_NUMBER, at + kind.place("id")) for at in opened}

    def layout(self, name: str) -> _Type:
        """Return where things are in a structure, such as a Slot."""
        return self._types[name]

    def slot_places(self) -> list[int]:
        """Return where the slots that are in use begin."""
        size = self.layout("Slot").size
        places = (self._header.size + number * size for number in range(self._described["slots"]))
        return [at for at in places if os.pread(self.fd, 4, at) != bytes(4)]

    def call(self, brief: dict[str, Any], end: dict[str, Any] | None = None) -> Call:
        """Return a collective, and when it ended where that is its end."""
        call = self._call(brief if "count" in brief else self._unpacked(brief), self._described)
        return replace(call, finished_ns=end["ns"]) if end and end["number"] == call.number else call

    def keep_sites(self, on: bool) -> None:
        """Have its process keep where in the program each call is made."""
        os.pwrite(self.fd, struct.pack("=I", on), self._header.place("wants_sites"))

    def watch_for(self, seconds: float) -> None:
        """Have its process ask its GPU more often, for so long."""
        until = time.monotonic_ns() + int(1e9 * seconds)
        os.pwrite(self.fd, struct.pack("=Q", until), self._header.place("watched_until_ns"))

    def _slot(self, first: dict[str, Any], again: dict[str, Any], names: dict[str, Any]) -> Slot:
        def stable(field: str, read: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[int, Call]:
            pairs = zip(first[field], again[field], strict=True)
            made = [read(one) for one, other in pairs if one["number"] and one == other]
            return {one["number"]: self._call(one, names) for one in made}

        plain = {key: again[key] for key in ("id", "rank", "world", "backend", "opened_ns", "timeout_s")}
        gpu = Gpu(**again["gpu"][0])
        on_shm = again["backend"] == "shm"
        return Slot(
            **plain,
            gpu=gpu,
            closed=again["state"] == 2,
            entered=again["entered"],
            finished=again["finished"],
            ended=again["ended"],
            ended_kind=again["ended_kind"],
            waits=(*(Wait(**wait) for wait in again["waits"] if is_wait(wait["thread"])), *gpu.waits),
            peers=tuple(Peer(**peer) for peer in again["peers"][: again["world"]]),
            calls=self._ended(stable("calls", self._unpacked), again["ends"]) if on_shm else stable("entries", dict),
            messages=stable("messages", dict),
            graphs={
                number: Graph(**{**graph, "site": self._string(graph["site"])})
                for number, graph in enumerate(again["graphs"], 1)
                if graph["calls"]
            },
            large={names["ops"][op]: Total(**total) for op, total in enumerate(again["large"]) if total["calls"]},
        )

    @staticmethod
    def _ended(calls: dict[int, Call], ends: list[dict[str, Any]]) -> dict[int, Call]:
        at = {end["number"]: end["ns"] for end in ends}
        return {number: replace(call, finished_ns=at.get(number, 0)) for number, call in calls.items()}

    def _unpacked(self, brief: dict[str, Any]) -> dict[str, Any]:
        """Return a collective on shm with the fields that lie in one number, csrc/shm/layout.h: Descriptor."""
        fields = self._described["what"]
        parts = {
            name: brief["what"] >> place[0] & _most(place) for name, place in fields.items() if isinstance(place, list)
        }
        op, count, no_redop, no_root = (
            self._described["ops"][parts["op"]],
            parts["count"],
            _most(fields["redop"]),
            _most(fields["root"]),
        )
        if op == "all_reduce_rms_norm":  # its form is in the root's place
            count, parts["root"] = (count >> fields["width"]) * (count & (1 << fields["width"]) - 1), no_root
        elif op == "all_reduce_epilogue":
            count &= (1 << fields["elements"]) - 1
        parts["redop"] = _NO_REDUCTION if parts["redop"] == no_redop else parts["redop"]
        parts["root"] = -1 if parts["root"] == no_root else parts["root"]
        return {**brief, **parts, "count": count, "flags": INNER * parts["inner"]}

    def _call(self, entry: dict[str, Any], names: dict[str, Any]) -> Call:
        code = entry["redop"]
        redop = "" if code == _NO_REDUCTION else names["redops"][code]
        op, dtype = names["ops"][entry["op"]], names["dtypes"][entry["dtype"]]
        sited = self._sites or entry["flags"] & CAPTURED  # the site of another call may be an old one
        places = {"algorithm": self._string(entry["algorithm"]), "site": self._string(entry["site"] if sited else 0)}
        entry.pop("inner", None)
        return Call(**{**entry, **places, "op": op, "dtype": dtype, "redop": redop})

    def _string(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode(errors="replace")


class _Type:
    """A structure, as the description has it; nested ones are read by their own."""

    def __init__(self, name: str, types: dict[str, Any]) -> None:
        self._types, self._fields, self.size = types, types[name]["fields"], types[name]["bytes"]

    def place(self, field: str) -> int:
        """Return where a field begins."""
        return int(self._fields[field][0])

    def part(self, field: str) -> tuple[int, _Type, int]:
        """Return where an array of structures begins, their type, and how many there are."""
        return next((at, kind, times) for name, at, kind, times in self._nested if name == field)

    @cached_property
    def _plain(self) -> struct.Struct:
        """The plain fields, in order, with the room between them."""
        text, end = "=", 0
        for at, kind in sorted(self._fields.values()):
            if kind[0] in "iufs":
                text += f"{at - end}x{_CODES.get(kind) or kind[1:] + 's'}"
                end = at + int(kind[1:])
        return struct.Struct(text)

    @cached_property
    def _names(self) -> list[str]:
        return [name for name, (_, kind) in sorted(self._fields.items(), key=lambda item: item[1]) if kind[0] in "iufs"]

    @cached_property
    def _nested(self) -> list[tuple[str, int, _Type, int]]:
        nested = [(name, at, *kind.split("*")) for name, (at, kind) in self._fields.items() if kind[0] not in "iufs"]
        return [(name, at, _Type(kind, self._types), int(times)) for name, at, kind, times in nested]

    def read(self, data: bytes | mmap, start: int = 0) -> dict[str, Any]:
        """Return the fields by name; of an array `graphs` as many as `graphs_used` says."""
        values = (_text(value) for value in self._plain.unpack_from(data, start))
        found: dict[str, Any] = dict(zip(self._names, values, strict=True))
        for name, at, kind, times in self._nested:
            used = found.get(f"{name}_used", times)
            places = range(start + at, start + at + used * kind.size, kind.size)
            found[name] = [kind.read(data, at) if any(data[at : at + kind.size]) else kind.unused for at in places]
        return found

    @cached_property
    def unused(self) -> dict[str, Any]:
        """What is read where nothing was written."""
        return self.read(bytes(self.size))


def is_wait(thread: int) -> bool:
    """Whether the place of a wait with this thread is in use, and written."""
    return thread not in (0, _TAKEN)


def _most(place: list[int]) -> int:
    """Return the largest number of a field of bits, which stands for none."""
    return (1 << place[1]) - 1


_CODES = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "f8": "d"}


def _text(value: Any) -> Any:
    return value.partition(b"\0")[0].decode(errors="replace") if isinstance(value, bytes) else value


def records_of(pid: int) -> list[Record]:
    """Open the records of a process; one that it has from its parent, since a fork, is not its own."""
    found = []
    for fd in descriptors(pid, NAME):
        record = opened(fd)
        if record is not None and record.pid == pid:
            found.append(record)
        elif record is not None:
            record.close()
    return found


def opened(fd: Path) -> Record | None:
    """Open a record; None where it has gone, or is of another version."""
    try:
        own = os.open(fd, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return Record(own)
    except (OSError, ValueError, struct.error):
        os.close(own)
        return None


def descriptors(pid: int, name: str) -> list[Path]:
    """Return the descriptors of a process that are memory of this name."""
    found = []
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if str(fd.readlink()).startswith(f"/memfd:{name}"):
                    found.append(fd)
    except OSError:  # it ended, or is another user's
        pass
    return found
