"""Which parameters of an algorithm are worth measuring at a size: what `commlib tune` tries next to the plan's."""

from __future__ import annotations

from commlib.collectives.spec import Variants

_K, _M = 1 << 10, 1 << 20
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
