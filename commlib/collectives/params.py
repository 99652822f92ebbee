"""What a plan may set of an algorithm, with the bounds; native code reads each by its name."""

from __future__ import annotations

from commlib.collectives.spec import Param

_K = 1 << 10

CHUNKS = (
    Param("chunk_bytes", 128 * _K, 4 * _K, 1024 * _K, 64),  # whole cache lines; a quarter of the ring at most
    Param("hot", 0, 0, 1),  # a small chunk in one of few slots that stay in the cache
)
"""Of shared memory: the size of the pieces that follow each other."""

PULL = Param("pull", 0, 0, 1)
"""Of shared memory: peers read the tensor in its process, through the kernel, where that lets them."""

MOVED_CHUNKS = (*CHUNKS, PULL)
"""The same where every rank moves data to every other."""

_BLOCKS = Param("blocks", 64, 1, 256)
_GRAIN_BYTES = Param("grain_bytes", 16, 1, 1 << 30)

PACKETS = (_BLOCKS, Param("threads", 256, 32, 512, 32), _GRAIN_BYTES)
"""Of a kernel: at most so many blocks, of so many threads, and each thread's least share."""

ROWS = (Param("blocks", 128, 1, 128),)
"""Of a kernel that gives rows to each block, or cluster of blocks: at most so many of them, 16 warps each."""

TILES = (
    _BLOCKS,
    Param("threads", 256, 160, 512, 32),  # four warps of them helpers
    _GRAIN_BYTES,
    Param("tile_bytes", 16 * _K, 512, 16 * _K, 512),
)
"""The same for tiles by bulk copies, and how large a tile is."""

PIPES = (
    Param("blocks", 16, 1, 32),  # kPipeBlocks of csrc/include/commlib/job.h
    Param("threads", 384, 192, 384, 32),  # four warps of them helpers, one that handles their copies
    _GRAIN_BYTES,
    TILES[-1],
)
"""The same for tiles through pipes, of few blocks."""

ROW_TILES = (Param("blocks", 132, 1, 256), TILES[-1])
"""The same for tiles of whole rows."""
