"""What rows of the tables share: refusals, parameters and which are worth measuring, kernels of several collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf

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


def _by_size(*steps: tuple[float, Variants]) -> Callable[[int], Variants]:
    """Return what gives the variants of the first step whose size is not below that of a call; none beyond the last."""
    return lambda num_bytes: next((variants for max_bytes, variants in steps if num_bytes <= max_bytes), ())


def _shape(blocks: int, threads: int, grain_bytes: int, **more: int) -> dict[str, int]:
    return {"blocks": blocks, "threads": threads, "grain_bytes": grain_bytes, **more}


def _of_threads(threads: Iterable[int], grain_bytes: int) -> Variants:
    return tuple(_shape(128, count, grain_bytes) for count in threads)


# Of shared memory: a hot slot for what fits one, else the size of the pieces that follow each other. Where every rank
# moves data to every other, middle sizes may do without staging: the kernel is neither fast to start nor fast to copy.
_PIECE = {"chunk_bytes": 128 * _K}
chunks = _by_size(
    (16 * _K, ({"hot": 1}, _PIECE)),
    (64 * _K, (_PIECE,)),
    (inf, tuple({"chunk_bytes": size * _K} for size in (64, 128, 256))),
)
pulled = _by_size((16 * _K - 1, ({},)), (8 * _M, ({}, {"pull": 1})), (inf, ({},)))


def moved_chunks(num_bytes: int) -> Variants:
    return (*chunks(num_bytes), *pulled(num_bytes)[1:])


# Packets with 8 bytes of data each: few threads answer soonest, many carry more, and twice the bytes go over the link.
_SMALL = _shape(64, 64, 8)
packets = _by_size((2 * _K, (_SMALL,)), (4 * _M, (_SMALL, _shape(64, 128, 8), _shape(32, 256, 8))))

# Lines with 120 bytes of data each, and packets without flags, which a vector of each thread fills. In two phases a
# thread has less to do in each.
lines = _by_size(
    (64 * _K, (_shape(64, 128, 15), _shape(96, 256, 15))),
    (inf, (_shape(96, 256, 15), *_of_threads(MANY_THREADS, 15))),
)
two_phases_of_lines = _by_size(
    (64 * _K, (_shape(96, 256, 4),)), (inf, (_shape(96, 256, 4), *_of_threads(MANY_THREADS, 4)))
)
whole_packets = _by_size((64 * _K, _of_threads((64, 128), 16)), (inf, _of_threads((256, 384, 512), 16)))
two_phases_of_packets = _by_size((64 * _K, _of_threads((64,), 16)), (inf, _of_threads((128, 256, 384, 512), 16)))

# Tiles by bulk copies, whose start takes long: small ones start sooner, large ones cost fewer flags, and fewer blocks
# leave the GPU to others. Through pipes, the more blocks the more is to be done.
_TILES = [(132, 8 * _K), *((blocks, 16 * _K) for blocks in (132, *FEW))]
tiles = _by_size((128 * _K - 1, ()), (inf, tuple(_shape(blocks, 384, 16, tile_bytes=size) for blocks, size in _TILES)))
row_tiles = _by_size(
    (128 * _K - 1, ()), (inf, tuple({"blocks": blocks, "tile_bytes": size} for blocks, size in _TILES))
)
_PIPES = [(16, 16), (24, 16), (32, 16), (24, 8), (32, 8)]
_PIPED = tuple(_shape(blocks, 384, 16, tile_bytes=size * _K) for blocks, size in _PIPES)
pipes = _by_size((512 * _K - 1, ()), (8 * _M - 1, _PIPED), (inf, (_shape(8, 384, 16, tile_bytes=16 * _K), *_PIPED)))

# Copies by the GPU's engines, which take microseconds to start.
engines = _by_size((512 * _K - 1, ()), (inf, ({},)))

# Blocks, or clusters of them, that own rows of packets: as many as there are multiprocessors, or half of them.
clusters = _by_size((1 * _M, ({"blocks": 128},)))
rows = _by_size((64 * _M, ({"blocks": 64}, {"blocks": 128})))


# --- kernels that serve every collective of a kind: that only moves blocks, or that reduces one for a rank ------------

ENGINE_PULL = Algorithm(
    "engine_pull", "nccl", placement="symmetric", kernel="all_gather", engine=True, variants=engines
)
LAMPORT = partial(Algorithm, backend="nccl", refuses=refuses_lamport, params=PACKETS)
LINES_TWICE = partial(Algorithm, backend="nccl", params=PACKETS, variants=two_phases_of_lines)
PIPED = partial(Algorithm, backend="nccl", refuses=refuses_before_hopper, params=PIPES, variants=pipes)
LINES_MOVE = Algorithm("lsa_ll128_exchange", "nccl", kernel="all_to_all", params=PACKETS, variants=lines)
LINES_REDUCE = Algorithm("lsa_ll128_exchange", "nccl", kernel="reduce", params=PACKETS, variants=lines)
PIPES_MOVE = PIPED("lsa_pipe_exchange", kernel="all_to_all")
MESSAGES = PIPED(PIPES_MOVE.name, kernel="send_recv", params=(*PIPES, Param("packet_bytes", 256 * _K, 0, 512 * _K)))
PIPES_REDUCE = PIPED("lsa_pipe_exchange", kernel="reduce")
