"""Handles of calls, as torch has them, where they are not those of a communicator."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from commlib.core.work import Work, finish


class Done(Work):
    """A synchronous call, which was done when it returned."""

    def __init__(self, outputs: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._outputs = list(outputs)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> BaseException | None:
        """Return None: the call raised what it had to."""
        return None

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> Future[Any]:
        cuda: list[Any] = sorted({x.device.index for x in self._outputs if x.is_cuda})
        future: Future[Any] = Future(devices=cuda) if cuda else Future()
        future.set_result(self._outputs)
        return future


class OnStream(Done):
    """A call on the stream that was current: streams that wait for it come behind what that one has by then."""

    _event: torch.cuda.Event | None = None

    def __init__(self, device: int, outputs: Sequence[torch.Tensor], blocks: bool) -> None:
        dist.Work.__init__(self)
        self._outputs, self._device, self._blocks = list(outputs), device, blocks
        self._stream = torch._C._cuda_getCurrentRawStream(device)  # its address: the object takes longer to make

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Order the current stream behind the call."""
        if torch._C._cuda_getCurrentRawStream(self._device) != self._stream:
            torch.cuda.current_stream(self._device).wait_event(self._marked())
        if self._blocks:
            finish(self._marked(), timeout)
        return True

    def is_completed(self) -> bool:
        return bool(self._marked().query())

    is_success = is_completed

    def get_future(self) -> Future[Any]:
        self.wait()
        return super().get_future()

    def _marked(self) -> torch.cuda.Event:
        if self._event is None:
            default = torch.cuda.default_stream(self._device)  # its address is 0, of which torch makes a new stream
            stream = torch.cuda.ExternalStream(self._stream, self._device) if self._stream else default
            self._event = stream.record_event()
        return self._event


class Works(Done):
    """Several calls that are waited for as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = [work for work in works if work is not None]

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return all([work.wait() if timeout is None else work.wait(timeout) for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return what the first that failed raised."""
        return next(filter(None, (work.exception() for work in self._works)), None)

    def result(self) -> list[torch.Tensor]:
        return [x for work in self._works for x in work.result()]

    def get_future(self) -> Future[Any]:
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda done: [x for future in done.value() for x in future.value()]
        )
