"""What calls that must fail say, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from commlib.errors import CommError


def said(call: Callable[[], object], *kinds: type[Exception]) -> str:
    """Return the message of what a call raises: a CommError, or one of these kinds."""
    with pytest.raises(kinds or CommError) as raised:
        call()
    return str(raised.value)


@contextmanager
def listening(level: int) -> Iterator[list[str]]:
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
