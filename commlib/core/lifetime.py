"""What happens to communicators when their process ends or forks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

_OPEN: WeakKeyDictionary[Any, tuple[Callable[[Any], None], Callable[[Any], None]]] = WeakKeyDictionary()


def watch(owner: Any, leave: Callable[[Any], None], abandon: Callable[[Any], None]) -> None:
    """Call `leave(owner)` when the process ends, and `abandon(owner)` in a forked child."""
    _OPEN[owner] = leave, abandon


@atexit.register
def _leave_all() -> None:
    """A rank that ends tells its peers, so that they raise at once instead of waiting for a dead process."""
    for owner, (leave, _) in list(_OPEN.items()):
        leave(owner)


def _abandon_all() -> None:
    for owner, (_, abandon) in list(_OPEN.items()):
        abandon(owner)


os.register_at_fork(after_in_child=_abandon_all)
