"""Damage: what a rank announces of its memory is checked before it is read."""

import struct
import time
from pathlib import Path

import pytest

from commlib.communicator import Communicator
from commlib.errors import CommError
from commlib.plan import Plan
from commlib.tools.testing import Ranks

HEADER_BYTES, RING, LINE_BYTES = 8192, 32, 64  # csrc/shm/layout.h
ARENA_BYTES = 1 << 20


def announce_too_much(comm: Communicator, offset: int) -> str:
    """Rank 1 answers rank 0 with a tensor that ends beyond its arena."""
    comm.use(Plan.only({"all_reduce": "shm_symmetric"}, base=comm.plan))
    x = comm.empty(1001)
    if comm.rank == 0:
        with pytest.raises(CommError) as raised:
            comm.all_reduce(x)
        return str(raised.value)
    spans = (
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:commlib" in line
    )
    first, end = max(((int(low, 16), int(high, 16)) for low, high in spans), key=lambda span: span[1] - span[0])
    sections = [first + HEADER_BYTES, (first + HEADER_BYTES + end) // 2]
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:

        def newest(rank: int) -> bytes:
            memory.seek(sections[rank])
            ring = memory.read(RING * LINE_BYTES)
            lines = (ring[at : at + LINE_BYTES] for at in range(0, len(ring), LINE_BYTES))
            return max(lines, key=lambda line: struct.unpack_from("Q", line))

        before = newest(1)
        while (line := newest(0))[:8] == before[:8]:
            time.sleep(0.001)
        place = sections[1] + struct.unpack_from("Q", line)[0] % RING * LINE_BYTES
        for at, data in ((8, line[8:16] + struct.pack("Q", offset) + line[24:]), (0, line[:8])):
            memory.seek(place + at)
            memory.write(data)
    return ""


@pytest.mark.parametrize("offset", [ARENA_BYTES - 64, 1 << 40])
def test_a_tensor_that_is_announced_beyond_its_arena_is_not_read(offset: int) -> None:
    with Ranks(2, backend="shm", timeout_s=20.0, max_bytes=ARENA_BYTES) as ranks:
        assert "its memory is damaged" in ranks.run(announce_too_much, offset)[0]


def fills_its_arena(comm: Communicator) -> bool:
    comm.use(Plan.only({"all_reduce": "shm_symmetric"}, base=comm.plan))
    x = comm.empty(ARENA_BYTES // 4).fill_(1)
    return bool((comm.all_reduce(x) == comm.size).all())


def test_a_tensor_may_end_where_its_arena_does() -> None:
    with Ranks(2, backend="shm", timeout_s=20.0, max_bytes=ARENA_BYTES) as ranks:
        assert ranks.run(fills_its_arena) == [True] * 2
