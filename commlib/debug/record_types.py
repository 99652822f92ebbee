"""What the record of a process has, as data: communicators, their calls, waits, peers, graphs and GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from commlib.counts import counted

GPU = 0xFFFFFFFF  # in the place of a thread
INNER, CAPTURED, SENDS = 1, 4, 8  # flags of a Call


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
        """Of a message: whether this rank sends it."""
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
        """The collective that it is in."""
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
