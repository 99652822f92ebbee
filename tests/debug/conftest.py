"""Live ranks that tests of `commlib debug` look at, stop and kill."""

from collections.abc import Iterator

import pytest

from commlib.tools.testing import Ranks


@pytest.fixture(scope="module")
def live() -> Iterator[Ranks]:
    with Ranks(3, backend="shm", timeout_s=20.0, max_bytes=1 << 22) as ranks:
        yield ranks


@pytest.fixture
def three(live: Ranks) -> Iterator[Ranks]:
    """Ranks without a call behind them: a test may leave them broken."""
    yield live
    live.restart()
