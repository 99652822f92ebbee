"""A radix tree as text: a line for each node, indented below its parent."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from commlib.counts import counted
from commlib.radix.namespaces import decoded


class Node(NamedTuple):
    """A node in numbers, in the order of csrc/radix/check.cc."""

    id: int
    parent: int
    space: int
    length: int
    lock_ref: int
    handle_locks: int
    hits: int
    priority: int
    last_access: int
    creation: int
    first: int
    last: int


def text_of(table: bytes, names: tuple[bytes, ...]) -> str:
    """Return the text of the tree that the native listing describes; there, the root is the first node."""
    root, *nodes = (Node(*row) for row in np.frombuffer(table, np.int64).reshape(-1, len(Node._fields)).tolist())
    spaces = [None, *(repr(decoded(name)) for name in names[1:])]
    children: dict[int, list[Node]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: (spaces[node.space] or "None", node.first)):
        children[node.parent].append(node)
    lines = [f"root, {counted(root.handle_locks, 'lock')}"]
    stack = [(node, "") for node in reversed(children[root.id])]
    while stack:
        node, indent = stack.pop()
        is_last = not stack or stack[-1][0].parent != node.parent
        space = spaces[node.space] if node.parent == root.id else None
        lines.append(indent + ("└─ " if is_last else "├─ ") + _line(node, space))
        below = indent + ("   " if is_last else "│  ")
        stack += [(child, below) for child in reversed(children[node.id])]
    return "\n".join(lines)


def _line(node: Node, space: str | None) -> str:
    ids = str(node.first) if node.length == 1 else f"{node.first}…{node.last}"
    parts = [f"#{node.id}", counted(node.length, "token"), ids, f"hits {node.hits}", f"used {node.last_access}"]
    if node.lock_ref:
        parts.append(f"locked {node.lock_ref}")
    if node.priority:
        parts.append(f"priority {node.priority}")
    if space is not None:
        parts.append(f"in {space}")
    return "  ".join(parts)
