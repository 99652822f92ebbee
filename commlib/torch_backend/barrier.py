"""monitored_barrier: a barrier on the host, over the store, that knows who is missing."""

from __future__ import annotations

import datetime
import time
from typing import Any

from commlib.bootstrap.world import named
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
                raise CommTimeout(f"rank {rank}: monitored_barrier: rank 0 did not come within {_seconds(timeout)}")
            time.sleep(_NAP_S)
        if failure := store.get("answer").decode():
            raise CommTimeout(f"rank {rank}: {failure}")
        return
    missing = list(range(1, size))
    while missing and time.monotonic() <= deadline:
        missing = [peer for peer in missing if not store.check([f"{peer}"])]
        time.sleep(_NAP_S if missing else 0)
    failure = ""
    if missing:
        told = missing if wait_all_ranks else missing[:1]
        failure = f"monitored_barrier: {named(told)} did not come within {_seconds(timeout)}"
    store.set("answer", failure)
    if failure:
        raise CommTimeout(f"rank 0: {failure}")


def _seconds(timeout: datetime.timedelta) -> str:
    return f"{timeout.total_seconds():g} s"
