"""What the backends with a native half have in common: it is told the rows and the plan, and choices are its own."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.dlpack

from commlib import native
from commlib.backends.base import Backend
from commlib.backends.rules import Rows


class NativeBackend(Backend, ABC):
    """A backend whose group (csrc/shm/group.h, csrc/nccl/group.h) runs the calls."""

    native = True
    _group: Any = None
    _inner = False

    def learn(self, rows: Rows, text: str) -> None:
        """Tell the group what the rows say."""
        super().learn(rows, text)
        self._group.learn(text)

    def take_plan(self, text: str) -> None:
        """Compile the rules into the group's table."""
        self._group.set_plan(text)

    def bind(self, name: str) -> Callable[..., Any]:
        """Return the native function; the interpreter's lock is its own business."""
        return native.keep_interpreter(self._group.bind(name))

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes of this rank's arena; the tensor keeps them alive, also past close()."""
        return torch.utils.dlpack.from_dlpack(self._group.empty(num_bytes))

    @contextmanager
    def inner(self) -> Iterator[None]:
        """Mark the calls inside as part of another one."""
        before, self._inner = self._inner, True
        self._group.set_inner(True)
        try:
            yield
        finally:
            self._inner = before
            if self._group is not None:
                self._group.set_inner(before)

    def check(self) -> None:
        """Raise what ended the communicator, or PeerLost if a peer died."""
        self._group.check()

    def abort(self, why: str) -> None:
        """End it for all ranks: who waits looks for the reason."""
        self._group.abort(why)
