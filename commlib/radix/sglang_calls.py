"""What SGLang's radix cache takes and returns, by its names; where it takes these, SGLang's may be passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor


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
    """How many tokens went."""

    num_tokens_evicted: int = 0


class LockResult(NamedTuple):
    """The change of the evictable size."""

    delta: int
