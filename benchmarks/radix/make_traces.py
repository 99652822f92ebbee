"""Write traces of requests for simulate.py: made up, or imported from public ones.

    python benchmarks/radix/make_traces.py multi-turn -o t.jsonl --requests 5000 --seed 1
    python benchmarks/radix/make_traces.py mooncake conversation_trace.jsonl -o t.jsonl

A made-up prompt consists of blocks of tokens. Every block has numbers that no other has, so two prompts share exactly
the blocks they begin with. An imported trace keeps the order of its file. The options of a kind are the keywords of its
function; lengths are in tokens, and `zipf` is the exponent by which popularity falls (0: all equal).
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeAlias

Block: TypeAlias = list[int]  # [first, count]
Line: TypeAlias = dict[str, Any]  # a request of a trace
Encode: TypeAlias = Callable[[str], Sequence[int]]
LIMIT = 2**31  # different tokens
REPLIES = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_BETWEEN = re.compile(r"[\s,\[\]]*")
_WORD = re.compile(r"\s*(?:\w+|[^\w\s])")


# --- made up ----------------------------------------------------------------------------------------------------------


class Draw:
    """The chance behind a trace, and the numbers of its tokens."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next = 0

    def block(self, count: int) -> Block:
        """Return `count` tokens that no other block has."""
        first, self._next = self._next, self._next + count
        if self._next > LIMIT:
            raise ValueError(f"the trace has more than {LIMIT} different tokens; ask for fewer requests")
        return [first, count]

    def about(self, mean: int) -> Block:
        """Return a block whose length is uniform between half the mean and one and a half."""
        return self.block(max(1, self._random.randint(mean - mean // 2, mean + mean // 2)))

    def ranks(self, count: int, exponent: float) -> Iterator[int]:
        """Yield numbers below `count`, number i in proportion to 1 / (i + 1)^exponent."""
        weights = list(accumulate((rank + 1.0) ** -exponent for rank in range(count)))
        while True:
            yield self._random.choices(range(count), cum_weights=weights)[0]

    def happens(self, share: float) -> bool:
        """Return True in this share of the calls."""
        return self._random.random() < share


def multi_turn(
    draw: Draw,
    *,
    conversations: int = 500,
    turns: int = 20,
    system: int = 512,
    question: int = 64,
    answer: int = 128,
    zipf: float = 1.0,
) -> Iterator[Line]:
    """Growing conversations below one system prompt: each prompt is the previous one, its answer and a new question."""
    first = draw.block(system)
    talks: list[list[Block]] = [[first] for _ in range(conversations)]
    for rank in draw.ranks(conversations, zipf):
        if len(talks[rank]) > 2 * turns:
            talks[rank] = [first]
        tokens = [*talks[rank], draw.about(question)]
        output = [draw.about(answer)]
        talks[rank] = tokens + output
        yield {"tokens": tokens, "output": output}


def shared_prefix(
    draw: Draw, *, groups: int = 64, prefix: int = 1024, rest: int = 1024, answer: int = 64, zipf: float = 1.0
) -> Iterator[Line]:
    """Groups of prompts that share a prefix (instructions, examples) and then differ."""
    prefixes = [draw.block(prefix) for _ in range(groups)]
    for rank in draw.ranks(groups, zipf):
        yield {"tokens": [prefixes[rank], draw.about(rest)], "output": answer}


def long_document(
    draw: Draw, *, documents: int = 100, document: int = 32000, question: int = 64, answer: int = 64, zipf: float = 1.0
) -> Iterator[Line]:
    """Questions about long documents."""
    texts = [draw.about(document) for _ in range(documents)]
    for rank in draw.ranks(documents, zipf):
        yield {"tokens": [texts[rank], draw.about(question)], "output": answer}


def scan(
    draw: Draw,
    *,
    documents: int = 50,
    document: int = 4000,
    once: int = 4000,
    share: float = 0.5,
    question: int = 64,
    answer: int = 64,
    zipf: float = 1.0,
) -> Iterator[Line]:
    """Questions about documents, mixed with prompts that come only once (`share` of all, of `once` tokens)."""
    asked = long_document(draw, documents=documents, document=document, question=question, answer=answer, zipf=zipf)
    for line in asked:
        yield {"tokens": [draw.about(once)], "output": answer} if draw.happens(share) else line


# --- imported ---------------------------------------------------------------------------------------------------------


def mooncake(path: Path, *, block: int = 512) -> Iterator[Line]:
    """Traces in Mooncake's format: the lengths of each prompt and output, and the hash of each block of the prompt."""
    numbers: dict[Any, int] = {}
    for place, entry in _objects(path):
        length, ids = _count(place, entry, "input_length"), _list(place, entry, "hash_ids", (int, str))
        if len(ids) != -(-length // block) or not ids:
            raise ValueError(
                f"{place}: input_length is {length}, but there are {len(ids)} hash_ids for blocks of {block} tokens; "
                "drop the request, or pass --block, the tokens of a block"
            )
        firsts = [block * numbers.setdefault(name, len(numbers)) for name in ids]
        if block * len(numbers) > LIMIT:
            raise ValueError(f"{place}: the trace has more than {LIMIT} different tokens; import fewer --requests")
        tokens = [[first, min(block, length - block * at)] for at, first in enumerate(firsts)]
        yield {"tokens": tokens, "output": _count(place, entry, "output_length")}


def sharegpt(path: Path, *, tokens: str | Encode = "words", conversations: int = 100) -> Iterator[Line]:
    """Conversations in ShareGPT's format: each reply is a request, and everything before it is the prompt.

    `conversations` of them go on in turns, as the format has no times. `tokens` is words (each word and each mark has a
    number) or bytes; in a program also a tokenizer's function.
    """
    encode = ENCODERS[tokens]() if isinstance(tokens, str) else tokens
    talks = (_talk(place, entry, encode) for place, entry in _objects(path))
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
    """Number each word and each mark, with the space before it, in the order of their first use."""
    numbers: dict[str, int] = {}
    return lambda text: [numbers.setdefault(word, len(numbers)) for word in _WORD.findall(text)]


ENCODERS: dict[str, Callable[[], Encode]] = {"words": words, "bytes": lambda: lambda text: list(text.encode())}


def _talk(place: str, entry: Line, encode: Encode) -> Iterator[Line]:
    before: list[int] = []
    for turn in _list(place, entry, "conversations", (dict,)):
        role, text = _text(place, turn, "from"), _text(place, turn, "value")
        opening, tokens = list(encode(f"<{role}>")), list(encode(text))
        if before and role in REPLIES:
            yield {"tokens": before + opening, "output": tokens}
        before += opening + tokens


def _objects(path: Path) -> Iterator[tuple[str, Line]]:
    """Yield the objects of an array, or of JSON lines, each with the text that names its place."""
    text = path.read_text(encoding="utf-8")
    decoder, at, number = json.JSONDecoder(), 0, 0
    while (at := _end(text, at)) < len(text):
        number += 1
        try:
            entry, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
        if not isinstance(entry, dict):
            raise ValueError(f"{path}, object {number}: {entry!r} is not an object of a trace")
        yield f"{path}, object {number}", entry


def _end(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _count(place: str, entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{place}: {name} is {value!r}, but must be a number of tokens")
    return value


def _text(place: str, entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{place}: {name!r} of a turn is {value!r}, but must be text")
    return value


def _list(place: str, entry: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> list[Any]:
    value = entry.get(name)
    if not isinstance(value, list) or not all(isinstance(item, kinds) for item in value):
        raise ValueError(f"{place}: {name} is {value!r}, but must be a list")
    return value


# --- the command line -------------------------------------------------------------------------------------------------

WORKLOADS: dict[str, Callable[..., Iterator[Line]]] = {
    "multi-turn": multi_turn,
    "shared-prefix": shared_prefix,
    "long-document": long_document,
    "scan": scan,
}
IMPORTERS: dict[str, Callable[..., Iterator[Line]]] = {"mooncake": mooncake, "sharegpt": sharegpt}


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line: a command for each workload and each importer, with an option for each keyword."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, lines in {**WORKLOADS, **IMPORTERS}.items():
        command = commands.add_parser(name, help=lines.__doc__, description=lines.__doc__)
        command.set_defaults(lines=lines)
        if name in WORKLOADS:
            command.add_argument("--seed", dest="source", type=lambda text: Draw(int(text)), default="0")
            command.add_argument("--requests", type=int, default=5000)
        else:
            command.add_argument("source", type=Path, metavar="FILE")
            command.add_argument("--requests", type=int, help="without it, all")
        command.add_argument("-o", "--output", type=Path, required=True)
        keywords = [each for each in signature(lines).parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
        for each in keywords:
            command.add_argument(f"--{each.name}", type=type(each.default), default=each.default)
        command.set_defaults(keywords=[each.name for each in keywords])
    return parser.parse_args(args)


def main(args: Sequence[str] | None = None) -> None:
    """Write the trace that the command line asks for."""
    options = arguments(args)
    keywords = {name: getattr(options, name) for name in options.keywords}
    lines = islice(options.lines(options.source, **keywords), options.requests)
    text = [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]
    options.output.write_text("".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
