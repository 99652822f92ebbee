"""Sections as one HTML file: nothing is fetched, tables are sorted by their heads, and it is read without a mouse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources

from commlib.tools.report.formats import CODE
from commlib.tools.report.page import Block, Code, Grid, Picture, Points, Section, Text
from commlib.tools.report.svg import legend, svg
from commlib.tools.report.table import Column


def html(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the page of these sections, the first of which is open to everybody: a summary."""
    links = "".join(f'<li><a href="#{escape(each.name)}">{escape(each.title)}</a></li>' for each in sections)
    style, script = (_part(name) for name in ("page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#{escape(sections[0].name)}">Skip to the content</a>
<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main>
{"".join(map(_section, sections))}</main>
<script>
{script}</script>
</body>
</html>"""


def _part(name: str) -> str:
    return (resources.files("commlib.tools.report") / name).read_text(encoding="utf-8")


def _section(section: Section) -> str:
    name = escape(section.name)
    blocks = "\n".join(_block(block, f"{name}-{at}") for at, block in enumerate(section.blocks))
    return (
        f'<section id="{name}" aria-labelledby="{name}-title" tabindex="-1">\n'
        f'<h2 id="{name}-title">{escape(section.title)}</h2>\n{blocks}\n</section>\n'
    )


def _block(block: Block, name: str) -> str:
    if isinstance(block, Text):
        return f'<p class="{block.tone}">{_said(block.text)}</p>' if block.tone else f"<p>{_said(block.text)}</p>"
    if isinstance(block, Points):
        return _list(block) if block.texts else ""
    if isinstance(block, Code):
        return f'<pre tabindex="0"><code>{escape(chr(10).join(block.lines))}</code></pre>'
    return _table(block) if isinstance(block, Grid) else _figure(block, name)


def _said(text: str) -> str:
    """Return a text for people, of which what stands between backticks is code, and between ** bold."""
    text = re.sub(CODE, lambda code: f"<code>{code[0][1:-1]}</code>", escape(text))
    return re.sub(r"^\*\*(.*)\*\*$", r"<strong>\1</strong>", text)


def _list(points: Points) -> str:
    made = f"<ul>{''.join(f'<li>{_said(text)}</li>' for text in points.texts)}</ul>"
    return _folded(escape(points.caption), made) if points.caption else made


def _folded(caption: str, inside: str) -> str:
    return f"<details><summary>{caption}</summary>{inside}</details>"


def _table(grid: Grid) -> str:
    caption = escape(grid.caption)
    heads = "".join(f'<th scope="col">{_name(column)}</th>' for column in grid.columns)
    left = " ".join(f"l{at}" for at, column in enumerate(grid.columns, 1) if column.left)
    lines = "\n".join(_line(grid, item) for item in grid.items)
    table = (
        f'<div class="scroll" role="group" aria-label="{caption}" tabindex="0">'
        f'<table class="{left}"><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{lines}\n</tbody></table></div>"
    )
    return _folded(caption, table) if grid.folded else table


def _name(column: Column) -> str:
    unit = "µs" if column.unit == "(us)" else column.unit.strip("()")
    unit = f" <small>{escape(unit)}</small>" if unit else ""
    return f"{escape(column.name.strip())}{unit}"


def _line(grid: Grid, item: object) -> str:
    first, *rest = grid.columns
    tone = grid.tone(item)
    cells = "".join(f"<td>{_said(column.read(item).strip())}" for column in rest)  # HTML needs no </td>
    head = f'<th scope="row">{_said(first.read(item).strip())}</th>'
    return f"<tr{f' class={tone}' if tone else ''}>{head}{cells}</tr>"


def _figure(picture: Picture, name: str) -> str:
    panels = "".join(
        svg(panel, f"{name}-{at}", panel.title != picture.caption) for at, panel in enumerate(picture.panels)
    )
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
    return f'<figure>{caption}<div class="panels">{panels}</div>{legend(picture.panels)}</figure>'
