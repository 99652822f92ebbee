"""Pages as data: sections of text, a chart, tables, commands and notes, as HTML by a template, or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from operator import itemgetter
from typing import Any

from commlib.errors import Unsupported
from commlib.tools.report.formats import CODE, escaped, markdown_table
from commlib.tools.report.table import Column

GOOD, WARN, BAD = "good", "warn", "bad"  # classes of the template


def _plain(item: Any, column: Column) -> str:
    return ""


@dataclass(frozen=True)
class Table:
    """A table; `look` gives a cell one of the classes above."""

    title: str
    columns: Sequence[Column]
    items: Sequence[Any]
    look: Callable[[Any, Column], str] = _plain


def plain_table(title: str, rows: Sequence[Mapping[str, str]], look: Callable[[Any, Column], str] = _plain) -> Table:
    names = rows[0] if rows else {}
    columns = [
        Column(name, itemgetter(name), left=any(re.search("[a-z]", row[name]) for row in rows)) for name in names
    ]
    return Table(title, columns, rows, look)


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in this order; `name` is its place in a page and the stem of its file."""

    name: str
    title: str
    chart: str = ""  # an SVG element; Markdown has none
    text: Sequence[tuple[str, str]] = ()  # paragraphs, each with its class
    tables: Sequence[Table] = ()
    code: Sequence[str] = ()
    notes: Sequence[str] = ()


def html(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    try:
        from jinja2 import Environment
    except ImportError:
        raise Unsupported("pages of HTML need jinja2, which torch installs; `pip install jinja2`") from None
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = _prose
    template = (resources.files("commlib.tools.report") / "page.html.jinja").read_text(encoding="utf-8")
    text = environment.from_string(template).render(title=title, subtitle=subtitle, sections=sections)
    return text.rstrip("\n")


def _prose(text: str) -> str:
    """Return a text for people as HTML, in which what stands between backticks is code."""
    return re.sub(CODE, lambda code: f"<code>{code[0][1:-1]}</code>", escape(text))


def markdown(section: Section) -> str:
    """Return a title, if it has one, paragraphs, a table below each heading, and the notes as a list."""
    parts = [f"# {escaped(section.title)}"] * bool(section.title) + [escaped(text) for _, text in section.text]
    for table in section.tables:
        parts += [f"### {escaped(table.title)}", "\n".join(markdown_table(table.columns, table.items))]
    if section.code:
        parts.append("\n".join(["```text", *(line.replace("```", "'''") for line in section.code), "```"]))
    if section.notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in section.notes))
    return "\n\n".join(parts)
