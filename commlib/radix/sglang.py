"""RadixCache in the place of SGLang's: its calls, its results, its pools."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commlib.radix.cache import InsertMatch, RadixCache
from commlib.radix.events import Event, Namespace

MAX_PRIORITY = 2**63 - 1
LOW, HIGH = -(2**31), 2**31 - 1  # of a token in the tree


# --- what the calls take and return; where they take these, SGLang's may be passed ------------------------------------


@dataclass
class RadixKey:
    """A prompt, and the namespace it is in; with a `limit` only so many tokens of it."""

    token_ids: Sequence[int]
    extra_key: str | None = None
    is_bigram: bool = False
    limit: int | None = None
    cache_salt: str | None = None

    def __len__(self) -> int:
        return len(self.token_ids) if self.limit is None else min(self.limit, len(self.token_ids))


@dataclass
class MatchPrefixParams:
    key: Any


@dataclass
class InsertParams:
    """What to store, in which slots; `chunked` says that more of the request comes."""

    key: Any
    value: Tensor | None = None
    chunked: bool = False
    priority: int | None = 0
    inserted_len: int = 0


@dataclass
class EvictParams:
    num_tokens: int = 0


@dataclass
class CacheInitParams:
    disable: bool = False
    req_to_token_pool: Any = None
    token_to_kv_pool_allocator: Any = None
    page_size: int = 1
    is_eagle: bool = False
    eviction_policy: str = "lru"
    disable_finished_insert: bool = False
    enable_kv_cache_events: bool = False


class MatchResult(NamedTuple):
    """The longest cached prefix: its slots and the node that it ends with. There is no host tier, so no host hit."""

    device_indices: Tensor
    last_device_node: int
    last_host_node: int
    best_match_node: int
    host_hit_length: int = 0
    swa_host_hit_length: int = 0
    swa_branching_seqlen: int | None = None
    mamba_host_hit_length: int = 0
    mamba_branching_seqlen: int | None = None
    cache_protected_len: int | None = None
    full_kv_hit_length: int = 0
    cache_actions: tuple[Any, ...] = ()
    last_visited_node_id: int | None = None
    full_device_match_len: int | None = None
    device_prefix_len: int = 0


class InsertResult(NamedTuple):
    """How many tokens were there already, and the node that the whole ends with."""

    prefix_len: int
    last_device_node: int | None = None


class EvictResult(NamedTuple):
    num_tokens_evicted: int = 0


class LockResult(NamedTuple):
    delta: int


class SGLangRadixCache:
    """A RadixCache with the calls of SGLang's, for its scheduler or for one that was written after it.

    A node is a number, the handle of RadixCache; `root_node` is that of a match of nothing. Slots come back as int64 on
    the device of the allocator, whose `free` gets every slot that is no longer needed.
    """

    def __init__(self, params: Any) -> None:
        if params.is_eagle:
            raise ValueError("is_eagle is set, but pairs of tokens are no keys here; use SGLang's cache for EAGLE")
        self.disable: bool = params.disable
        self.page_size: int = params.page_size
        self.eviction_policy: str = params.eviction_policy.lower()
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.disable_finished_insert: bool = getattr(params, "disable_finished_insert", False)
        self.device = torch.device(getattr(self.token_to_kv_pool_allocator, "device", "cpu"))
        events = params.enable_kv_cache_events and not self.disable
        self._cache = RadixCache(self.page_size, self.eviction_policy, events=events).slots_as(torch.int64, self.device)
        self.reset()

    @classmethod
    def create_simulated(
        cls,
        disable: bool = False,
        mock_allocator: Any = None,
        page_size: int = 1,
        enable_kv_cache_events: bool = False,
    ) -> SGLangRadixCache:
        params = CacheInitParams(disable, token_to_kv_pool_allocator=mock_allocator, page_size=page_size)
        params.enable_kv_cache_events = enable_kv_cache_events
        return cls(params)

    def reset(self) -> None:
        """Forget everything, locks as well; no slot is freed, as the pools are cleared by the caller."""
        self._cache.reset(force=True)
        self._wide: dict[int, int] = {}  # tokens above HIGH, with the number that each has in the tree
        match = self._cache.match(())
        self.root_node: int = match.handle
        self._nothing = MatchResult(match.slots, match.handle, match.handle, match.handle)

    # --- the tree ---------------------------------------------------------------------------------------------------

    def match_prefix(self, params: Any) -> MatchResult:
        """Find the longest cached prefix of `params.key`, in whole pages, and make it recent."""
        tokens, namespace = _parts(params.key)
        if self.disable or len(tokens) < self.page_size:
            return self._nothing
        ids = self._narrow(tokens) if self._wide else tokens
        length, slots, node = self._cache.match(ids, namespace=namespace)
        return MatchResult(slots, node, node, node, device_prefix_len=length)

    def touch_prefix(self, key: Any) -> None:
        self.match_prefix(MatchPrefixParams(key))

    def insert(self, params: Any) -> InsertResult:
        """Store the whole pages of `params.key` with the slots of `params.value`, the tokens themselves without one.

        The slots of the first `prefix_len` tokens are not taken: the caller frees them, but for those that it had from
        the cache.
        """
        tokens, namespace = _parts(params.key)
        count = self._whole(len(tokens))
        if self.disable or count == 0:
            return InsertResult(0, self.root_node)
        tokens = tokens[:count]
        slots = tokens if params.value is None else params.value[:count]
        counted = count if getattr(params, "chunked", False) else getattr(params, "inserted_len", 0)
        ids, priority = self._narrow(tokens), params.priority or 0
        return InsertResult(*self._cache.insert(ids, slots, namespace=namespace, priority=priority, counted=counted))

    def evict(self, params: Any) -> EvictResult:
        """Free `params.num_tokens` tokens by whole leaves, or what can be freed."""
        if self.disable:
            return EvictResult()
        freed = self._cache.evict(max(params.num_tokens, 0), at_most=True)
        self._free(freed)
        return EvictResult(len(freed))

    def inc_lock_ref(self, node: int) -> LockResult:
        """Keep the path to a node from being evicted; locks count, and the root needs none."""
        return self._changed(self._cache.lock, node)

    def dec_lock_ref(self, node: int, params: object = None) -> LockResult:
        return self._changed(self._cache.unlock, node)

    def _changed(self, change: Any, node: int) -> LockResult:
        if self.disable or node == self.root_node:
            return LockResult(0)
        before = self._cache.evictable_size
        change(node)
        return LockResult(self._cache.evictable_size - before)

    def lock(self, node: int) -> int:
        """Lock a node for one holder; give what comes back to `unlock`."""
        self.inc_lock_ref(node)
        return node

    def unlock(self, lock: int | None) -> None:
        if lock is not None:
            self.dec_lock_ref(lock)

    # --- what there is ----------------------------------------------------------------------------------------------

    def evictable_size(self) -> int:
        return self._cache.evictable_size

    def protected_size(self) -> int:
        return self._cache.protected_size

    def total_size(self) -> int:
        return self._cache.evictable_size + self._cache.protected_size

    def all_values_flatten(self) -> Tensor:
        """Return all slots, in no order."""
        return self._cache.slots()

    def path_device_indices(self, node: int) -> Tensor:
        return self._cache.slots(node)

    def is_root(self, node: int) -> bool:
        return node == self.root_node

    def supports_prefix_sharing(self) -> bool:
        return not self.disable

    def pretty_print(self) -> None:
        sys.stdout.write(f"{self._cache.dump()}\n#tokens: {self.total_size()}\n")

    def take_events(self) -> list[Event]:
        """Return what was stored and removed since the last call; nothing where events are off."""
        return self._cache.take_events() if self._cache.events else []

    # --- requests ---------------------------------------------------------------------------------------------------

    def cache_finished_req(self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int | None = None) -> None:
        """Take what a request that ended has computed, free its duplicates and its tail, and unlock its node."""
        kv = getattr(req, "kv", req)
        length = req.pop_committed_kv_cache() if kv_len_to_handle is None else kv_len_to_handle
        tokens = (req.origin_input_ids + req.output_ids)[:length]
        row = self._row(kv, len(tokens))
        if self.disable or self.disable_finished_insert or not is_insert:
            self._free(row[kv.cache_protected_len :])
        else:
            done = self._store(req, tokens, row)
            self._free(row[kv.cache_protected_len : done.existing])
            self._free(row[done.length :])
        self.unlock(req.last_node)

    def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:
        """Take what a request has computed so far; it reads the tree's slots from here on, and its lock moves on."""
        if self.disable:
            return
        kv = getattr(req, "kv", req)
        tokens = req.get_fill_ids() if hasattr(req, "get_fill_ids") else req.fill_ids
        row = self._row(kv, len(tokens))
        done = self._store(req, tokens, row, counted=len(tokens) if chunked else 0)
        self._rebind(kv, row, done)
        self.lock(done.handle)
        self.unlock(req.last_node)
        req.last_node = done.handle
        req.prefix_indices = torch.cat([done.slots, row[done.length :]]) if done.length < len(row) else done.slots

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        """Take what a request has computed so far, as SGLang 0.5.23 has it: for a request that goes on or has ended.

        The prompt stays longer than what was generated: it ends a separate node, of the next priority.
        """
        if self.disable:
            return
        kv, tokens = req.kv, req.full_untruncated_fill_ids[:up_to]
        row = self._row(kv, len(tokens))
        done = self._store(req, tokens, row, counted=kv.cache_inserted_len)
        kv.cache_inserted_len = max(kv.cache_inserted_len, done.length)
        prompt = self._whole(len(req.origin_input_ids))
        if 0 < prompt < done.length:
            self._store(req, tokens[:prompt], done.slots, counted=prompt, more=1)
        self._rebind(kv, row, done)
        lock = self.lock(done.handle)
        self.unlock(req.lock)
        req.lock = req.last_node = lock

    def _narrow(self, tokens: Any) -> Any:
        """Return tokens that fit 32 bits: SGLang has images in prompts as numbers of 62 bits."""
        ids = np.asarray(tokens)
        if not ids.size or ids.max() <= HIGH:
            return tokens
        ids, wide = ids.copy(), ids > HIGH
        values, which = np.unique(ids[wide], return_inverse=True)
        ids[wide] = np.array([self._wide.setdefault(value, LOW + len(self._wide)) for value in values.tolist()])[which]
        return ids

    def _whole(self, count: int) -> int:
        return count - count % self.page_size

    def _row(self, kv: Any, count: int) -> Tensor:
        row: Tensor = self.req_to_token_pool.req_to_token[kv.req_pool_idx, :count]
        return row

    def _store(self, req: Any, tokens: Any, slots: Tensor, *, counted: int = 0, more: int = 0) -> InsertMatch:
        whole, priority = self._whole(len(tokens)), (getattr(req, "priority", 0) or 0) + more
        ids = self._narrow(tokens[:whole])
        return self._cache.insert_and_match(
            ids, slots[:whole], namespace=_namespace(req), priority=min(priority, MAX_PRIORITY), counted=counted
        )

    def _rebind(self, kv: Any, row: Tensor, done: InsertMatch) -> None:
        """Let a row of the pool have the tree's slots, and free those it had for the same tokens."""
        start = kv.cache_protected_len
        self._free(row[start : done.existing].clone())  # the row is about to change
        self.req_to_token_pool.write((kv.req_pool_idx, slice(start, done.length)), done.slots[start:])
        kv.cache_protected_len = done.length

    def _free(self, slots: Tensor) -> None:
        if len(slots) and self.token_to_kv_pool_allocator is not None:
            self.token_to_kv_pool_allocator.free(slots)


def _parts(key: Any) -> tuple[Sequence[int], Namespace]:
    """Return the tokens of a key that count, and its namespace."""
    if getattr(key, "is_bigram", False):
        raise ValueError("the key is of pairs of tokens (is_bigram), but must be of tokens; EAGLE is not supported")
    limit = getattr(key, "limit", None)
    return key.token_ids if limit is None else key.token_ids[:limit], _namespace(key)


def _namespace(of: Any) -> Namespace:
    salt = getattr(of, "cache_salt", None)
    return (of.extra_key, salt) if salt else of.extra_key
