"""What the calls of a RadixCache return."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Match(NamedTuple):
    """The longest cached prefix: its tokens, their slots, and the handle that locks exactly it."""

    length: int
    slots: Tensor
    handle: int


class Insert(NamedTuple):
    """How many tokens were there already (the caller keeps or frees the slots it passed for them), and the handle."""

    existing: int
    handle: int


class InsertMatch(NamedTuple):
    """An insert and, from the same walk, the tree's slots of the whole prefix."""

    existing: int
    length: int
    slots: Tensor
    handle: int


class Stats(NamedTuple):
    """Counts since the cache was made, and what it holds now."""

    matches: int
    requested_tokens: int
    hit_tokens: int
    inserts: int
    inserted_tokens: int
    evicted_leaves: int
    evicted_tokens: int
    splits: int
    nodes: int
    leaves: int
    locks: int
    memory_bytes: int
