"""The message of a call that must fail, and what commlib logs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from commlib.errors import CommError


def message_of(call: Callable[[], object], *kinds: type[Exception]) -> str:
    """Return the message of the error that a call raises: a CommError, or one of `kinds`."""
    with pytest.raises(kinds or CommError) as raised:
        call()
    return str(raised.value)


@contextmanager
def logged(level: int) -> Iterator[list[str]]:
    """Have commlib log at a level, and keep its messages."""
    messages: list[str] = []
    logger, handler = logging.getLogger("commlib"), logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
