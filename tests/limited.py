"""A communicator as code that limits each call sees it: collectives with max_sms=."""

import inspect
from functools import partial
from typing import Any

from commlib.communicator import Communicator


class Limited:
    """Stands in for a communicator; every collective is told `max_sms`."""

    def __init__(self, comm: Communicator, max_sms: int) -> None:
        self._comm, self._max_sms = comm, max_sms

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        takes = inspect.ismethod(found) and "max_sms" in inspect.signature(found).parameters
        return partial(found, max_sms=self._max_sms) if takes else found
