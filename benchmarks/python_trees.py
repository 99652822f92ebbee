"""Radix trees in Python as engines had them: lists compared by a zip loop (2025), arrays compared by galloping (2026).

Own reductions to what a request needs. Both keep their leaves in a set and build a heap of them for each eviction.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Node:
    """A run of tokens, its slots, and what the order of eviction needs."""

    __slots__ = ("children", "key", "locks", "parent", "used", "value")

    def __init__(self, parent: Node | None, key: Any, value: Tensor | None, used: int) -> None:
        self.parent, self.key, self.value, self.used = parent, key, value, used
        self.children: dict[Any, Node] = {}
        self.locks = 0

    def __lt__(self, other: Node) -> bool:
        return self.used < other.used


class ZipTree:
    """Keys are lists; two are compared token by token."""

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._root = Node(None, (), None, 0)
        self._root.locks = 1
        self._leaves: set[Node] = set()  # unlocked
        self._clock = 0
        self.evictable = self.locked = 0

    @staticmethod
    def keys(tokens: Sequence[int]) -> Any:
        """Return a prompt as this tree takes it."""
        return list(tokens)

    def match(self, key: Any) -> tuple[int, Tensor, Node]:
        """Return length, slots and node of the longest prefix in whole pages."""
        node, length, pieces = self._walk(key)
        return length, torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64), node

    def insert(self, key: Any, slots: Tensor) -> int:
        """Store the whole pages that are not there; return how many tokens were."""
        key = key[: len(key) - len(key) % self._page]
        node, length, _ = self._walk(key)
        if length < len(key):
            leaf = Node(node, key[length:], slots[length : len(key)].clone(), self._clock)
            node.children[self._first(leaf.key)] = leaf
            self._leaves.discard(node)
            self._leaves.add(leaf)
            self.evictable += len(leaf.key)
        return length

    def lock(self, node: Node | None) -> None:
        """Keep a path."""
        while node is not None and node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node.key)
                self.locked += len(node.key)
                self._leaves.discard(node)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node | None) -> None:
        """Give it free."""
        while node is not None and node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.key)
                self.locked -= len(node.key)
                if not node.children:
                    self._leaves.add(node)
            node = node.parent

    def evict(self, tokens: int) -> list[Tensor]:
        """Free whole leaves, least recently used first, until so many tokens are free."""
        heap = list(self._leaves)
        heapq.heapify(heap)
        freed: list[Tensor] = []
        done = 0
        while done < tokens:
            leaf = heapq.heappop(heap)
            assert leaf.parent is not None and leaf.value is not None
            done += len(leaf.key)
            freed.append(leaf.value)
            self._leaves.discard(leaf)
            del leaf.parent.children[self._first(leaf.key)]
            if not leaf.parent.children and leaf.parent.locks == 0:
                self._leaves.add(leaf.parent)
                heapq.heappush(heap, leaf.parent)
        self.evictable -= done
        return freed

    def _first(self, key: Any) -> Any:
        return key[0] if self._page == 1 else tuple(key[: self._page])

    def _same(self, a: Any, b: Any) -> int:
        count = 0
        for x, y in zip(a, b, strict=False):
            if x != y:
                break
            count += 1
        return count

    def _walk(self, key: Any) -> tuple[Node, int, list[Tensor]]:
        self._clock += 1
        node, length, pieces = self._root, 0, []
        while len(key) >= self._page:
            child = node.children.get(self._first(key))
            if child is None:
                break
            same = self._same(child.key, key)
            same -= same % self._page
            if same < len(child.key):
                child = self._split(child, same)
            child.used = self._clock
            assert child.value is not None
            pieces.append(child.value)
            node, length, key = child, length + same, key[same:]
        return node, length, pieces

    def _split(self, child: Node, length: int) -> Node:
        assert child.parent is not None and child.value is not None
        front = Node(child.parent, child.key[:length], child.value[:length].clone(), child.used)
        front.locks = child.locks
        child.parent.children[self._first(front.key)] = front
        child.key, child.value, child.parent = child.key[length:], child.value[length:].clone(), front
        front.children[self._first(child.key)] = child
        return front


class GallopTree(ZipTree):
    """Keys are arrays; slices that double are compared as bytes, then halved."""

    @staticmethod
    def keys(tokens: Sequence[int]) -> Any:
        """Return a prompt as this tree takes it."""
        return array("q", tokens)

    def _same(self, a: Any, b: Any) -> int:
        count, done, step = min(len(a), len(b)), 0, 64
        while done < count and a[done : done + step] == b[done : done + step]:
            done, step = done + step, step * 2
        if done >= count:
            return count
        while step > 1:  # the first difference is within `step` of done
            step //= 2
            if a[done : done + step] == b[done : done + step]:
                done += step
        return min(done, count)
