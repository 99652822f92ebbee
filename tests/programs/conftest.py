"""Live ranks without a GPU on which programs of torch.distributed run."""

from collections.abc import Iterator

import pytest

from commlib.tools.testing import Ranks


@pytest.fixture(scope="session")
def program_ranks() -> Iterator[Ranks]:
    """Four ranks of their own: what a program imports and leaves behind stays with them."""
    with Ranks(4, backend="shm", timeout_s=60.0, max_bytes=1 << 20, deadline_s=110.0) as ranks:
        yield ranks
