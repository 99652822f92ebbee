"""A radix tree as text and as a picture, from the numbers of its nodes."""

from __future__ import annotations

from html import escape
from math import log2
from typing import NamedTuple

import numpy as np

from commlib.radix.namespaces import Namespace, decoded

# Colours of the picture: what locks protect, and what may go.
LOCKED, FREE = "#f4b183", "#bdd7ee"


class Node(NamedTuple):
    """A node in numbers: csrc/radix/check.cc has the order."""

    id: int
    parent: int
    space: int
    length: int
    lock_ref: int
    own_locks: int
    hits: int
    priority: int
    last_access: int
    creation: int
    first: int
    last: int


class Branch(NamedTuple):
    """A node with what is below it."""

    node: Node
    namespace: Namespace
    children: list[Branch]


def nodes_of(table: bytes, names: tuple[bytes, ...]) -> Branch:
    """Return the root of the tree that the native listing describes; parents come before their children there."""
    rows = np.frombuffer(table, np.int64).reshape(-1, len(Node._fields))
    branches: dict[int, Branch] = {}
    for row in rows.tolist():
        node = Node(*row)
        branches[node.id] = Branch(node, decoded(names[node.space] if node.space else None), [])
        if len(branches) > 1:
            branches[node.parent].children.append(branches[node.id])
    for branch in branches.values():
        branch.children.sort(key=lambda child: (repr(child.namespace), child.node.first))
    return branches[0]


def text_of(root: Branch) -> str:
    """Return one line for each node, indented by its depth."""
    lines: list[str] = []
    stack = [(root, "", "")]
    while stack:
        branch, lead, below = stack.pop()
        lines.append(lead + _words(branch))
        last = len(branch.children) - 1
        entries = [
            (child, below + ("└─ " if i == last else "├─ "), below + ("   " if i == last else "│  "))
            for i, child in enumerate(branch.children)
        ]
        stack.extend(reversed(entries))
    return "\n".join(lines)


def _words(branch: Branch) -> str:
    node = branch.node
    if node.length == 0:
        return f"root, {node.own_locks} locks"
    ids = str(node.first) if node.length == 1 else f"{node.first}…{node.last}"
    parts = [f"#{node.id}", f"{node.length} tokens", ids, f"hits {node.hits}", f"used {node.last_access}"]
    if node.lock_ref:
        parts.append(f"locked {node.lock_ref}")
    if node.priority:
        parts.append(f"priority {node.priority}")
    if node.parent == 0 and branch.namespace is not None:
        parts.append(f"in {branch.namespace!r}")
    return "  ".join(parts)


# Of the picture, in pixels: a row for each leaf; the width of a node grows with the logarithm of its tokens.
_ROW, _GAP, _MARGIN, _LETTER = 26, 3, 10, 7


def svg_of(root: Branch) -> str:
    """Return the tree as an SVG: a box for each node, its children to the right, as high as its leaves."""
    rows = _rows_below(root)
    boxes: list[str] = []
    right = 0
    stack = [(root, _MARGIN, 0)]
    while stack:
        branch, x, row = stack.pop()
        width = _width(branch)
        boxes.append(_box(branch, x, _MARGIN + row * _ROW, (width, rows[branch.node.id] * _ROW - _GAP)))
        right = max(right, x + width)
        for child in branch.children:
            stack.append((child, x + width + _GAP, row))
            row += rows[child.node.id]
    height = rows[root.node.id] * _ROW + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + _MARGIN}" height="{height}" '
        f'font-family="monospace" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(boxes)
        + "\n</svg>\n"
    )


def _rows_below(root: Branch) -> dict[int, int]:
    """Return how many leaves are below each node; a leaf counts itself."""
    order = [root]
    for branch in order:
        order.extend(branch.children)
    rows: dict[int, int] = {}
    for branch in reversed(order):
        rows[branch.node.id] = max(1, sum(rows[child.node.id] for child in branch.children))
    return rows


def _label(branch: Branch) -> str:
    node = branch.node
    if node.length == 0:
        return "root"
    space = f" {branch.namespace!r}" if node.parent == 0 and branch.namespace is not None else ""
    locks = f" locked {node.lock_ref}" if node.lock_ref else ""
    return f"{node.length}: {node.first}…{node.last}{locks}{space}"


def _width(branch: Branch) -> int:
    return max(len(_label(branch)) * _LETTER + 10, int(12 * log2(branch.node.length + 1)))


def _box(branch: Branch, x: int, y: int, size: tuple[int, int]) -> str:
    width, height = size
    node = branch.node
    colour = "#e7e6e6" if node.length == 0 else LOCKED if node.lock_ref else FREE
    return (
        f'<g><title>{escape(_words(branch))}</title><rect x="{x}" y="{y}" width="{width}" height="{height}" '
        f'rx="3" fill="{colour}" stroke="#44546a"/>'
        f'<text x="{x + 5}" y="{y + height / 2 + 4:g}">{escape(_label(branch))}</text></g>'
    )
