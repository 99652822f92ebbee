"""What backends with a native half have in common: native code gets the algorithms and the plan, and chooses."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from commlib.backends.base import Backend
from commlib.errors import Closed

if TYPE_CHECKING:
    from commlib._native import Calls, NcclGroup, ShmGroup

GroupT = TypeVar("GroupT", "ShmGroup", "NcclGroup")


class NativeBackend(Backend, ABC, Generic[GroupT]):
    """A backend whose group (csrc/shm/group.h, csrc/nccl/group.h) runs the calls."""

    native = True
    _group: GroupT | None = None  # None again once closed
    _inner = _stamped = False

    @property
    def native_group(self) -> GroupT:
        """The native half; an error once it is closed."""
        if self._group is None:
            raise Closed("this communicator is closed; call commlib.init() for a new one")
        return self._group

    def calls(self) -> Calls:
        """Return the native calls; they release the interpreter's lock, and find the stream on GPUs."""
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
