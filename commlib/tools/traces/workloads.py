"""Made-up traces: WORKLOADS is the table of `commlib radix generate`.

A prompt is made of blocks of tokens; every block has numbers that no other has, so what two prompts share is exactly
the blocks they begin with. The numbers of a workload, which are its options, are the keywords of its function.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeAlias

Block: TypeAlias = list[int]  # [first, count]
Line: TypeAlias = dict[str, Any]  # a request as a trace has it
LIMIT = 2**31


HELP = {
    "conversations": "Conversations that are open at a time.",
    "turns": "Questions of a conversation; then a new one starts.",
    "system": "Tokens that all conversations begin with.",
    "groups": "Number of groups.",
    "prefix": "Tokens of the prefix that a group shares.",
    "rest": "Average tokens of a prompt after the shared prefix.",
    "documents": "Number of documents.",
    "document": "Average tokens of a document.",
    "once": "Average tokens of a prompt that comes only once.",
    "share": "Share of requests whose prompt comes only once.",
    "question": "Average tokens of a question.",
    "answer": "Tokens of an answer.",
    "block": "Tokens of a block.",
    "tokens": "Tokens of text: words gives each new word a number, bytes takes UTF-8.",
    "zipf": "Exponent S: popularity falls as 1 / rank^S; 0: all equal.",
}
MOST = {"share": 1.0}  # of numbers that are not whole


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
    """Growing conversations: each prompt is the previous one, its answer and a new question."""
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
    """Questions about documents, mixed with prompts that come only once."""
    asked = long_document(draw, documents=documents, document=document, question=question, answer=answer, zipf=zipf)
    for line in asked:
        yield {"tokens": [draw.about(once)], "output": answer} if draw.happens(share) else line


WORKLOADS: dict[str, Callable[..., Iterator[Line]]] = {
    "multi-turn": multi_turn,
    "shared-prefix": shared_prefix,
    "long-document": long_document,
    "scan": scan,
}
