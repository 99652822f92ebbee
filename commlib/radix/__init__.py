"""RadixCache: which cache slots hold a prompt's prefix, and which to free; csrc/radix/ has the tree."""

from __future__ import annotations

from commlib.radix.cache import POLICIES, RadixCache
from commlib.radix.events import AllBlocksCleared, BlockRemoved, BlockStored
from commlib.radix.namespaces import Namespace
from commlib.radix.results import Insert, InsertMatch, Match, Stats

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
