"""What happens to communicators when their process ends or forks."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commlib.communicator import Communicator

_LIVE: weakref.WeakSet[Communicator] = weakref.WeakSet()


def watch(communicator: Communicator) -> None:
    """Close it when the process ends; in a forked child make it unusable."""
    _LIVE.add(communicator)


@atexit.register
def _close_all() -> None:
    """A rank that ends tells its peers, so that they raise at once instead of waiting for a dead process."""
    for communicator in list(_LIVE):
        communicator._leave()


def _forget_all() -> None:
    for communicator in list(_LIVE):
        communicator._abandon()


os.register_at_fork(after_in_child=_forget_all)
