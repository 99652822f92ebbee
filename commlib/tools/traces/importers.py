"""Public traces as ours: IMPORTERS is the table of `commlib radix import`.

Requests keep the order of the file. The settings of an importer, which are its options, are the keywords of its
function; what is not in the format is a ValueError that names file and object.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from commlib.counts import counted
from commlib.tools.traces.workloads import LIMIT, Line

Encode: TypeAlias = Callable[[str], Sequence[int]]
Found: TypeAlias = dict[str, Any]

REPLIES = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_BETWEEN = re.compile(r"[\s,\[\]]*")
_WORD = re.compile(r"\s*(?:\w+|[^\w\s])")


def mooncake(path: Path, *, block: int = 512) -> Iterator[Line]:
    """Traces in Mooncake's format: the lengths and the block hashes of each prompt."""
    numbers: dict[Any, int] = {}
    for place, found in _objects(path):
        length, ids = _count(place, found, "input_length"), _list(place, found, "hash_ids", (int, str))
        if len(ids) != -(-length // block) or not ids:
            raise ValueError(
                f"{place}: input_length is {length}, but hash_ids has {counted(len(ids), 'block')} of "
                f"{counted(block, 'token')}; drop the request, or say with --block how many tokens a block has"
            )
        firsts = [block * numbers.setdefault(name, len(numbers)) for name in ids]
        if block * len(numbers) > LIMIT:
            raise ValueError(f"{place}: the trace has more than {LIMIT} different tokens; import fewer --requests")
        tokens = [[first, min(block, length - block * at)] for at, first in enumerate(firsts)]
        yield {"tokens": tokens, "output": _count(place, found, "output_length")}


def sharegpt(path: Path, *, tokens: str | Encode = "words", conversations: int = 100) -> Iterator[Line]:
    """Conversations in ShareGPT's format: each reply is a request, and everything before it is the prompt."""
    encode = ENCODERS[tokens]() if isinstance(tokens, str) else tokens
    talks = (_talk(place, found, encode) for place, found in _objects(path))
    running = deque(islice(talks, conversations))
    while running:
        line = next(running[0], None)
        if line is None:
            running.popleft()
            running.extend(islice(talks, 1))
        else:
            running.rotate(-1)
            yield line


def words() -> Encode:
    """Number each word and each mark, with the space before it, as they come."""
    numbers: dict[str, int] = {}
    return lambda text: [numbers.setdefault(word, len(numbers)) for word in _WORD.findall(text)]


IMPORTERS: dict[str, Callable[..., Iterator[Line]]] = {"mooncake": mooncake, "sharegpt": sharegpt}
ENCODERS: dict[str, Callable[[], Encode]] = {"words": words, "bytes": lambda: lambda text: list(text.encode())}


def _talk(place: str, found: Found, encode: Encode) -> Iterator[Line]:
    said: list[int] = []
    for turn in _list(place, found, "conversations", (dict,)):
        role, text = _text(place, turn, "from"), _text(place, turn, "value")
        opening, words = list(encode(f"<{role}>")), list(encode(text))
        if said and role in REPLIES:
            yield {"tokens": said + opening, "output": words}
        said += opening + words


def _objects(path: Path) -> Iterator[tuple[str, Found]]:
    """Yield the objects of an array, or of JSON lines, each with the words that name its place."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file; give a trace in JSON") from None
    decoder, at, number = json.JSONDecoder(), 0, 0
    while (at := _end(text, at)) < len(text):
        number += 1
        try:
            found, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
        except RecursionError:
            raise ValueError(f"{path}, object {number}: nested too deep") from None
        if not isinstance(found, dict):
            raise ValueError(f"{path}, object {number}: {_kind(found)} is no object of a trace")
        yield f"{path}, object {number}", found


def _end(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _count(place: str, found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{place}: {name} is {_kind(value)}, but must be a number of tokens")
    return value


def _text(place: str, found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{place}: {name!r} of a turn is {_kind(value)}, but must be text")
    return value


def _list(place: str, found: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list) or not all(isinstance(item, kinds) for item in value):
        raise ValueError(f"{place}: {name} is {_kind(value)}, but must be a list")
    return value


def _kind(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
