"""A radix tree as text and as a picture, from the numbers of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from math import log2

import numpy as np

from commlib.counts import counted
from commlib.radix.namespaces import Namespace, decoded

# Colours of the picture: what locks protect, and what may go.
LOCKED, FREE = "#f4b183", "#bdd7ee"


@dataclass
class Node:
    """A node in numbers, in the order of csrc/radix/check.cc, and what is below it."""

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
    namespace: Namespace = field(kw_only=True)
    children: list[Node] = field(default_factory=list, kw_only=True)


def nodes_of(table: bytes, names: tuple[bytes, ...]) -> Node:
    """Return the root of the tree that the native listing describes; parents come before their children there."""
    nodes: dict[int, Node] = {}
    for row in np.frombuffer(table, np.int64).reshape(-1, 12).tolist():
        space = row[2]
        node = Node(*row, namespace=decoded(names[space] if space else None))
        if nodes:
            nodes[node.parent].children.append(node)
        nodes[node.id] = node
    for node in nodes.values():
        node.children.sort(key=lambda child: (repr(child.namespace), child.first))
    return nodes[0]


def text_of(root: Node) -> str:
    """Return one line for each node, indented by its depth."""
    lines: list[str] = []
    stack = [(root, "", "")]
    while stack:
        node, lead, below = stack.pop()
        lines.append(lead + _words(node))
        last = len(node.children) - 1
        entries = [
            (child, below + ("└─ " if i == last else "├─ "), below + ("   " if i == last else "│  "))
            for i, child in enumerate(node.children)
        ]
        stack.extend(reversed(entries))
    return "\n".join(lines)


def _words(node: Node) -> str:
    if node.length == 0:
        return f"root, {counted(node.own_locks, 'lock')}"
    ids = str(node.first) if node.length == 1 else f"{node.first}…{node.last}"
    parts = [f"#{node.id}", counted(node.length, "token"), ids, f"hits {node.hits}", f"used {node.last_access}"]
    if node.lock_ref:
        parts.append(f"locked {node.lock_ref}")
    if node.priority:
        parts.append(f"priority {node.priority}")
    if node.parent == 0 and node.namespace is not None:
        parts.append(f"in {node.namespace!r}")
    return "  ".join(parts)


# Of the picture, in pixels: a row for each leaf; the width of a node grows with the logarithm of its tokens.
_ROW, _GAP, _MARGIN, _LETTER = 26, 3, 10, 7


def svg_of(root: Node) -> str:
    """Return the tree as an SVG: a box for each node, its children to the right, as high as its leaves."""
    rows = _rows_below(root)
    boxes: list[str] = []
    right = 0
    stack = [(root, _MARGIN, 0)]
    while stack:
        node, x, row = stack.pop()
        width = _width(node)
        boxes.append(_box(node, x, _MARGIN + row * _ROW, (width, rows[node.id] * _ROW - _GAP)))
        right = max(right, x + width)
        for child in node.children:
            stack.append((child, x + width + _GAP, row))
            row += rows[child.id]
    height = rows[root.id] * _ROW + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + _MARGIN}" height="{height}" '
        f'font-family="monospace" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(boxes)
        + "\n</svg>\n"
    )


def _rows_below(root: Node) -> dict[int, int]:
    """Return how many leaves are below each node; a leaf counts itself."""
    order = [root]
    for node in order:
        order.extend(node.children)
    rows: dict[int, int] = {}
    for node in reversed(order):
        rows[node.id] = max(1, sum(rows[child.id] for child in node.children))
    return rows


def _label(node: Node) -> str:
    if node.length == 0:
        return "root"
    space = f" {node.namespace!r}" if node.parent == 0 and node.namespace is not None else ""
    locks = f" locked {node.lock_ref}" if node.lock_ref else ""
    return f"{node.length}: {node.first}…{node.last}{locks}{space}"


def _width(node: Node) -> int:
    return max(len(_label(node)) * _LETTER + 10, int(12 * log2(node.length + 1)))


def _box(node: Node, x: int, y: int, size: tuple[int, int]) -> str:
    width, height = size
    colour = "#e7e6e6" if node.length == 0 else LOCKED if node.lock_ref else FREE
    return (
        f'<g><title>{escape(_words(node))}</title><rect x="{x}" y="{y}" width="{width}" height="{height}" '
        f'rx="3" fill="{colour}" stroke="#44546a"/>'
        f'<text x="{x + 5}" y="{y + height / 2 + 4:g}">{escape(_label(node))}</text></g>'
    )
