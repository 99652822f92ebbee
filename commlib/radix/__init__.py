"""RadixCache: which cache slots hold a prompt's prefix, and which to free; csrc/radix/ has the tree."""

from commlib.radix.cache import POLICIES, Insert, InsertMatch, Match, RadixCache, Stats
from commlib.radix.events import AllBlocksCleared, BlockRemoved, BlockStored, Namespace

__all__ = [
    "POLICIES",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Insert",
    "InsertMatch",
    "Match",
    "Namespace",
    "RadixCache",
    "Stats",
]
