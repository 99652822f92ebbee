"""What rows of the tables share: refusals, parameters and which are worth measuring, kernels of several collectives."""

from __future__ import annotations

import torch

from commlib.collectives.reference import NARROW_INTEGERS
from commlib.collectives.spec import Algorithm, Param, Variants

# --- what GPUs and NCCL's calls cannot do: types and reductions NCCL lacks, kernels that are not safe yet -------------

_LACKS = frozenset({torch.int16, torch.uint16, torch.bool})
SAFE_SYMMETRIC = (2, 30, 7)  # before it, symmetric kernels may read what is not written yet


def refuses_before_hopper(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why this GPU has no bulk copies, or None."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0):
        return f"{torch.cuda.get_device_name()} has no bulk copies; GPUs from Hopper on do"
    return None


def refuses_lamport(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why packets need flags for this, or None: without them, one NaN says that a slot is empty."""
    of_floats = (dtype.is_floating_point and dtype.itemsize <= 4) or dtype == torch.complex64
    return None if of_floats and redop == "sum" else "packets without flags are for sums of floats of 4 bytes or fewer"


def refuses_nccl(dtype: torch.dtype, redop: str, size: int) -> str | None:
    if dtype in _LACKS or redop in ("band", "bor", "bxor"):
        return f"NCCL does not reduce {dtype} by {redop}"
    if redop == "avg" and dtype in NARROW_INTEGERS:
        return f"NCCL's sums of {dtype} wrap before they are divided"
    return None


def refuses_old_nccl(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Why NCCL's symmetric kernels cannot be trusted here, or None."""
    version = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
    if version and version < SAFE_SYMMETRIC:
        return f"NCCL {'.'.join(map(str, version))} may read symmetric tensors too early; 2.30.7 does not"
    return None


def refuses_nccl_symmetric(dtype: torch.dtype, redop: str, size: int) -> str | None:
    return refuses_nccl(dtype, redop, size) or refuses_old_nccl(dtype, redop, size)


# --- params: what a plan may set of an algorithm, with the bounds; native code reads each by its name -----------------

_K, _M = 1 << 10, 1 << 20

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


# --- variants: which of them are worth measuring at a size, what `commlib tune` tries next to the plan's --------------

FEW = (8, 16, 32, 64)  # multiprocessors that a call is measured on, next to all
MANY_THREADS = (256, 320, 384, 448, 512)  # of a block: few keep little on its way to peers, many crowd the link


def chunks(num_bytes: int) -> Variants:
    """Chunks of shared memory: a hot slot for what fits one, else the size of the pieces that follow each other."""
    if num_bytes <= 16 * _K:
        return {"hot": 1}, {"chunk_bytes": 128 * _K}
    if num_bytes <= 64 * _K:
        return ({"chunk_bytes": 128 * _K},)
    return tuple({"chunk_bytes": size * _K} for size in (64, 128, 256))


def moved_chunks(num_bytes: int) -> Variants:
    """The same where every rank moves data to every other, which middle sizes may do without staging."""
    return (*chunks(num_bytes), *pulled(num_bytes)[1:])


def pulled(num_bytes: int) -> Variants:
    """Nothing to set, and tensors read where they are: neither the kernel's start nor its copy is the fastest."""
    return ({}, {"pull": 1}) if 16 * _K <= num_bytes <= 8 * _M else ({},)


def packets(num_bytes: int) -> Variants:
    """Blocks of packets with 8 bytes of data each: few threads answer soonest, many carry more."""
    if num_bytes > 4 * _M:
        return ()  # twice the bytes over the link: never near the best there
    small = _shape(64, 64, 8)
    return (small,) if num_bytes <= 2 * _K else (small, _shape(64, 128, 8), _shape(32, 256, 8))


def lines(num_bytes: int) -> Variants:
    """Blocks of lines with 120 bytes of data each, in one exchange."""
    if num_bytes <= 64 * _K:
        return _shape(64, 128, 15), _shape(96, 256, 15)
    return _shape(96, 256, 15), *(_shape(128, threads, 15) for threads in MANY_THREADS)


def two_phases_of_lines(num_bytes: int) -> Variants:
    """The same in two phases: a thread has less to do in each."""
    if num_bytes <= 64 * _K:
        return (_shape(96, 256, 4),)
    return _shape(96, 256, 4), *(_shape(128, threads, 4) for threads in MANY_THREADS)


def whole_packets(num_bytes: int) -> Variants:
    """Blocks of packets without flags: a vector of each thread fills them."""
    if num_bytes <= 64 * _K:
        return _shape(128, 64, 16), _shape(128, 128, 16)
    return tuple(_shape(128, threads, 16) for threads in (256, 384, 512))


def two_phases_of_packets(num_bytes: int) -> Variants:
    """The same in two phases: a thread has less to do in each."""
    if num_bytes <= 64 * _K:
        return (_shape(128, 64, 16),)
    return tuple(_shape(128, threads, 16) for threads in (128, 256, 384, 512))


def tiles(num_bytes: int) -> Variants:
    """Tiles by bulk copies: smaller ones start sooner, larger ones cost fewer flags, and fewer blocks leave the GPU."""
    if num_bytes < 128 * _K:
        return ()  # their start takes longer than the whole call otherwise does
    small = {**_shape(132, 384, 16), "tile_bytes": 8 * _K}
    return small, *({**_shape(blocks, 384, 16), "tile_bytes": 16 * _K} for blocks in (132, *FEW))


def engines(num_bytes: int) -> Variants:
    """Nothing to set: copies by the GPU's engines, which take microseconds to start."""
    return ({},) if num_bytes >= 512 * _K else ()


def pipes(num_bytes: int) -> Variants:
    """Tiles through pipes: few multiprocessors, and more of them where more is to be done."""
    if num_bytes < 512 * _K:
        return ()
    few = (8, 16) if num_bytes >= 8 * _M else (16,)
    shapes = *((blocks, 16 * _K) for blocks in (*few, 24, 32)), (24, 8 * _K), (32, 8 * _K)
    return tuple({**_shape(blocks, 384, 16), "tile_bytes": tile_bytes} for blocks, tile_bytes in shapes)


def clusters(num_bytes: int) -> Variants:
    """Clusters of blocks that own rows of packets: one for each row, while rows are few."""
    return () if num_bytes > 1 * _M else ({"blocks": 128},)


def rows(num_bytes: int) -> Variants:
    """Blocks that own rows of packets: as many as there are multiprocessors, or half of them."""
    return () if num_bytes > 64 * _M else ({"blocks": 64}, {"blocks": 128})


def row_tiles(num_bytes: int) -> Variants:
    """Tiles of whole rows."""
    if num_bytes < 128 * _K:
        return ()
    small = {"blocks": 132, "tile_bytes": 8 * _K}
    return small, *({"blocks": blocks, "tile_bytes": 16 * _K} for blocks in (132, *FEW))


def _shape(blocks: int, threads: int, grain_bytes: int) -> dict[str, int]:
    return {"blocks": blocks, "threads": threads, "grain_bytes": grain_bytes}


# --- kernels that serve every collective of a kind: that only moves blocks, or that reduces one for a rank ------------

LINES_MOVE = Algorithm("lsa_ll128_exchange", "nccl", kernel="all_to_all", params=PACKETS, variants=lines)
LINES_REDUCE = Algorithm("lsa_ll128_exchange", "nccl", kernel="reduce", params=PACKETS, variants=lines)
PIPES_MOVE = Algorithm(
    "lsa_pipe_exchange", "nccl", kernel="all_to_all", refuses=refuses_before_hopper, params=PIPES, variants=pipes
)
PIPES_REDUCE = Algorithm(
    "lsa_pipe_exchange", "nccl", kernel="reduce", refuses=refuses_before_hopper, params=PIPES, variants=pipes
)
