"""Messages as torch has them: on the CPU with a tag, and from any rank; between GPUs by torch's engine over NCCL.

On the CPU each message goes behind a header: its tag, its type and its size. A receiver that gets another tag than the
one it wants stores that message for the call that asks for it.

Between GPUs torch's engine sends them, as two ranks may begin while the others do not: all ranks make a communicator of
commlib together, and NCCL's engine makes one for each pair. It ignores tags, and a source must have a name. Messages of
one `batch_isend_irecv` go together: none of them waits for another.
"""

from __future__ import annotations

import datetime
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache
from inspect import unwrap
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.errors import CommTimeout
from commlib.torch_backend.arguments import flat, joined, room_for, spread, write
from commlib.torch_backend.works import Done, Works

_DTYPES = sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_LONGEST_NAP_S = 0.0005
# torch's send and recv wait for the work at once: then the message is sent here, without another thread.
WAITS = {unwrap(dist.send).__code__, unwrap(dist.recv).__code__}
_BATCHES = unwrap(dist.batch_isend_irecv).__code__
_NEAR = 4  # frames between a message and the batch that it belongs to, at most


class HostMessages:
    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._stored: defaultdict[int, deque[tuple[int, Tensor]]] = defaultdict(deque)
        self._taking: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # one receiver a peer at a time

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> dist.Work:
        def post(x: Tensor, dst: int) -> None:
            make, row = self._comm.dispatcher.make, joined([x])
            make("send", torch.tensor([tag, _CODES[x.dtype], x.numel()], device="cpu"), dst)
            make("send", row, dst)

        return self._message("send", post, tensors[0], dst)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> dist.Work:
        def take(x: Tensor, src: int) -> None:
            into = room_for([x])
            self._take(into, src, tag)
            spread(into, [x])

        return self._message("recv", take, tensors[0], src)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> dist.Work:
        """Receive a tensor from whichever rank sends one; the work says which."""
        group: Any = self._comm.resources.native_group
        if not hasattr(group, "has_message"):
            raise NotImplementedError(f"recv from any rank is not available on {self._comm.backend}; name the source")
        source = [-1]

        def take(x: Tensor, _: int) -> None:
            into = room_for([x])
            source[0] = self._take_any(into, tag, group.has_message)
            spread(into, [x])

        work: Any = self._message("recv", take, tensors[0], -1)
        work._source_rank = lambda: source[0]
        return work  # type: ignore[no-any-return]

    def start_batch(self) -> None:
        """Do nothing: here no message waits for another."""

    def end_batch(self) -> dist.Work | None:
        """Return no work: each message has its own."""
        return None

    def _message(self, name: str, run: Callable[[Tensor, int], object], x: Tensor, peer: int) -> dist.Work:
        # The frames between: the group's method, then torch's isend or irecv, which send and recv call.
        caller = sys._getframe(3).f_back
        waits = caller is not None and caller.f_code in WAITS
        work = self._comm.dispatcher.message(name, run, x, peer, async_op=not waits)
        return Done([x]) if work is None else work

    def _take(self, x: Tensor, src: int, tag: int) -> None:
        with self._taking[src]:
            while not self._take_stored(x, src, tag) and not self._take_next(x, src, tag):
                pass

    def _take_stored(self, x: Tensor, src: int, tag: int) -> bool:
        stored = self._stored[src]
        for at, (sent_tag, message) in enumerate(stored):
            if sent_tag == tag:
                if (x.dtype, x.numel()) != (message.dtype, message.numel()):
                    raise ValueError(
                        f"recv expects {counted(x.numel(), 'element')} of {x.dtype}, but rank {src} sent "
                        f"{message.numel()} of {message.dtype} (tag {tag}); give send and recv tensors of one size and "
                        "dtype"
                    )
                write(x, message)
                del stored[at]
                return True
        return False

    def _take_next(self, x: Tensor, src: int, tag: int) -> bool:
        """Receive the next message; return whether it was the one that is asked for."""
        make, header = self._comm.dispatcher.make, torch.empty(3, dtype=torch.int64, device="cpu")
        make("recv", header, src)
        sent_tag, code, count = header.tolist()
        if (sent_tag, _DTYPES[code], count) == (tag, x.dtype, x.numel()):
            make("recv", x, src)
            return True
        message = torch.empty(count, dtype=_DTYPES[code], device="cpu")
        make("recv", message, src)
        self._stored[src].append((sent_tag, message))
        return False

    def _take_any(self, x: Tensor, tag: int, has_message: Callable[[int], bool]) -> int:
        timeout_s = self._comm.options.timeout_s
        deadline, nap_s = time.monotonic() + timeout_s, 0.0
        while time.monotonic() < deadline:
            for src in range(self._comm.size):
                if not self._taking[src].acquire(blocking=False):
                    continue  # a receive from this rank is under way, and comes first
                try:
                    if self._take_stored(x, src, tag) or (has_message(src) and self._take_next(x, src, tag)):
                        return src
                finally:
                    self._taking[src].release()
            self._comm.check()
            time.sleep(nap_s)
            nap_s = min(nap_s + 1e-5, _LONGEST_NAP_S)
        raise CommTimeout(
            f"rank {self._comm.rank}: recv from any rank: no message with tag {tag} within {timeout_s:g} s"
        )


class GpuMessages:
    """The messages of one group; `make` gives the engine when the first one comes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._engine = cache(make)
        self._batch: Batch | None = None

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> dist.Work:
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> dist.Work:
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

    torch opens and closes such a batch in groups of C++ only, and calls others once for each message.
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
            raise RuntimeError(f"this batch got only {counted(len(self.parts), 'message')}, so none was sent")
        return super().wait(timeout)
