"""Names of namespaces as bytes: typed and length-prefixed, so that no two names share an encoding."""

from __future__ import annotations

from typing import TypeAlias

Part: TypeAlias = "str | bytes | int | None"
Namespace: TypeAlias = "Part | tuple[Part, ...]"


def encoded(namespace: Namespace) -> bytes | None:
    """Return the bytes that stand for a namespace; None, the namespace of nobody, has none."""
    if namespace is None:
        return None
    if isinstance(namespace, tuple):
        return b"t" + b"".join(_part(part) for part in namespace)
    return _part(namespace)


def decoded(data: bytes | None) -> Namespace:
    """Return the namespace of which encoded() returned this."""
    if data is None:
        return None
    if data[:1] == b"t":
        parts, rest = [], data[1:]
        while rest:
            part, rest = _first(rest)
            parts.append(part)
        return tuple(parts)
    return _first(data)[0]


def _part(part: Part) -> bytes:
    if part is None:
        return _tagged(b"n", b"")
    if isinstance(part, str):
        return _tagged(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, bytes):
        return _tagged(b"b", part)
    if isinstance(part, int) and not isinstance(part, bool):
        return _tagged(b"i", part.to_bytes(part.bit_length() // 8 + 1, "little", signed=True))
    raise TypeError(
        f"a namespace holds a {type(part).__name__}, but must be None, str, bytes, int, or a tuple of those; convert it"
    )


def _tagged(tag: bytes, data: bytes) -> bytes:
    return tag + len(data).to_bytes(4, "little") + data


def _first(data: bytes) -> tuple[Part, bytes]:
    end = 5 + int.from_bytes(data[1:5], "little")
    body, rest = data[5:end], data[end:]
    if data[:1] == b"s":
        return body.decode("utf-8", "surrogatepass"), rest
    if data[:1] == b"i":
        return int.from_bytes(body, "little", signed=True), rest
    return (body if data[:1] == b"b" else None), rest
