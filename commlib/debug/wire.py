"""What goes between a reader and a rank on another host: signed with a key that only the ranks and their user know.

The rank sends a number of its own; the reader sends one, and its request; the rank answers. Each side signs what it
says with the key and the other's number, so nothing said before counts again.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import zlib
from typing import Any

_SIGNATURE, _NUMBER, _SIZE = 32, 16, struct.Struct("!Q")
_MOST_REQUEST = 1 << 12


def answer(sock: socket.socket, key: bytes, say: Any) -> None:
    """Be the rank: answer one request with what `say` returns for it; OSError and ValueError: no reader of ours."""
    number = secrets.token_bytes(_NUMBER)
    sock.sendall(number)
    signature, theirs, asked = _exactly(sock, _SIGNATURE), _exactly(sock, _NUMBER), _framed(sock, _MOST_REQUEST)
    if not hmac.compare_digest(signature, hmac.digest(key, b"ask" + number + theirs + asked, "sha256")):
        raise ValueError("a request that is not signed with the key")
    said = zlib.compress(json.dumps(say(json.loads(asked))).encode(), 1)
    sock.sendall(hmac.digest(key, b"say" + theirs + said, "sha256") + _SIZE.pack(len(said)) + said)


def knock(sock: socket.socket) -> bytes:
    """Be the reader: return the rank's number, which comes at once unless the rank is stopped."""
    return _exactly(sock, _NUMBER)


def ask(sock: socket.socket, number: bytes, key: bytes, request: Any) -> Any:
    """Return the answer of the rank with that number to a request; OSError and ValueError: there is none."""
    mine, asked = secrets.token_bytes(_NUMBER), json.dumps(request).encode()
    signature = hmac.digest(key, b"ask" + number + mine + asked, "sha256")
    sock.sendall(signature + mine + _SIZE.pack(len(asked)) + asked)
    signature, said = _exactly(sock, _SIGNATURE), _framed(sock, 1 << 30)
    if not hmac.compare_digest(signature, hmac.digest(key, b"say" + mine + said, "sha256")):
        raise ValueError("an answer that is not signed with the key")
    return json.loads(zlib.decompress(said))


def _framed(sock: socket.socket, most: int) -> bytes:
    (size,) = _SIZE.unpack(_exactly(sock, _SIZE.size))
    if size > most:
        raise ValueError(f"{size} bytes, where at most {most} are said")
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = sock.recv(min(size - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the other side has hung up")
        found += part
    return bytes(found)
