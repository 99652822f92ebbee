"""Blocks of CUDA graphs: calls captured once, replayed between two events on the device, at once on all ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import torch

from commlib.errors import CommError, one_line

if TYPE_CHECKING:
    from commlib.tools.timing.blocks import Group
    from commlib.tools.timing.candidate import Run

MAX_CALLS = 99  # of one graph: its launch, some µs, does not count
CYCLES_PER_S = 2e9  # of the device, about
PAUSE_S = 80e-6  # more than the host takes to start anything but the graph
MAX_LAUNCH_S = 2e-3


@contextmanager
def separate_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream of its own: on the default one a graph of NCCL's calls takes two to four times as long."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


def capture(runs: Sequence[Run]) -> torch.cuda.CUDAGraph:
    """Return a graph of these calls, one after the other; without the garbage collection of torch.cuda.graph."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for run in runs:
                run()
        except BaseException:
            with suppress(RuntimeError):  # the capture is invalid already; the first error says why
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


class Starter:
    """Makes all ranks start a block at once: a pause while the host enqueues it, then a barrier on the device."""

    def __init__(self, comm: Group, lead_in: Run | None = None) -> None:
        comm.barrier()
        self._barrier = capture([comm.barrier]) if comm.size > 1 else None
        self._lead_in = lead_in
        self._launch_s = 0.0

    def time(self, graph: torch.cuda.CUDAGraph) -> float:
        """Replay the graph on all ranks at once and return the device's seconds."""
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self._lead_in is not None:
            self._lead_in()
        torch.cuda._sleep(int((PAUSE_S + 2 * self._launch_s) * CYCLES_PER_S))
        if self._barrier is not None:
            self._barrier.replay()
        before.record()
        launched = time.perf_counter()
        graph.replay()
        self._launch_s = min(max(self._launch_s, time.perf_counter() - launched), MAX_LAUNCH_S)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    def close(self) -> None:
        torch.cuda.synchronize()
        if self._barrier is not None:
            self._barrier.reset()


def captured(runs: Sequence[Run]) -> torch.cuda.CUDAGraph:
    """Capture, with whatever a call raises as a CommError: it is why this one is left out."""
    try:
        return capture(runs)
    except CommError:
        raise
    except Exception as error:
        raise CommError(f"cannot be captured: {one_line(error)}") from None
