"""RadixCache on the native tree: checks what native code cannot see, calls it, and reports freed slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from commlib.counts import counted
from commlib.errors import Unsupported, one_line, one_of
from commlib.native import library
from commlib.radix.events import Event, Namespace, encoded, unpacked

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")
EVICTIONS = ("leaf", "tail")
SLOTS = (torch.int32, torch.int64)


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


R = TypeVar("R", Insert, InsertMatch)

# What native code returns instances of.
_RESULTS = (Match, Insert, InsertMatch)


class RadixCache:
    """Finds the cache slots that hold a prefix of a prompt, and says which to free when room is needed.

    Use it in this order: `match` a prompt, `lock` the handle, `evict` if slots are short, compute the rest, `insert`
    it, `unlock`. Prefixes are whole pages of `page_size` tokens; tokens after the last full page are never stored.

    `policy` says which unlocked leaf goes first: the one least recently used (lru), inserted least often (lfu), oldest
    (fifo), most recently used (mru), youngest (filo), of the lowest priority, or lru with leaves inserted once before
    those inserted again (slru). Among equals, the one with the older access goes first. Time is a count of calls, so
    ranks that make the same calls evict the same slots. `eviction="leaf"` frees whole leaves until enough is free,
    "tail" frees only the pages needed, from the end of the last leaf.

    With a `capacity` (in tokens), an insert that would exceed it evicts first; if too few tokens are unlocked, it
    raises ValueError and changes nothing. `on_free(slots)` is called after every evict, insert and reset that freed
    slots, when the tree is consistent again. `evict` also returns these slots: free them in one of the two places only.

    ids and slots are lists of int, or int32 or int64 torch tensors on any device, numpy arrays, arrays, memoryviews.
    They are copied, and stored as int32 (insert refuses larger numbers, match does not find them). Slots are returned
    as int32 on the CPU; `slots_as` sets another type or device. Calls from several threads are safe; one runs at a
    time. A call that raises has not changed the tree.
    """

    def __init__(
        self,
        page_size: int = 1,
        policy: str = "lru",
        capacity: int | None = None,
        on_free: Callable[[Tensor], object] | None = None,
        *,
        eviction: str = "leaf",
        events: bool = False,
    ) -> None:
        one_of("policy", policy, POLICIES)
        one_of("eviction", eviction, EVICTIONS)
        _count("page_size", page_size, 1)
        if capacity is not None:
            _count("capacity", capacity, 0)
        number, tail, limit = POLICIES.index(policy), eviction == "tail", -1 if capacity is None else capacity
        self._tree = library.radix_open(page_size, number, tail, events, limit, *_RESULTS)
        self._on_free = on_free
        self._device: torch.device | None = None  # where slots go that come back; None: the CPU
        self.page_size, self.policy, self.capacity = page_size, policy, capacity
        self.eviction, self.events = eviction, events

    def slots_as(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> RadixCache:
        """Return slots from now on as int32 or int64 tensors on `device`; `out` is not converted. Returns this cache.

        A tensor on a GPU is copied to the CPU when it is inserted, which waits for the work before it on its stream.
        """
        if dtype not in SLOTS:
            raise ValueError(f"dtype of slots_as is {dtype}, but must be torch.int32 or torch.int64")
        device = torch.device(device)
        try:
            torch.empty(0, dtype=dtype, device=device)
        except (RuntimeError, AssertionError) as error:
            raise Unsupported(
                f"device of slots_as is {device}, which torch cannot use here: {one_line(error)}"
            ) from None
        self._tree.widen(dtype == torch.int64)
        self._device = None if device.type == "cpu" else device
        return self

    def match(self, ids: Any, *, namespace: Namespace = None, touch: bool = True, out: Any = None) -> Match:
        """Return the longest cached prefix of `ids`, in whole pages, with a copy of its slots and its handle.

        The handle stands for exactly this prefix; a node may be split for it. If nothing matches, the handle is the
        root's, which you may lock like any other. `touch=False` leaves the order of eviction as it is. With `out`,
        which must be as long as ids, the slots are its first `length` elements, and `out` is what is returned.
        """
        name = None if namespace is None else encoded(namespace)
        match = self._tree.match(ids, name, touch, out)
        return match if self._device is None or out is not None else match._replace(slots=self._moved(match.slots))

    def match_many(self, ids: Sequence[Any], namespaces: Sequence[Namespace] | None = None) -> Tensor:
        """Return the matched lengths of many prompts, for a waiting queue; nothing is touched or split."""
        if namespaces is None:
            names: list[bytes | None] = [None] * len(ids)
        else:
            names = [encoded(namespace) for namespace in namespaces]
        if len(names) != len(ids):
            names_text = counted(len(names), "namespace")
            raise ValueError(f"{names_text} for {counted(len(ids), 'prompt')}; pass one for each prompt")
        return self._tree.match_many(ids, names)

    def insert(
        self, ids: Any, slots: Any, *, namespace: Namespace = None, priority: int = 0, counted: int = 0
    ) -> Insert:
        """Store the whole pages of `ids` with their slots; `existing` tokens were there, and keep the slots they had.

        The handle stands for all of it. `priority` raises that of the whole path, where it is higher. A request that
        inserts again as it grows gives as `counted` how many tokens it inserted before, so that lfu and slru count it
        once.
        """
        name = None if namespace is None else encoded(namespace)
        done = self._tree.insert(ids, slots, name, priority, counted)
        return done if isinstance(done, Insert) else self._freed(*done)

    def insert_and_match(
        self, ids: Any, slots: Any, *, namespace: Namespace = None, priority: int = 0, counted: int = 0
    ) -> InsertMatch:
        """Insert, and return the slots that the tree now has for all of these tokens."""
        done = self._tree.insert_and_match(ids, slots, encoded(namespace), priority, counted)
        done = done if isinstance(done, InsertMatch) else self._freed(*done)
        return done if self._device is None else done._replace(slots=self._moved(done.slots))

    def _freed(self, result: R, slots: Tensor) -> R:
        """Report slots that a call freed, and return its result."""
        self._reported(slots)
        return result

    def _reported(self, freed: Tensor) -> Tensor:
        """Return freed slots as the caller wants them, when on_free knows of them."""
        freed = self._moved(freed)
        if self._on_free is not None and len(freed) > 0:
            self._on_free(freed)
        return freed

    def _moved(self, slots: Tensor) -> Tensor:
        return slots if self._device is None else slots.to(self._device)

    def lock(self, handle: int) -> None:
        """Protect the handle's prefix from eviction; each lock needs one unlock."""
        self._tree.lock(handle)

    def unlock(self, handle: int) -> None:
        """Take back one lock of this handle."""
        self._tree.unlock(handle)

    def slots(self, handle: int | None = None) -> Tensor:
        """Return the slots of a handle's prefix; without a handle, all cached slots in no particular order."""
        return self._moved(self._tree.slots(handle))

    def evict(self, n: int, *, at_most: bool = False) -> Tensor:
        """Free at least `n` tokens and return their slots, in the order of eviction.

        If fewer are evictable, it raises ValueError and changes nothing; with `at_most` it frees those that are, or
        none.
        """
        return self._reported(self._tree.evict(n, at_most))

    def reset(self, *, force: bool = False) -> None:
        """Free everything; refused while locks are held, unless forced. All handles become invalid."""
        self._reported(self._tree.reset(force))

    @property
    def evictable_size(self) -> int:
        """Tokens that no lock protects."""
        return self._tree.evictable()

    @property
    def protected_size(self) -> int:
        """Tokens that locks protect; the sum with evictable_size is all cached tokens."""
        return self._tree.locked()

    def stats(self) -> Stats:
        """Return counts of calls and tokens, and what the tree holds."""
        return Stats(*self._tree.stats())

    def check(self) -> None:
        """Recompute every invariant, for tests and debugging; RuntimeError names the first that does not hold."""
        self._tree.check()

    def take_events(self) -> list[Event]:
        """Return what was stored and removed since the last call, for a cache made with events=True.

        They stay until taken. A block's hash is the first 8 bytes, signed and big-endian, of the SHA-256 of the
        digest before it and its tokens as 4 bytes each, little-endian; the first one of a namespace chains to the
        SHA-256 of the namespace's encoding.
        """
        if not self.events:
            raise ValueError("this cache records no events; make it with events=True")
        return unpacked(self._tree.take_events(), self.page_size)

    def dump(self) -> str:
        """Return the tree as text, a line for each node."""
        return self._tree.listing()

    def __reduce__(self) -> NoReturn:
        """Two objects on one tree would free each other's slots, so copy, deepcopy and pickle are refused."""
        raise TypeError("a RadixCache cannot be copied or pickled; make another one")

    def __repr__(self) -> str:
        return (
            f"RadixCache(page_size={self.page_size}, policy={self.policy!r}, eviction={self.eviction!r}, "
            f"{counted(self.evictable_size, 'token')} evictable, {self.protected_size} protected)"
        )


def _count(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is of type {type(value).__name__}, but must be an int")
    if not minimum <= value < 2**31:
        raise ValueError(f"{name} is {value}, but must be from {minimum} to 2^31 - 1")
