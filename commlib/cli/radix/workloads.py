"""Made-up traces: WORKLOADS is the table of `commlib radix generate`.

A prompt is made of blocks of tokens; every block has numbers that no other has, so what two prompts share is exactly
the blocks they begin with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

Block: TypeAlias = list[int]  # [first, count]
Line: TypeAlias = dict[str, Any]  # a request as a trace has it
Numbers: TypeAlias = Mapping[str, Any]
LIMIT = 2**31


@dataclass(frozen=True)
class Option:
    """A number that a workload has."""

    name: str
    default: int | float
    help: str
    most: float | None = None


@dataclass(frozen=True)
class Workload:
    """A kind of trace: what it is like, its numbers, and what yields requests without end."""

    help: str
    lines: Callable[[Draw, Numbers], Iterator[Line]]
    options: tuple[Option, ...]


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
        """Return a block whose length is even between half the mean and one and a half."""
        return self.block(max(1, self._random.randint(mean - mean // 2, mean + mean // 2)))

    def ranks(self, count: int, exponent: float) -> Iterator[int]:
        """Yield numbers below `count`, number i as often as 1 / (i + 1)^exponent says."""
        weights = list(accumulate((rank + 1.0) ** -exponent for rank in range(count)))
        while True:
            yield self._random.choices(range(count), cum_weights=weights)[0]

    def happens(self, share: float) -> bool:
        """Say whether something comes about that does so in this share of cases."""
        return self._random.random() < share


def _multi_turn(draw: Draw, of: Numbers) -> Iterator[Line]:
    system = draw.block(of["system"])
    talks: list[list[Block]] = [[system] for _ in range(of["conversations"])]
    for rank in draw.ranks(len(talks), of["zipf"]):
        if len(talks[rank]) > 2 * of["turns"]:
            talks[rank] = [system]
        tokens = [*talks[rank], draw.about(of["question"])]
        output = [draw.about(of["answer"])]
        talks[rank] = tokens + output
        yield {"tokens": tokens, "output": output}


def _shared_prefix(draw: Draw, of: Numbers) -> Iterator[Line]:
    prefixes = [draw.block(of["prefix"]) for _ in range(of["groups"])]
    for rank in draw.ranks(len(prefixes), of["zipf"]):
        yield {"tokens": [prefixes[rank], draw.about(of["rest"])], "output": of["answer"]}


def _long_document(draw: Draw, of: Numbers) -> Iterator[Line]:
    documents = [draw.about(of["document"]) for _ in range(of["documents"])]
    for rank in draw.ranks(len(documents), of["zipf"]):
        yield {"tokens": [documents[rank], draw.about(of["question"])], "output": of["answer"]}


def _scan(draw: Draw, of: Numbers) -> Iterator[Line]:
    for line in _long_document(draw, of):
        yield {"tokens": [draw.about(of["once"])], "output": of["answer"]} if draw.happens(of["share"]) else line


_ZIPF = Option("zipf", 1.0, "Popularity falls as 1 / rank^S; 0: all alike.")
_ANSWER = Option("answer", 64, "Tokens generated for each request.")
_QUESTION = Option("question", 64, "Tokens of a question, about.")

WORKLOADS: dict[str, Workload] = {
    "multi-turn": Workload(
        "Conversations that grow: each prompt is the last one, its answer and a new question.",
        _multi_turn,
        (
            Option("conversations", 500, "How many go on at a time."),
            Option("turns", 20, "Questions until a conversation ends and another takes its place."),
            Option("system", 512, "Tokens that all conversations begin with."),
            _QUESTION,
            Option("answer", 128, "Tokens of an answer, about."),
            _ZIPF,
        ),
    ),
    "shared-prefix": Workload(
        "Groups of prompts that begin alike: instructions and examples, then a text of their own.",
        _shared_prefix,
        (
            Option("groups", 64, "How many."),
            Option("prefix", 1024, "Tokens that a group shares."),
            Option("rest", 1024, "Tokens of its own that a prompt has, about."),
            _ANSWER,
            _ZIPF,
        ),
    ),
    "long-document": Workload(
        "Questions about long documents.",
        _long_document,
        (
            Option("documents", 100, "How many."),
            Option("document", 32000, "Tokens of a document, about."),
            _QUESTION,
            _ANSWER,
            _ZIPF,
        ),
    ),
    "scan": Workload(
        "Questions about documents, between prompts that come once and never again.",
        _scan,
        (
            Option("documents", 50, "How many."),
            Option("document", 4000, "Tokens of a document, about."),
            Option("once", 4000, "Tokens of a prompt that comes once, about."),
            Option("share", 0.5, "How many of the requests are of that kind.", most=1.0),
            _QUESTION,
            _ANSWER,
            _ZIPF,
        ),
    ),
}
