"""Messages on the CPU as torch has them: with a tag, and from any rank.

Each message goes behind a header: its tag, its type and its size. A receiver that meets another tag than its own keeps
that message for the call that asks for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from commlib.communicator import Communicator
from commlib.counts import counted
from commlib.errors import CommTimeout
from commlib.torch_backend.layout import joined, room_for, spread, write
from commlib.torch_backend.works import Done

_DTYPES = sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_LONGEST_NAP_S = 0.0005
# torch's send and recv wait for the work at once: then the message is sent here, without another thread.
WAITS = {unwrap(dist.send).__code__, unwrap(dist.recv).__code__}


class Mail:
    """The messages of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._kept: defaultdict[int, deque[tuple[int, Tensor]]] = defaultdict(deque)
        self._taking: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # one receiver a peer at a time

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> dist.Work:
        """Send a tensor."""
        return self._message("send", lambda x, dst: self._post(joined([x]), dst, tag), tensors[0], dst)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> dist.Work:
        """Receive a tensor from a rank."""

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

    def _post(self, x: Tensor, dst: int, tag: int) -> None:
        make = self._comm.dispatcher.make
        make("send", torch.tensor([tag, _CODES[x.dtype], x.numel()], device="cpu"), dst)
        make("send", x, dst)

    def _take(self, x: Tensor, src: int, tag: int) -> None:
        with self._taking[src]:
            while not self._take_kept(x, src, tag) and not self._take_next(x, src, tag):
                pass

    def _take_kept(self, x: Tensor, src: int, tag: int) -> bool:
        kept = self._kept[src]
        for at, (theirs, message) in enumerate(kept):
            if theirs == tag:
                _check(x, message.dtype, message.numel(), src, tag)
                write(x, message)
                del kept[at]
                return True
        return False

    def _take_next(self, x: Tensor, src: int, tag: int) -> bool:
        """Receive the next message; return whether it was the one that is asked for."""
        make, header = self._comm.dispatcher.make, torch.empty(3, dtype=torch.int64, device="cpu")
        make("recv", header, src)
        theirs, code, count = header.tolist()
        if (theirs, _DTYPES[code], count) == (tag, x.dtype, x.numel()):
            make("recv", x, src)
            return True
        message = torch.empty(count, dtype=_DTYPES[code], device="cpu")
        make("recv", message, src)
        self._kept[src].append((theirs, message))
        return False

    def _take_any(self, x: Tensor, tag: int, has_message: Callable[[int], bool]) -> int:
        timeout_s = self._comm.options.timeout_s
        deadline, nap_s = time.monotonic() + timeout_s, 0.0
        while time.monotonic() < deadline:
            for src in range(self._comm.size):
                if not self._taking[src].acquire(blocking=False):
                    continue  # a receive from this rank is under way, and comes first
                try:
                    if self._take_kept(x, src, tag) or (has_message(src) and self._take_next(x, src, tag)):
                        return src
                finally:
                    self._taking[src].release()
            self._comm.check()
            time.sleep(nap_s)
            nap_s = min(nap_s + 1e-5, _LONGEST_NAP_S)
        raise CommTimeout(
            f"rank {self._comm.rank}: recv from any rank: no message with tag {tag} within {timeout_s:g} s"
        )


def _check(x: Tensor, dtype: torch.dtype, count: int, src: int, tag: int) -> None:
    if (x.dtype, x.numel()) != (dtype, count):
        raise ValueError(
            f"recv expects {counted(x.numel(), 'element')} of {x.dtype}, but rank {src} sent {count} of {dtype} "
            f"(tag {tag}); give send and recv tensors of one size and dtype"
        )
