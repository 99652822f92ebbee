"""Messages between two ranks as methods of a Communicator: each is one native call, now or later on a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, overload

from torch import Tensor

from commlib.calling import Calling
from commlib.work import COLLECTIVE_CALLS, Work

Now: TypeAlias = Literal[False]
Later: TypeAlias = Literal[True]


class Messages(Calling):
    """Messages of a pair match in the order of their calls, and come behind the collectives before them."""

    @overload
    def send(self, x: Tensor, dst: int, async_op: Now = ...) -> None: ...
    @overload
    def send(self, x: Tensor, dst: int, async_op: Later) -> Work: ...
    def send(self, x: Tensor, dst: int, async_op: bool = False) -> Work | None:
        """Send to rank `dst`, which calls recv; the messages of a pair match in the order of their calls.

        Args:
            x: What to send.
            dst: The rank that receives; on shm it may be this one.
            async_op: Return a Work at once.

        Example:
            >>> comm.send(torch.ones(3), dst=1)  # rank 1: comm.recv(torch.empty(3), src=0)
        """
        return self._message("send", self._unordered.send, x, dst, async_op)

    @overload
    def recv(self, x: Tensor, src: int, async_op: Now = ...) -> Tensor: ...
    @overload
    def recv(self, x: Tensor, src: int, async_op: Later) -> Work: ...
    def recv(self, x: Tensor, src: int, async_op: bool = False) -> Tensor | Work:
        """Receive from rank `src`, which calls send.

        Args:
            x: Where to put what comes: as many elements as were sent, of their type.
            src: The rank that sends.
            async_op: Return a Work at once.
        """
        work = self._message("recv", self._unordered.recv, x, src, async_op)
        return x if work is None else work

    def send_recv(self, x: Tensor, dst: int, out: Tensor, src: int) -> Tensor:
        """Send to rank `dst` and receive from rank `src` at once: no rank of a ring has to receive first.

        Peers may call it too, or send and recv. On GPUs both directions are one group of NCCL's.

        Args:
            x: What to send; on shm `dst` has a large one when the call returns.
            dst: The rank that receives `x`; on shm it may be this one.
            out: Where to put what comes: as many elements as were sent, of their type.
            src: The rank that sends to this one.

        Returns:
            `out`.

        Example:
            >>> comm.send_recv(torch.ones(2), 1 - comm.rank, torch.empty(2), 1 - comm.rank)  # of two ranks
            tensor([1., 1.])
        """
        if self._lanes.used:
            self._lanes.drain(COLLECTIVE_CALLS, ("send", dst), ("recv", src))
        self._unordered.send_recv(x, dst, out, src)
        return out

    def _message(
        self, name: str, run: Callable[[Tensor, int], object], x: Tensor, peer: int, async_op: bool
    ) -> Work | None:
        if async_op:
            return self._submit((name, peer), name, lambda: run(x, peer) or x)
        if self._lanes.used:
            self._lanes.drain(COLLECTIVE_CALLS, (name, peer))
        run(x, peer)
        return None
