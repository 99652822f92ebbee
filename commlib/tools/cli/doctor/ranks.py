"""Ranks: live ones that sum, over shared memory and on the GPUs, as a job's would."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from commlib.counts import counted
from commlib.errors import CommError, Unsupported, one_line
from commlib.tools.cli.doctor.finding import Finding, broken, ok, warning

if TYPE_CHECKING:
    import torch

    from commlib.communicator import Communicator

TIMEOUT_S, CALL_S = 60.0, 100.0  # of a wait, and of starting the ranks or one call on them
ELEMENTS = 1 << 10  # a power of two: means are exact, on GPUs, too
Sums = tuple[float, float | str]  # of a plain tensor, and of a symmetric one or why there is none


def two_ranks() -> Finding:
    """Sum over two live ranks through shared memory."""
    from commlib.tools.testing import Ranks

    start = time.perf_counter()
    try:
        with Ranks(2, timeout_s=TIMEOUT_S, deadline_s=CALL_S, backend="shm") as ranks:
            totals = ranks.run(sum_of_ranks)
    except RuntimeError as error:
        return broken(_reason(error), "COMMLIB_TRACEBACK=1 commlib test --quick")
    _compare(totals, 2)
    return ok(f"started, summed over shared memory, closed in {time.perf_counter() - start:.1f} s")


def gpu_ranks() -> Finding:
    """Sum over live ranks, one on each GPU, with the memory that a job would take."""
    sums = _on_gpus()
    if isinstance(sums, str):
        return broken(sums, "NCCL_DEBUG=INFO commlib test --quick")
    _compare([plain for plain, _ in sums], len(sums))
    return ok(f"{counted(len(sums), 'rank')} on as many GPUs started and summed through backend nccl")


def symmetric_memory() -> Finding:
    """Sum a tensor of the ranks' symmetric memory."""
    sums = _on_gpus()
    if isinstance(sums, str):
        return warning("not tried: the ranks above did not start")
    why = [total for _, total in sums if isinstance(total, str)]
    if why:
        return warning(f"not here: {why[0]}", "NCCL's own calls run; commlib's kernels need symmetric memory")
    _compare([total for _, total in sums if not isinstance(total, str)], len(sums))
    return ok("allocated, registered, and summed by reading the peers' memory")


@cache
def _on_gpus() -> list[Sums] | str:
    """Return each rank's sums, or why the ranks failed."""
    import torch

    from commlib.build.kernel_names import MAX_WORLD
    from commlib.tools.testing import Ranks

    if not torch.cuda.is_available():
        return "not tried: torch has no GPU"
    try:
        count = min(torch.cuda.device_count(), MAX_WORLD)
        with Ranks(count, timeout_s=TIMEOUT_S, deadline_s=CALL_S, backend="nccl") as ranks:
            return ranks.run(sums_on_gpu)
    except RuntimeError as error:
        return _reason(error)


def _reason(error: RuntimeError) -> str:
    """Return what the ranks failed of, one or several: the last line of their tracebacks."""
    return one_line(error) if isinstance(error, CommError) else str(error).strip().splitlines()[-1]


def _compare(totals: list[float], size: int) -> None:
    expected = size * (size + 1) / 2
    if totals != [expected] * size:
        raise CommError(f"all_reduce gave {totals} where {expected} on each rank was expected")


def sum_of_ranks(comm: Communicator) -> float:
    """Sum a tensor of the rank's number and 1."""
    import torch

    return _summed(comm, torch.empty(ELEMENTS, device=comm.device))


def sums_on_gpu(comm: Communicator) -> Sums:
    """Sum a plain tensor and a symmetric one."""
    plain = sum_of_ranks(comm)
    try:
        return plain, _summed(comm, comm.empty(ELEMENTS))
    except Unsupported as error:
        return plain, str(error)


def _summed(comm: Communicator, x: torch.Tensor) -> float:
    comm.all_reduce(x.fill_(comm.rank + 1.0))
    return float(x.mean())
