"""The pages of the project and their fenced blocks."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ["AGENTS.md", "CODE_OF_CONDUCT.md", "ROADMAP.md", "SECURITY.md", "SUPPORT.md"]
FENCE = re.compile(r"^```(\S+)(.*)\n((?s:.*?))^```$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, the other words of its info string, and its text."""

    page: str
    line: int
    language: str
    words: dict[str, str]
    text: str


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def blocks_of(page: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text_of(page)):
        words = {name: value for name, _, value in (item.partition("=") for item in match[2].split())}
        line = text_of(page).count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match[1], words, match[3]))
    return found
