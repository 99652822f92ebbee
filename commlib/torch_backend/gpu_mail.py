"""Messages between GPUs: torch's own engine over NCCL sends them, as two ranks may begin while the others do not.

All ranks make a communicator of commlib together; NCCL's engine makes one for each pair. A tag says nothing to it, and
a source must have a name. Messages of one `batch_isend_irecv` go together: none of them waits for another.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from inspect import unwrap
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from commlib.counts import counted
from commlib.torch_backend.layout import flat
from commlib.torch_backend.works import Works

_BATCHES = unwrap(dist.batch_isend_irecv).__code__
_NEAR = 4  # frames between a message and the batch that it belongs to, at most


class GpuMail:
    """The messages of one group; `make` gives the engine when the first one comes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None
        self._batch: Batch | None = None

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> dist.Work:
        """Send a tensor."""
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> dist.Work:
        """Receive a tensor from a rank."""
        return self._message("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> dist.Work:
        """Refuse: a GPU cannot look who has sent something."""
        raise NotImplementedError("recv between GPUs needs a source: recv(tensor, src)")

    def start_batch(self) -> None:
        """Hold the messages that follow until end_batch()."""
        self._batch = Batch(self._engine())

    def end_batch(self) -> dist.Work | None:
        """Send those that were held; return their work, None without any."""
        batch, self._batch = self._batch, None
        return None if batch is None or not batch.parts else batch.go()

    def _engine(self) -> Any:
        self._made = self._made or self._make()
        return self._made

    def _message(self, name: str, tensors: Sequence[Tensor], peer: int, tag: int) -> dist.Work:
        rows = [flat(x) for x in tensors]
        if name == "recv" and rows[0].data_ptr() != tensors[0].data_ptr():
            raise ValueError("recv between GPUs needs memory without gaps; pass a contiguous tensor and copy from it")
        batch = self._batch_for(_batched(sys._getframe(3)))  # behind the group's method
        if batch is None:
            work: dist.Work = getattr(self._engine(), name)(rows, peer, tag)
            return work
        batch.parts.append((name, rows, peer, tag))
        if batch.messages is not None and len(batch.parts) == len(batch.messages):
            self.end_batch()
        return batch

    def _batch_for(self, messages: Sequence[Any] | None) -> Batch | None:
        """Return the batch that a message belongs to; what is left of one whose loop failed is dropped."""
        held = self._batch
        if held is not None and held.messages is None:
            return held
        if messages is None:
            self._batch = None
        elif held is None or held.messages is not messages:
            self._batch = Batch(self._engine(), messages)
        return self._batch


def _batched(caller: FrameType) -> Sequence[Any] | None:
    """Return the messages of the batch_isend_irecv that makes this call; None for a call by itself.

    torch opens and closes such a batch in groups of C++ alone, and calls others once for each message.
    """
    frame: FrameType | None = caller
    for _ in range(_NEAR):
        if frame is None or frame.f_code is _BATCHES:
            break
        frame = frame.f_back
    return frame.f_locals["p2p_op_list"] if frame is not None and frame.f_code is _BATCHES else None


class Batch(Works):
    """Messages that go together; each of them has this work."""

    def __init__(self, engine: Any, messages: Sequence[Any] | None = None) -> None:
        super().__init__([])
        self._engine, self.messages = engine, messages  # None: until end_batch()
        self.parts: list[tuple[str, list[Tensor], int, int]] = []

    def go(self) -> Batch:
        """Send and receive them behind what the current stream has so far."""
        self._engine._start_coalescing()
        for name, rows, peer, tag in self.parts:
            getattr(self._engine, name)(rows, peer, tag)
        self._works = [self._engine._end_coalescing()]
        return self

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait for all; one that is incomplete, since its loop ended early, is an error."""
        if not self._works:
            raise RuntimeError(f"this batch was given only {counted(len(self.parts), 'message')}, so none was sent")
        return super().wait(timeout)
