"""PrefixCache: minisgl's prefix cache on our radix tree; `--cache-type commlib`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from minisgl.core import get_global_ctx
from minisgl.kvcache.base import BaseCacheHandle, BasePrefixCache, InsertResult, MatchResult, SizeInfo
from torch import Tensor

from commlib.radix import RadixCache


@dataclass(frozen=True)
class CacheHandle(BaseCacheHandle):
    number: int
    tree: RadixCache

    def get_matched_indices(self) -> Tensor:
        return self.tree.slots(self.number)


class PrefixCache(BasePrefixCache):
    """Least recently used leaves are evicted first, as in minisgl's own cache."""

    def __init__(self, device: torch.device) -> None:
        self.page_size: int = get_global_ctx().page_size
        self.tree = RadixCache(self.page_size).slots_as(torch.int32, device)
        self.empty_tensor = torch.empty(0, dtype=torch.int32, device=device)

    def lock_handle(self, handle: BaseCacheHandle, unlock: bool = False) -> None:
        (self.tree.unlock if unlock else self.tree.lock)(handle.number)

    def match_prefix(self, input_ids: Tensor) -> MatchResult:
        match = self.tree.match(input_ids)
        return MatchResult(CacheHandle(match.length, match.handle, self.tree))

    def insert_prefix(self, input_ids: Tensor, indices: Tensor) -> InsertResult:
        """Store whole pages; the slots of what was cached before stay the caller's."""
        existing, handle = self.tree.insert(input_ids, indices)
        length = len(input_ids) // self.page_size * self.page_size
        return InsertResult(existing, CacheHandle(length, handle, self.tree))

    def evict(self, size: int) -> Tensor:
        if size > self.tree.evictable_size:
            raise RuntimeError(f"cannot evict {size} tokens, only {self.tree.evictable_size} are evictable")
        return self.tree.evict(size) if size else self.empty_tensor

    def reset(self) -> None:
        self.tree.reset()

    @property
    def size_info(self) -> SizeInfo:
        return SizeInfo(self.tree.evictable_size, self.tree.protected_size)

    def check_integrity(self) -> None:
        self.tree.check()
