"""Events about a cache's blocks, in the fields of vLLM's and SGLang's routers; namespaces of prompts as bytes."""

from __future__ import annotations

from ast import literal_eval
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Part: TypeAlias = "str | bytes | int | None"
Namespace: TypeAlias = "Part | tuple[Part, ...]"
_PARTS = (str, bytes, int, NoneType)
MEDIUM = "GPU"


class BlockStored(NamedTuple):
    """Pages of one chain came; a page's hash covers all tokens before it, and the namespace."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = MEDIUM
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(NamedTuple):
    """Pages went, by eviction or to make room."""

    block_hashes: list[int]
    medium: str | None = MEDIUM


class AllBlocksCleared(NamedTuple):
    """The cache was reset."""


Event: TypeAlias = "BlockStored | BlockRemoved | AllBlocksCleared"


def as_array(event: Event) -> list[Any]:
    """Return an event as routers read it from a msgpack array: its name, then its fields."""
    return [type(event).__name__, *event]


def as_map(event: Event) -> dict[str, Any]:
    """Return an event as routers read it from a msgpack map, fields that are not set left out."""
    return {
        "type": type(event).__name__,
        **{name: value for name, value in event._asdict().items() if value is not None},
    }


def unpacked(data: bytes, page_size: int) -> list[Event]:
    """Return the events that csrc/radix/events.cc packed."""
    numbers = np.frombuffer(data, np.int64)
    events: list[Event] = []
    at = 0
    while at < len(numbers):
        kind = int(numbers[at])
        if kind == 0:
            event, at = _stored(numbers, at + 1, page_size)
            events.append(event)
        elif kind == 1:
            end = at + 2 + int(numbers[at + 1])
            events.append(BlockRemoved(numbers[at + 2 : end].tolist()))
            at = end
        else:
            events.append(AllBlocksCleared())
            at += 1
    return events


def _stored(numbers: np.ndarray[Any, np.dtype[np.int64]], at: int, page_size: int) -> tuple[BlockStored, int]:
    pages, tokens, name_bytes, has_parent, parent = (int(number) for number in numbers[at : at + 5])
    at += 5
    hashes = numbers[at : at + pages].tolist()
    at += pages
    token_ids = numbers[at : at + (tokens + 1) // 2].view(np.int32)[:tokens].tolist()
    at += (tokens + 1) // 2
    name_numbers = (max(name_bytes, 0) + 7) // 8
    name = numbers[at : at + name_numbers].tobytes()[:name_bytes] if name_bytes >= 0 else None
    namespace = decoded(name)
    extra: list[tuple[Any, ...] | None] | None = None if namespace is None else [_parts(namespace)] * pages
    event = BlockStored(
        hashes, parent if has_parent else None, token_ids, page_size, _adapter(namespace), extra_keys=extra
    )
    return event, at + name_numbers


def _parts(namespace: Namespace) -> tuple[Any, ...]:
    return namespace if isinstance(namespace, tuple) else (namespace,)


def _adapter(namespace: Namespace) -> int | None:
    return next((part for part in _parts(namespace) if isinstance(part, int)), None)


# --- namespaces: as Python writes them, in ASCII, so that no two names share an encoding ------------------------------


def encoded(namespace: Namespace) -> bytes | None:
    """Return the bytes that stand for a namespace; None, the namespace of nobody, has none."""
    if namespace is None:
        return None
    for part in _parts(namespace):
        if type(part) not in _PARTS:
            raise TypeError(
                f"a namespace holds a {type(part).__name__}, but must be None, str, bytes, int, or a tuple of those; "
                f"convert it"
            )
    return ascii(namespace).encode()


def decoded(data: bytes | None) -> Namespace:
    """Return the namespace of which encoded() returned this; None where the tree has dropped its name."""
    namespace: Namespace = literal_eval(data.decode()) if data else None
    return namespace
