"""monitored_barrier: a barrier on the host, over the store, that knows who is missing; errors read as torch's."""

from __future__ import annotations

import datetime
import functools
import time
from typing import Any

import torch.distributed as dist

from commlib.errors import CommTimeout

_NAP_S = 0.001


def monitored_barrier(
    store: Any, rank: int, size: int, timeout: datetime.timedelta, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks; rank 0 says who did not come, the first one or all, and the others that it failed."""
    deadline = time.monotonic() + timeout.total_seconds()
    if rank != 0:
        store.set(f"{rank}", "")
        while not store.check(["answer"]):
            if time.monotonic() > deadline:
                raise CommTimeout(_unanswered(rank, f"it did not come within {timeout.total_seconds():g} s"))
            time.sleep(_NAP_S)
        if failure := store.get("answer").decode():
            raise CommTimeout(_unanswered(rank, failure))
        return
    missing = list(range(1, size))
    while missing and time.monotonic() <= deadline:
        missing = [peer for peer in missing if not store.check([f"{peer}"])]
        time.sleep(_NAP_S if missing else 0)
    failure = ""
    if missing:
        named = missing if wait_all_ranks else missing[:1]
        failure = f"Rank{'s' * (len(named) > 1)} {', '.join(map(str, named))} failed to pass monitoredBarrier"
    store.set("answer", failure)
    if failure:
        raise CommTimeout(f"Rank 0 timed out in monitoredBarrier after {timeout.total_seconds():g} s: {failure}")


def _unanswered(rank: int, why: str) -> str:
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        f"rank 0: {why}"
    )


def let_torch_call(group_type: Any) -> None:
    """Make dist.monitored_barrier call such groups: torch's function refuses every backend but gloo by its name."""
    original: Any = dist.monitored_barrier

    @functools.wraps(original)
    def reached(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        target: Any = group or dist.group.WORLD
        if not isinstance(target, group_type):
            original(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, (int, float)):
            timeout = datetime.timedelta(seconds=timeout)
        target.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = reached
