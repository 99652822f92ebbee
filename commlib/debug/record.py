"""The record of a process, csrc/record/layout.h, read from another one: its memfd describes where things are."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

from commlib.debug.record_types import CAPTURED, INNER, Call, Gpu, Graph, Peer, Slot, Total, Wait

NAME = "commlib.record"
VERSION = 6  # csrc/record/layout.h: kVersion
OPEN, CLOSED = 1, 2  # states of a slot
_HEAD = struct.Struct("=8sII")
_NO_REDUCTION = 255
_TAKEN = 0xFFFFFFFF  # csrc/record/layout.h: kTaken
_NUMBERS = {
    "u1": ctypes.c_uint8,
    "u2": ctypes.c_uint16,
    "u4": ctypes.c_uint32,
    "u8": ctypes.c_uint64,
    "i1": ctypes.c_int8,
    "i2": ctypes.c_int16,
    "i4": ctypes.c_int32,
    "i8": ctypes.c_int64,
    "f8": ctypes.c_double,
}


class Layout:
    """The structures of a record as ctypes has them, and the names of codes."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.slots: int = description["slots"]
        self.ops, self.dtypes, self.redops = (description[name] for name in ("ops", "dtypes", "redops"))
        self.bits: dict[str, Any] = description["what"]  # of csrc/shm/layout.h: Descriptor
        self._types, self._made = description["types"], dict[str, Any]()
        self.header, self.slot = self._structure("Header"), self._structure("Slot")

    def _structure(self, name: str) -> Any:
        if name not in self._made:
            fields, end = [], 0
            for field, (offset, kind) in sorted(self._types[name]["fields"].items(), key=lambda item: int(item[1][0])):
                c_type = self._c_type(kind)
                fields += [(f"_{end}", ctypes.c_char * (offset - end)), (field, c_type)]
                end = offset + ctypes.sizeof(c_type)
            fields.append((f"_{end}", ctypes.c_char * (self._types[name]["bytes"] - end)))
            self._made[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        return self._made[name]

    def _c_type(self, kind: str) -> Any:
        if "*" in kind:
            name, _, count = kind.partition("*")
            return self._structure(name) * int(count)
        return ctypes.c_char * int(kind[1:]) if kind[0] == "s" else _NUMBERS[kind]


@cache
def _layout(description: bytes) -> Layout:
    return Layout(json.loads(description))


def fields_of(structure: Any) -> dict[str, Any]:
    """Return the fields of a structure without nested ones by name."""
    values = ((name, getattr(structure, name)) for name, _ in structure._fields_ if not name.startswith("_"))
    return {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in values}


class Snapshot(NamedTuple):
    """What a record held at one moment: its header, and each slot twice, as it may change while it is copied."""

    header: Any
    slots: list[tuple[Any, Any]]


class Record:
    """The open record of one process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        magic, version, size = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
        if (magic.rstrip(b"\0"), version) != (b"commlib", VERSION):
            raise ValueError("not a record of this version of commlib")
        self.layout = _layout(os.pread(fd, size, _HEAD.size))
        header = self._copy(self.layout.header, 0)
        self.pid, self.parent, self.opened_ns = header.pid, header.parent, header.opened_ns

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self.fd)

    def snapshot(self) -> Snapshot:
        """Copy the open communicators and the last closed one."""
        closed = [at for at in self._places() if self._number(at, "state") == CLOSED]
        wanted = [at for at in self._places() if at not in closed]
        wanted += sorted(closed, key=lambda at: self._number(at, "opened_ns"))[-1:]
        slots = [(self._copy(self.layout.slot, at), self._copy(self.layout.slot, at)) for at in wanted]
        return Snapshot(self._copy(self.layout.header, 0), slots)

    def slots(self, snapshot: Snapshot | None = None) -> list[Slot]:
        """Return the communicators of a snapshot, by default of one made now, in the order in which they were made."""
        header, slots = snapshot or self.snapshot()
        reader = CallReader(self.layout, header)
        made = [_slot(reader, first, again) for first, again in slots if first.opened_ns == again.opened_ns]
        return sorted(made, key=lambda slot: slot.opened_ns)

    def mapped_slots(self) -> list[Any]:
        """Return the open slots as they are in the memory of the process, always up to date."""
        memory = mmap(self.fd, 0)
        slots = (self.layout.slot.from_buffer(memory, at) for at in self._places())
        return [slot for slot in slots if slot.state == OPEN]

    def call_reader(self) -> CallReader:
        """Return a reader of calls that uses the names that the record has now."""
        return CallReader(self.layout, self._copy(self.layout.header, 0))

    def open_communicators(self) -> set[int]:
        """Return the ids of those that the process has open, without reading their calls."""
        return {self._number(at, "id") for at in self._places() if self._number(at, "state") == OPEN}

    def keep_sites(self, on: bool) -> None:
        """Have its process keep where in the program each call is made."""
        os.pwrite(self.fd, struct.pack("=I", on), self.layout.header.wants_sites.offset)

    def watch_for(self, seconds: float) -> None:
        """Have its process ask its GPU more often, for so long."""
        until = time.monotonic_ns() + int(1e9 * seconds)
        os.pwrite(self.fd, struct.pack("=Q", until), self.layout.header.watched_until_ns.offset)

    def _copy(self, kind: Any, at: int) -> Any:
        return kind.from_buffer_copy(os.pread(self.fd, ctypes.sizeof(kind), at))

    def _number(self, at: int, field: str) -> int:
        place = getattr(self.layout.slot, field)
        return int.from_bytes(os.pread(self.fd, place.size, at + place.offset), sys.byteorder)

    def _places(self) -> list[int]:
        """Return where the slots that are in use begin; to read the others would allocate memory for them."""
        header, size = ctypes.sizeof(self.layout.header), ctypes.sizeof(self.layout.slot)
        places = (header + number * size for number in range(self.layout.slots))
        return [at for at in places if self._number(at, "state")]


class CallReader:
    """Makes calls of what a record has of them."""

    def __init__(self, layout: Layout, header: Any) -> None:
        self.layout = layout
        self._strings = bytes(header)[layout.header.strings.offset :]
        self._sites = bool(header.wants_sites)  # where it is off, places of calls are old

    def call(self, entry: Any, end: Any = None) -> Call:
        """Return a call: of a Brief, which shm has, or of an Entry; `end` may be its End."""
        fields = fields_of(entry) if hasattr(entry, "op") else self._unpacked(fields_of(entry))
        if end is not None and end.number == entry.number:
            fields["finished_ns"] = end.ns
        sited = self._sites or fields["flags"] & CAPTURED
        fields |= {
            "algorithm": self.string(fields["algorithm"]),
            "site": self.string(fields["site"]) if sited else "",
            "op": self.layout.ops[fields["op"]],
            "dtype": self.layout.dtypes[fields["dtype"]],
            "redop": "" if fields["redop"] == _NO_REDUCTION else self.layout.redops[fields["redop"]],
        }
        return Call(**fields)

    def string(self, at: int) -> str:
        """Return the string at a place of the record."""
        return self._strings[at : self._strings.index(b"\0", at)].decode(errors="replace")

    def _unpacked(self, brief: dict[str, Any]) -> dict[str, Any]:
        """Return a collective on shm with the fields that lie in one number, csrc/shm/layout.h: Descriptor."""
        bits = self.layout.bits
        names = ("op", "dtype", "redop", "root", "inner", "count")
        parts = {name: brief["what"] >> bits[name][0] & _all_ones(bits[name]) for name in names}
        op, no_root = self.layout.ops[parts["op"]], _all_ones(bits["root"])
        if op == "all_reduce_rms_norm":  # its form is in the root's place
            rows, width = parts["count"] >> bits["width"], parts["count"] & (1 << bits["width"]) - 1
            parts["count"], parts["root"] = rows * width, no_root
        elif op == "all_reduce_epilogue":
            parts["count"] &= (1 << bits["elements"]) - 1
        if parts["redop"] == _all_ones(bits["redop"]):
            parts["redop"] = _NO_REDUCTION
        if parts["root"] == no_root:
            parts["root"] = -1
        flags = INNER * parts.pop("inner")
        return {**brief, **parts, "flags": flags}


def _all_ones(bits: list[int]) -> int:
    """Return the largest number of a field of bits, which stands for none."""
    return (1 << bits[1]) - 1


def is_wait(wait: Any) -> bool:
    """Whether this place for a wait is in use, and written."""
    return wait.thread not in (0, _TAKEN)


def _slot(reader: CallReader, first: Any, again: Any) -> Slot:
    on_shm = again.backend == b"shm"
    ends = {end.number: end for end in again.ends} if on_shm else {}
    calls = _stable(first.calls, again.calls) if on_shm else _stable(first.entries, again.entries)
    gpu = Gpu(**fields_of(again.gpu[0]))
    graphs = {number: graph for number, graph in enumerate(again.graphs[: again.graphs_used], 1) if graph.calls}
    return Slot(
        id=again.id,
        rank=again.rank,
        world=again.world,
        backend=again.backend.decode(),
        opened_ns=again.opened_ns,
        timeout_s=again.timeout_s,
        closed=again.state == CLOSED,
        entered=again.entered,
        finished=again.finished,
        ended=again.ended.decode(errors="replace"),
        ended_kind=again.ended_kind.decode(),
        waits=(*(Wait(**fields_of(wait)) for wait in again.waits if is_wait(wait)), *gpu.waits),
        gpu=gpu,
        peers=tuple(Peer(**fields_of(peer)) for peer in again.peers[: again.world]),
        calls={call.number: reader.call(call, ends.get(call.number)) for call in calls},
        messages={call.number: reader.call(call) for call in _stable(first.messages, again.messages)},
        large={
            op: Total(**fields_of(total))
            for op, total in zip(reader.layout.ops, again.large, strict=True)
            if total.calls
        },
        graphs={
            number: Graph(**{**fields_of(graph), "site": reader.string(graph.site)}) for number, graph in graphs.items()
        },
    )


def _stable(first: Iterable[Any], again: Iterable[Any]) -> Iterator[Any]:
    """Yield the calls that did not change while they were copied."""
    return (one for one, other in zip(first, again, strict=True) if one.number and bytes(one) == bytes(other))


class Waited:
    """How long this process has waited for each peer of a communicator; of one without a record nothing is known."""

    def __init__(self, communicator: int) -> None:
        self._peers: list[Any] = []
        for record in records_of(os.getpid()) if communicator else ():
            for slot in record.mapped_slots():
                if slot.id == communicator:
                    self._peers = slot.peers[: slot.world]
            record.close()

    def by_rank(self) -> list[int]:
        """Return the nanoseconds so far."""
        return [peer.waited_ns for peer in self._peers]


def records_of(pid: int) -> list[Record]:
    """Open the records of a process; one that it has from its parent, since a fork, is not its own."""
    records = []
    for fd in descriptors(pid, NAME):
        record = opened(fd)
        if record is not None and record.pid == pid:
            records.append(record)
        elif record is not None:
            record.close()
    return records


def opened(path: Path) -> Record | None:
    """Open a record; None where it has gone, or is of another version."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return Record(fd)
    except (OSError, ValueError, struct.error):
        os.close(fd)
        return None


def descriptors(pid: int, name: str) -> list[Path]:
    """Return the descriptors of a process that are memory of this name."""
    paths = []
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if str(fd.readlink()).startswith(f"/memfd:{name}"):
                    paths.append(fd)
    except OSError:  # it ended, or is another user's
        pass
    return paths
