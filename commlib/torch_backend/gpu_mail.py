"""Messages between GPUs, as NCCL's group has them: a tag says nothing, and the source has a name.

Messages of one `batch_isend_irecv` go together, in one call of NCCL: none of them waits for another.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from inspect import unwrap
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from commlib.communicator import Communicator
from commlib.torch_backend.layout import flat
from commlib.torch_backend.mail import WAITS
from commlib.torch_backend.works import Done, Works

_BATCHES = unwrap(dist.batch_isend_irecv).__code__
_NEAR = 4  # frames between a message and the batch that it belongs to, at most


class GpuMail:
    """The messages of one communicator of GPUs."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._batch: Batch | None = None

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> dist.Work:
        """Send a tensor."""
        return self._message("send", flat(tensors[0]), dst, sys._getframe(2))

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> dist.Work:
        """Receive a tensor from a rank."""
        return self._message("recv", flat(tensors[0]), src, sys._getframe(2))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> dist.Work:
        """Refuse: a GPU cannot look who has sent something."""
        raise NotImplementedError("recv between GPUs needs a source: recv(tensor, src)")

    def start_batch(self) -> None:
        """Hold the messages that follow until end_batch()."""
        self._batch = Batch(self._comm)

    def end_batch(self) -> dist.Work | None:
        """Send those that were held; return their work, None without any."""
        batch, self._batch = self._batch, None
        return None if batch is None or not batch.parts else batch.go()

    def _message(self, name: str, x: Tensor, peer: int, caller: FrameType) -> dist.Work:
        messages = _batched(caller)
        if (batch := self._batch_for(messages)) is not None:
            batch.parts.append((name, x, peer))
            if batch.messages is not None and len(batch.parts) == len(batch.messages):
                self.end_batch()
            return batch
        run = getattr(self._comm._unordered, name)
        work = self._comm._message(name, run, x, peer, async_op=caller.f_code not in WAITS)
        return Done([x]) if work is None else work

    def _batch_for(self, messages: Sequence[Any] | None) -> Batch | None:
        """Return the batch that a message belongs to; what is left of one whose loop failed is dropped."""
        held = self._batch
        if held is not None and held.messages is None:
            return held
        if messages is None:
            self._batch = None
        elif held is None or held.messages is not messages:
            self._batch = Batch(self._comm, messages)
        return self._batch


def _batched(caller: FrameType) -> Sequence[Any] | None:
    """Return the messages of the batch_isend_irecv that makes this call; None for a call by itself.

    torch opens and closes such a batch in backends of C++ alone, and calls others once for each message.
    """
    frame: FrameType | None = caller
    for _ in range(_NEAR):
        if frame is None or frame.f_code is _BATCHES:
            break
        frame = frame.f_back
    return frame.f_locals["p2p_op_list"] if frame is not None and frame.f_code is _BATCHES else None


class Batch(Works):
    """Messages that go together; each of them has this work."""

    def __init__(self, comm: Communicator, messages: Sequence[Any] | None = None) -> None:
        super().__init__([])
        self._comm, self.messages = comm, messages  # None: until end_batch()
        self.parts: list[tuple[str, Tensor, int]] = []

    def go(self) -> Batch:
        """Send and receive them behind what the current stream has so far."""
        group: Any = self._comm._backend.native_group
        calls, parts = self._comm._unordered, self.parts

        def run() -> list[Tensor]:
            group.hold_messages(True)
            try:
                for name, x, peer in parts:
                    getattr(calls, name)(x, peer)
                group.send_held()
            finally:
                group.hold_messages(False)
            return [x for _, x, _ in parts]

        self._works = [self._comm._lanes.submit("batch", "batch_isend_irecv", run)]
        return self

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait for all; one that is incomplete, since its loop ended early, is an error."""
        if not self._works:
            raise RuntimeError(f"only {len(self.parts)} messages of this batch were given, so none was sent")
        return super().wait(timeout)
