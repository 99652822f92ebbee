"""What every backend offers the communicator: resources, and nothing that chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from commlib.errors import CLOSED_TEXT, Closed, Unsupported
from commlib.native import library

GroupT = TypeVar("GroupT", "library.ShmGroup", "library.NcclGroup")
Choose = Callable[[str, int, str, str], str]
"""Returns the algorithm of a call: an operation, its bytes, element type and reduction."""


@dataclass(frozen=True)
class Options:
    """What the ranks agreed on before any backend was made."""

    timeout_s: float
    max_bytes: int
    checked: bool
    max_sms: int = 0  # multiprocessors of a GPU that a call may take; 0: all
    cpus: bool = False  # tensors are on the CPU, whatever GPUs there are
    other_backends: Sequence[str] = ()  # of communicators that share COMMLIB_PLAN and plan=
    nccl_comm: Any = None  # to run on instead of one of our own: nccl4py's, a torch group's, an address

    @property
    def shared(self) -> dict[str, Any]:
        """What a split takes over: all but the communicator of NCCL, which is of these ranks."""
        return {name: value for name, value in vars(self).items() if name != "nccl_comm"}


class Backend(ABC):
    """A rank's communicator, memory and flags; closed explicitly, and twice is fine."""

    name: str
    native: bool
    device: torch.device
    rank: int
    size: int
    has_arena = True  # there is symmetric memory
    multiprocessors = 0  # that a call may take, of the smallest GPU of the ranks
    recorded_as = 0  # its communicator in the record of this process; 0: not in there
    recorder: library.Recorder | None = None  # without native code: of its calls
    choose: Choose  # without native code: what the plan in force says of a call

    @property
    def plan_name(self) -> str:
        """The shipped plan to use, by its file's name."""
        return self.name

    @property
    def native_group(self) -> library.ShmGroup | library.NcclGroup | None:
        """The native half, which gets the algorithms and the plan; without one the engine chooses."""
        return None

    def calls(self) -> library.Calls:
        """Return the collectives of a native backend; they keep what it holds."""
        raise Unsupported(f"the {self.name} backend has no native code")

    def stamp(self, room: int) -> torch.Tensor | None:
        """Stamp calls from now on, in the tensor that is returned, or no longer if there is room for none."""
        raise Unsupported(f"calls are stamped by native code, which the {self.name} backend has not; use shm or nccl")

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Run the Python half of a collective; a backend whose engine has errors of its own makes them ours."""
        return call()

    def as_first(self) -> AbstractContextManager[None]:
        """Let a communicator made inside count as the first one of its process, which takes more of a GPU."""
        return nullcontext()

    def inner(self) -> AbstractContextManager[None]:
        """Mark the calls inside as part of another one: a peer's ordinary call does not match them."""
        return nullcontext()

    @abstractmethod
    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialised bytes in symmetric memory."""

    def holds(self, x: torch.Tensor) -> bool:
        """Whether a tensor lies in symmetric memory."""
        return False

    def symmetric(self) -> AbstractContextManager[None]:
        """Put torch's own allocations into symmetric memory, where the allocator can be redirected."""
        raise Unsupported(f"symmetric() is not available on {self.name}; allocate with comm.empty(shape, dtype)")

    @abstractmethod
    def check(self) -> None:
        """Raise if the world has ended or a peer is gone."""

    @abstractmethod
    def abort(self, why: str) -> None:
        """End the communicator for all ranks; calls under way raise."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; what a peer does or does not do delays it by seconds at most."""

    def leave(self) -> None:
        """Tell the peers that this process ends; what it holds goes with it."""
        self.close()

    def abandon(self) -> None:
        """Forget everything without telling the peers: what a forked child does with its parent's."""
        self.close()


class NativeBackend(Backend, ABC, Generic[GroupT]):
    """A backend whose group (csrc/shm/group.h, csrc/nccl/group.h) runs the calls."""

    native = True
    _group: GroupT | None = None  # None again once closed
    _inner = _stamped = False

    @property
    def native_group(self) -> GroupT:
        if self._group is None:
            raise Closed(CLOSED_TEXT)
        return self._group

    def calls(self) -> library.Calls:
        return self.native_group.calls()

    def stamp(self, room: int) -> torch.Tensor | None:
        """Let the group stamp calls (csrc/include/commlib/stamps.h); on GPUs their kernels then have marks, too."""
        self._stamped = room > 0
        return self.native_group.stamp(room)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes of this rank's arena; the tensor keeps them alive, also past close()."""
        return self.native_group.empty(num_bytes)

    def holds(self, x: torch.Tensor) -> bool:
        return self.native_group.holds(x)

    @contextmanager
    def inner(self) -> Iterator[None]:
        before, self._inner = self._inner, True
        self.native_group.set_inner(True)
        try:
            yield
        finally:
            self._inner = before
            if self._group is not None:
                self._group.set_inner(before)

    def check(self) -> None:
        self.native_group.check()

    def abort(self, why: str) -> None:
        self.native_group.abort(why)

    def abandon(self) -> None:
        self.native_group.abandon()
