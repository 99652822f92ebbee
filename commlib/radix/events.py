"""Events about a cache's blocks, in the fields of vLLM's and SGLang's routers; namespaces of prompts as bytes."""

from __future__ import annotations

import json
from ast import literal_eval
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

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


def unpacked(text: str, page_size: int) -> list[Event]:
    """Return the events that csrc/radix/events.cc wrote."""
    events: list[Event] = []
    for hashes, tokens, parent, name in json.loads(text):
        if tokens:
            namespace = decoded(name)
            parts = _parts(namespace)
            adapter = next((part for part in parts if isinstance(part, int)), None)
            extra: list[tuple[Any, ...] | None] | None = None if namespace is None else [parts] * len(hashes)
            events.append(BlockStored(hashes, parent, tokens, page_size, adapter, extra_keys=extra))
        else:
            events.append(BlockRemoved(hashes) if hashes else AllBlocksCleared())
    return events


def _parts(namespace: Namespace) -> tuple[Any, ...]:
    return namespace if isinstance(namespace, tuple) else (namespace,)


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


def decoded(name: str | None) -> Namespace:
    """Return the namespace of which encoded() returned this."""
    namespace: Namespace = None if name is None else literal_eval(name)
    return namespace
