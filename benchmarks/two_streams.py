"""Products on one stream and collective calls on another, timed together, with the GPU's clocks meanwhile."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.timing import Run, graph
from commlib.worker import Worker

LAUNCH_S = 30e-6  # more than the host takes for one of them
# NVML's function, what it takes between the device and the result, and its unit.
CLOCKS: dict[str, tuple[str, tuple[int, ...], float]] = {
    "mhz": ("nvmlDeviceGetClockInfo", (1,), 1.0),  # of the multiprocessors
    "watts": ("nvmlDeviceGetPowerUsage", (), 1000.0),
    "celsius": ("nvmlDeviceGetTemperature", (0,), 1.0),
}


class Times(NamedTuple):
    """Seconds from the common start until all, the products, and the calls were done."""

    whole: float
    products: float
    calls: float


class OnGpu:
    """Two streams of a GPU, that of the calls with high priority; all ranks start at once, behind a barrier."""

    def __init__(self, comm: Communicator, clocks: Clocks) -> None:
        self._side, self._clocks = torch.cuda.Stream(priority=-1), clocks
        comm.barrier()
        self._barrier = graph.capture([comm.barrier])

    def time(self, products: Sequence[Run], calls: Sequence[Run]) -> Times:
        """Enqueue all while the GPU pauses, and return its times."""
        begin, products_end, calls_end, end = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        pause_s = graph.PAUSE_S + LAUNCH_S * (len(products) + len(calls))
        torch.cuda._sleep(int(pause_s * graph.CYCLES_PER_S))
        self._barrier.replay()
        begin.record()
        self._side.wait_event(begin)
        with torch.cuda.stream(self._side):
            for call in calls:
                call()
            calls_end.record()
        for product in products:
            product()
        products_end.record()
        torch.cuda.current_stream().wait_event(calls_end)
        end.record()
        self._clocks.sample()
        end.synchronize()
        return Times(*(begin.elapsed_time(event) * 1e-3 for event in (end, products_end, calls_end)))

    def close(self) -> None:
        """Give the graph back, before the communicator is closed."""
        torch.cuda.synchronize()
        self._barrier.reset()


class OnCpu:
    """The same without GPUs: the calls run on a thread."""

    def __init__(self, comm: Communicator, clocks: Clocks) -> None:
        self._comm, self._worker = comm, Worker("calls")

    def time(self, products: Sequence[Run], calls: Sequence[Run]) -> Times:
        """Run both, and return the host's times."""
        self._comm.barrier()
        start = time.perf_counter()
        ended = self._worker.submit(lambda: _in_turn(calls))
        products_end = _in_turn(products)
        calls_end = float(ended.result())
        return Times(max(products_end, calls_end) - start, products_end - start, calls_end - start)

    def close(self) -> None:
        """Let the thread end."""
        self._worker.close(Unsupported("the measurement is over"))


def _in_turn(runs: Sequence[Run]) -> float:
    for run in runs:
        run()
    return time.perf_counter()


class Clocks:
    """What NVML says of this rank's GPU while it works; `reason` says why there is nothing."""

    def __init__(self, gpu: bool) -> None:
        self.reason, self._samples = "" if gpu else "there is no GPU", list[list[float]]()
        self._handle = ctypes.c_void_p()
        if gpu:
            try:
                self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
                uuid = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
                found = self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(
                    uuid, ctypes.byref(self._handle)
                )
                self.reason = f"NVML: status {found}" if found else ""
            except OSError as error:
                self.reason = str(error)

    def sample(self) -> None:
        """Take a sample now."""
        if self.reason:
            return
        values = [ctypes.c_uint() for _ in CLOCKS]
        for (name, which, _), value in zip(CLOCKS.values(), values, strict=True):
            getattr(self._nvml, name)(self._handle, *which, ctypes.byref(value))
        self._samples.append([value.value / unit for value, (_, _, unit) in zip(values, CLOCKS.values(), strict=True)])

    def seen(self, comm: Communicator) -> dict[str, list[float]]:
        """Return least, median and most of each figure, of all ranks, since this was asked last."""
        samples = [sample for of_rank in comm.all_gather_object(self._samples) for sample in of_rank]
        self._samples = []
        columns = zip(CLOCKS, zip(*samples, strict=True), strict=False)
        return {name: [min(found), statistics.median(found), max(found)] for name, found in columns}
