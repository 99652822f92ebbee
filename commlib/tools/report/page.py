"""A page of a report, described as data: sections of text, lists, tables, commands and pictures; html.py writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from commlib.tools.report.formats import escaped, markdown_table
from commlib.tools.report.plot import Panel
from commlib.tools.report.table import Column

GOOD, WARN, BAD = "good", "warn", "bad"


def _no_tone(item: Any) -> str:
    return ""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Points:
    """A list of sentences; one with a caption is shown on demand."""

    texts: Sequence[str]
    caption: str = ""


@dataclass(frozen=True)
class Code:
    """Lines to copy, as they are."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table with its caption; `tone` says of an item whether its line is GOOD, WARN or BAD."""

    caption: str
    columns: Sequence[Column]
    items: Sequence[Any]
    tone: Callable[[Any], str] = _no_tone
    folded: bool = False  # shown on demand; markdown does without


@dataclass(frozen=True)
class Picture:
    """Panels side by side; markdown has their tables alone."""

    caption: str
    panels: Sequence[Panel]


Block = Text | Points | Code | Grid | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; its name is that of its file, and of its place in a page."""

    name: str
    title: str
    blocks: Sequence[Block]


def markdown(section: Section) -> str:
    """Return a section as a file of its own."""
    parts = [f"# {escaped(section.title)}"]
    for block in section.blocks:
        if lines := list(_markdown(block)):
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _markdown(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield escaped(block.text)
    elif isinstance(block, Points):
        yield from ((f"**{escaped(block.caption)}**", "") if block.caption and block.texts else ())
        yield from (f"- {escaped(text)}" for text in block.texts)
    elif isinstance(block, Code):
        yield from ("```text", *(line.replace("```", "'''") for line in block.lines), "```")
    elif isinstance(block, Grid) and not block.folded:
        yield from (f"**{escaped(block.caption)}**", "", *markdown_table(block.columns, block.items))
