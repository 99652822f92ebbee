"""The record of a process, csrc/record/layout.h, mapped into another one: its memfd describes where things are.

What it has, is read as data: communicators, their calls, waits, peers, graphs and GPUs.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from mmap import mmap
from pathlib import Path
from typing import Any

from commlib.counts import counted

GPU = 0xFFFFFFFF  # in the place of a thread
INNER, CAPTURED, SENDS = 1, 4, 8  # flags of a Call

NAME = "commlib.record"
VERSION = 7  # csrc/record/layout.h: kVersion
OPEN, CLOSED = 1, 2  # states of a slot
_HEAD = struct.Struct("=8sII")
_NO_REDUCTION = 255
_TAKEN = 0xFFFFFFFF  # csrc/record/layout.h: kTaken
_OF_SLOT = ("id", "rank", "world", "backend", "opened_ns", "timeout_s", "entered", "finished", "ended", "ended_kind")
_NUMBERS = {
    "u1": ctypes.c_uint8,
    "u2": ctypes.c_uint16,
    "u4": ctypes.c_uint32,
    "u8": ctypes.c_uint64,
    "i2": ctypes.c_int16,
    "i4": ctypes.c_int32,
    "f8": ctypes.c_double,
}


@dataclass(frozen=True)
class Call:
    number: int
    op: str
    dtype: str
    count: int
    redop: str
    root: int  # of a message, the peer
    algorithm: str
    site: str
    thread: int  # by the kernel's number
    entered_ns: int
    what: int  # what ranks must agree on
    flags: int
    finished_ns: int = 0
    stream: int = 0  # of a message, its number among those of its pair
    graph: int = 0  # that it was captured in

    @property
    def sends(self) -> bool:
        return bool(self.flags & SENDS)

    @property
    def details(self) -> str:
        """What ranks must agree on: 'float32, 8 elements, sum'."""
        parts = [] if self.op == "barrier" else [self.dtype, counted(self.count, "element")]
        parts += [self.redop] * bool(self.redop) + [f"root {self.root}"] * (self.root >= 0 and self.op != "send_recv")
        return ", ".join([*parts, "made inside another call"] if self.flags & INNER else parts)

    def __str__(self) -> str:
        """Return 'all_reduce #12 (float32, 8 elements, sum)'."""
        return f"{self.op} #{self.number}" + (f" ({self.details})" if self.details else "")


@dataclass(frozen=True)
class Wait:
    """A thread of a rank that waits for a peer, longer than it spins."""

    thread: int  # GPU: its kernel
    peer: int
    number: int
    since_ns: int
    message: int  # 1: to send the message of this number, 2: to receive it; 0: in a collective


@dataclass(frozen=True)
class Peer:
    """What a rank knows of another one."""

    pid: int
    name: int
    number: int
    what: int
    waits: int
    waited_ns: int


@dataclass(frozen=True)
class Graph:
    """Calls that were captured together; `over` counts those of commlib's kernels that have run, `kernels` a replay."""

    first: int
    what: int  # what ranks must agree on, in all of its calls
    over: int
    calls: int
    kernels: int
    site: str


@dataclass(frozen=True)
class Gpu:
    """Where the GPU of a rank is; `over` counts the calls of commlib's kernels, replayed ones included.

    `left_in` and its like are of the call that the GPU was in when the communicator ended, if it was in one.
    """

    at_ns: int
    over: int
    waits_in: int
    waits_for: int
    since_ns: int
    graph: int
    left_in: int
    left_graph: int
    left_of_graph: int
    what: str
    left_what: str

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The wait that its kernel is in, as that of a thread."""
        if self.at_ns == 0 or self.waits_in != self.over + 1 or self.left_in:
            return ()
        return (Wait(GPU, self.waits_for, self.waits_in, self.since_ns, 0),)


@dataclass(frozen=True)
class Total:
    """Calls in all: how many, their bytes, and their time from entry to end."""

    calls: int
    bytes: int
    ns: int


@dataclass(frozen=True)
class Slot:
    """A communicator as one of its ranks has it."""

    id: int
    rank: int
    world: int
    backend: str
    opened_ns: int
    timeout_s: float
    closed: bool
    entered: int
    finished: int
    ended: str  # the error that ended it
    ended_kind: str
    waits: tuple[Wait, ...]
    gpu: Gpu
    peers: tuple[Peer, ...]
    calls: dict[int, Call]
    messages: dict[int, Call]
    large: dict[str, Total]  # by operation: its calls of 64 KiB and more
    graphs: dict[int, Graph]  # that have been captured, by number

    @property
    def under_way(self) -> Call | None:
        return self.calls.get(self.entered) if self.entered > self.finished and not self.handed_over else None

    def calls_since(self, before: Slot) -> int:
        """Return how many calls it has made, or its GPU has run, since then: replays make calls without the program."""
        return max(self.entered - before.entered, self.gpu.over - before.gpu.over)

    @property
    def by_torch(self) -> bool:
        """Whether torch's process group makes its calls: it does not say for whom it waits."""
        return self.backend.startswith("torch")

    @property
    def handed_over(self) -> bool:
        """Whether that is one of which nobody knows when a call ends."""
        return self.backend.startswith("torch ")


class _Layout:
    """The structures of a record as ctypes has them, and the names of codes."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.ops, self.dtypes, self.redops = (description[name] for name in ("ops", "dtypes", "redops"))
        self.bits: dict[str, Any] = description["what"]  # of csrc/shm/layout.h: Descriptor
        self._types, self._made = description["types"], dict[str, Any]()
        self.header, self.slots = self._structure("Header"), self._structure("Slot") * int(description["slots"])

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
def _layout(description: bytes) -> _Layout:
    return _Layout(json.loads(description))


def fields_of(structure: Any) -> dict[str, Any]:
    """Return the fields of a structure by name, without arrays of other structures."""
    values = ((name, getattr(structure, name)) for name, _ in structure._fields_ if not name.startswith("_"))
    plain = ((name, value) for name, value in values if not isinstance(value, ctypes.Array))
    return {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in plain}


Snapshot = list[tuple[Any, Any]]
"""Slots at one moment, each copied twice, as it may change meanwhile."""


class Record:
    """The record of one process, mapped; `header` and `mapped_slots` are always up to date."""

    def __init__(self, memory: mmap) -> None:
        magic, version, size = _HEAD.unpack_from(memory)
        if (magic.rstrip(b"\0"), version) != (b"commlib", VERSION):
            raise ValueError("not a record of this version of commlib")
        self._memory, self._layout = memory, _layout(memory[_HEAD.size : _HEAD.size + size])
        self.header = self._layout.header.from_buffer(memory)
        self._slots = self._layout.slots.from_buffer(memory, ctypes.sizeof(self.header))
        self.pid: int = self.header.pid

    def mapped_slots(self) -> list[Any]:
        """Return the slots in use; to read all of the others would allocate memory for them."""
        return [slot for slot in takewhile(lambda slot: slot.opened_ns, self._slots) if slot.state]

    def snapshot(self) -> Snapshot:
        """Copy the open communicators and the last closed one."""
        slots = sorted(self.mapped_slots(), key=lambda slot: int(slot.opened_ns))
        wanted = [slot for slot in slots if slot.state == CLOSED][-1:] + [slot for slot in slots if slot.state == OPEN]
        return [(type(slot).from_buffer_copy(slot), type(slot).from_buffer_copy(slot)) for slot in wanted]

    def slots(self, snapshot: Snapshot | None = None) -> list[Slot]:
        """Return the communicators of a snapshot, by default of one made now, in the order in which they were made."""
        pairs = self.snapshot() if snapshot is None else snapshot
        slots = [self._slot(first, again) for first, again in pairs if first.opened_ns == again.opened_ns]
        return sorted(slots, key=lambda slot: slot.opened_ns)

    def in_use(self) -> bytes:
        """Return the record without the slots that have never been used."""
        count = len(list(takewhile(lambda slot: slot.opened_ns, self._slots)))
        return self._memory[: ctypes.sizeof(self.header) + count * ctypes.sizeof(self._layout.slots._type_)]

    def watch_for(self, seconds: float) -> None:
        self.header.watched_until_ns = time.monotonic_ns() + int(1e9 * seconds)

    def call(self, entry: Any, end: Any = None) -> Call:
        """Return a call: of a Brief, which shm has, or of an Entry; `end` may be its End."""
        fields = fields_of(entry) if hasattr(entry, "op") else self._unpacked(fields_of(entry))
        if end is not None and end.number == entry.number:
            fields["finished_ns"] = end.ns
        sited = self.header.wants_sites or fields["flags"] & CAPTURED  # where it is off, places of calls are old
        fields |= {
            "algorithm": self._string(fields["algorithm"]),
            "site": self._string(fields["site"]) if sited else "",
            "op": self._layout.ops[fields["op"]],
            "dtype": self._layout.dtypes[fields["dtype"]],
            "redop": "" if fields["redop"] == _NO_REDUCTION else self._layout.redops[fields["redop"]],
        }
        return Call(**fields)

    def _string(self, at: int) -> str:
        start = self._layout.header.strings.offset + at
        return self._memory[start : self._memory.find(b"\0", start)].decode(errors="replace")

    def _unpacked(self, brief: dict[str, Any]) -> dict[str, Any]:
        """Return a collective on shm with the fields that lie in one number, csrc/shm/layout.h: Descriptor."""
        bits = self._layout.bits
        names = ("op", "dtype", "redop", "root", "inner", "count")
        parts = {name: brief["what"] >> bits[name][0] & _all_ones(bits[name]) for name in names}
        op, no_root = self._layout.ops[parts["op"]], _all_ones(bits["root"])
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

    def _slot(self, first: Any, again: Any) -> Slot:
        on_shm = again.backend == b"shm"
        ends = {end.number: end for end in again.ends} if on_shm else {}
        calls = _stable(first.calls, again.calls) if on_shm else _stable(first.entries, again.entries)
        gpu = Gpu(**fields_of(again.gpu[0]))
        graphs = enumerate(again.graphs[: again.graphs_used], 1)
        large = zip(self._layout.ops, again.large, strict=True)
        plain = fields_of(again)
        return Slot(
            **{name: plain[name] for name in _OF_SLOT},
            closed=again.state == CLOSED,
            waits=(*(Wait(**fields_of(wait)) for wait in again.waits if is_wait(wait)), *gpu.waits),
            gpu=gpu,
            peers=tuple(Peer(**fields_of(peer)) for peer in again.peers[: again.world]),
            calls={call.number: self.call(call, ends.get(call.number)) for call in calls},
            messages={call.number: self.call(call) for call in _stable(first.messages, again.messages)},
            large={op: Total(**fields_of(total)) for op, total in large if total.calls},
            graphs={
                number: Graph(**{**fields_of(graph), "site": self._string(graph.site)})
                for number, graph in graphs
                if graph.calls
            },
        )


def _all_ones(bits: list[int]) -> int:
    """Return the largest number of a field of bits, which stands for none."""
    return (1 << bits[1]) - 1


def _stable(first: Iterable[Any], again: Iterable[Any]) -> Iterator[Any]:
    """Yield the calls that did not change while they were copied."""
    return (one for one, other in zip(first, again, strict=True) if one.number and bytes(one) == bytes(other))


def is_wait(wait: Any) -> bool:
    return wait.thread not in (0, _TAKEN)


def peers_of(communicator: int) -> list[Any]:
    """Return what this process knows of each peer of a communicator, always up to date; without a record, nothing."""
    slots = (slot for record in records_of(os.getpid()) for slot in record.mapped_slots())
    mine = [slot for slot in slots if communicator and (slot.id, slot.state) == (communicator, OPEN)]
    return list(mine[0].peers[: mine[0].world]) if mine else []


def records_of(pid: int) -> list[Record]:
    """Open the records of a process; one that it has from its parent, since a fork, does not count."""
    records = map(opened, descriptors(pid, NAME))
    return [record for record in records if record is not None and record.pid == pid]


def opened(path: Path) -> Record | None:
    """Open a record; None where it has gone, or is of another version."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:  # else memory could vanish while it is read
            return Record(mmap(fd, 0))
    except (OSError, ValueError, struct.error):
        pass
    finally:
        os.close(fd)
    return None


def descriptors(pid: int, name: str) -> list[Path]:
    """Return the descriptors of a process that are memory of this name; of several for the same memory, the last."""
    paths: dict[int, Path] = {}
    with suppress(OSError):  # it ended, or is another user's
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if str(fd.readlink()).startswith(f"/memfd:{name}"):
                    paths[fd.stat().st_ino] = fd  # Python's mmap has another one
    return list(paths.values())
