"""Panels as SVG inside a page: no library, the colours of the page, and a description for who cannot see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from textwrap import wrap

from commlib.tools.report.figures import fitted
from commlib.tools.report.plot import Line, Panel

WIDTH, HEIGHT = 380, 250  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 34, 44  # beside its axes
NO_TITLE, NO_LABEL = 14, 20  # less high without them
BAR, CHARACTER = 26, 6.2  # height of a bar; width of a small character
TILE, LINE = 38, 15  # height of a tile, in which five characters stand upright, and of a line of text
UPRIGHT, ALONE = 8, 12  # width of a tile that a text stands upright in, and of one beside which is another text
DASHES = {"--": "6 3", ":": "2 3"}
ROUND = "h0"  # a point, whose stroke has round ends
# Marker of matplotlib → its outline, drawn from the middle; those that are not here are round.
SHAPES = {
    "s": "m-3-3h6v6h-6z",
    "D": "m0-4.5l4.5 4.5-4.5 4.5-4.5-4.5z",
    "^": "m0-4l4 7h-8z",
    "v": "m0 4l4-7h-8z",
    "P": "m-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "m0-1.7l2.3-2.3 1.7 1.7-2.3 2.3 2.3 2.3-1.7 1.7-2.3-2.3-2.3 2.3-1.7-1.7 2.3-2.3-2.3-2.3 1.7-1.7z",
    "*": "m0-4.8l1.4 3.4h3.4l-2.7 2.3 1 3.5-3.1-2.2-3.1 2.2 1-3.5-2.7-2.3h3.4z",
    "<": "m-4 0l7-4v8z",
    ">": "m4 0l-7-4v8z",
    "p": "m0-4l4 3-1.5 4.5h-5l-1.5-4.5z",
}


def svg(panel: Panel, name: str, titled: bool = True) -> str:
    """Return one panel, whose name no other of the page has, with its title unless that stands elsewhere."""
    drawn = panel if titled else replace(panel, title="")
    height, inside = _drawn(drawn)
    top, foot = 0 if drawn.title else NO_TITLE, 0 if panel.xlabel or panel.bars or panel.tiles else NO_LABEL
    title = ": ".join(filter(None, (panel.title, panel.ylabel or panel.xlabel))).replace("\n", " ")
    return (
        f'<svg viewBox="0 {top} {WIDTH} {height - top - foot}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(described(panel))}</desc>'
        f"{''.join(inside)}</svg>"
    )


def _drawn(panel: Panel) -> tuple[int, Iterator[str]]:
    """Return the height of a panel, and what is inside."""
    if panel.bars:
        return 2 * BAR + BAR * len(panel.bars), _bars(panel)
    if panel.timeline:
        return TOP + BAR * len(_lanes(panel)) + BOTTOM, _timeline(panel)
    if panel.tiles:
        return TOP + TILE + LINE * (2 + len(_lines(panel))), _strip(panel)
    return HEIGHT, _axes(panel)


def legend(panels: Sequence[Panel]) -> str:
    """Return the names of all lines, stretches and tiles, each once, with their marks."""
    lines = {line.label: _markers(line, [(0, 0)]) for panel in panels for line in panel.lines if line.label}
    stretches = {
        name: f'<rect class="{look}" x="-6" y="-5" width="12" height="10"/>'
        for panel in panels
        for name, look in _looks(panel).items()
    }
    items = (
        f'<li><svg viewBox="-6 -6 12 12" aria-hidden="true">{mark}</svg>{escape(name)}</li>'
        for name, mark in {**lines, **stretches}.items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>' if lines or stretches else ""


def described(panel: Panel) -> str:
    """Say what a panel shows: each line by its ends."""
    if panel.bars:
        return "; ".join(f"{name}: {fitted(value, 8)}" for name, value in panel.bars.items())
    if panel.tiles:
        return "; ".join(f"{tile.tick}: {tile.name} {tile.text}" for tile in panel.tiles)
    said = [f"{of.lane}: {of.label} {fitted(of.width, 8)} from {fitted(of.start, 8)}" for of in panel.timeline]
    said += [_said(line) for line in panel.lines if line.x]
    said += [f"{label or 'limit'} {fitted(value, 8)}" for value, label in panel.limits]
    return "; ".join(said)


def _said(line: Line) -> str:
    ends = dict.fromkeys((0, len(line.x) - 1))
    points = (f"{fitted(line.y[at], 8)} at {line.x[at]:g}" for at in ends)
    return f"{line.label}: {', '.join(points)}" if line.label else ", ".join(points)


class _Scale:
    """From values to places; a logarithm unless `linear`."""

    def __init__(self, values: Sequence[float], places: tuple[float, float], linear: bool = False) -> None:
        self._map: Callable[[float], float] = float if linear else math.log
        low, high = self._map(min(values)), self._map(max(values))
        self._low, self._per = low, (places[1] - places[0]) / ((high - low) or 1.0)
        self._start = places[0] if high > low else (places[0] + places[1]) / 2

    def __call__(self, value: float) -> float:
        place: float = self._start + (self._map(value) - self._low) * self._per
        return round(place, 1)


def _axes(panel: Panel) -> Iterator[str]:
    ys = _marks(panel)
    xs = [x for line in panel.lines for x in line.x]
    across, up = _Scale(xs or [1], (LEFT + 8, WIDTH - RIGHT - 8)), _Scale(ys, (HEIGHT - BOTTOM, TOP), not panel.log_y)
    right, foot = WIDTH - RIGHT, HEIGHT - BOTTOM
    if panel.title:
        yield f'<text class="title" x="{LEFT}" y="14">{escape(panel.title)}</text>'
    yield f'<text x="{LEFT}" y="28">{escape(panel.ylabel.replace(chr(10), " "))}</text>'
    yield f'<path class="grid" d="{"".join(f"M{LEFT} {up(y):g}H{right}" for y in ys)}"/>'
    yield _texts("end", ((LEFT - 6, up(y) + 4, f"{y:g}") for y in ys))
    yield _texts("middle", _apart([(across(x), foot + 16, text.replace("\n", " ")) for x, text in panel.ticks.items()]))
    if panel.xlabel:
        yield _texts("middle", [((LEFT + right) / 2, HEIGHT - 8, panel.xlabel)])
    for value, _ in panel.limits:
        yield f'<path class="limit" d="M{LEFT} {up(value):g}H{right}"/>'
    for line in sorted(panel.lines, key=lambda line: line.style.get("zorder", 3)):
        points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        yield f'<path d="M{path}" {_stroke(line)}/>{_markers(line, points)}'


def _apart(texts: Sequence[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """Yield the texts of a line that do not cover the one before."""
    free = -CHARACTER  # a panel's edge cuts nothing
    for x, y, text in sorted(texts):
        half = (len(text) + 1) * CHARACTER / 2
        if x - half >= free:
            yield x, y, text
            free = x + half


def _marks(panel: Panel) -> list[float]:
    """Return the values that are written beside the axis; the first and the last are its ends."""
    values = [y for line in panel.lines for y in line.y] + [value for value, _ in panel.limits]
    low, high = min(values, default=1.0), max(values, default=1.0)
    if not panel.log_y:
        low = low if panel.y_range[0] is None else panel.y_range[0]
        step = _round((high - low) / 4 or 1.0)
        return [low + step * at for at in range(math.ceil((high - low) / step - 1e-9) + 1)]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, round((last - first) / 5))
    return [10.0**at for at in range(first, max(last, first + 1) + step, step)]


def _round(step: float) -> float:
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * part for part in (1, 2, 2.5, 5, 10) if scale * part >= step * 0.999)


def _bars(panel: Panel) -> Iterator[str]:
    room = (WIDTH - CHARACTER * max(map(len, panel.bars)) - 8) / max(panel.bars.values())
    yield f'<text class="title" x="0" y="14">{escape(panel.title)}</text>'
    yield f'<text x="0" y="28">{escape(panel.xlabel)}</text>'
    for at, (name, value) in enumerate(panel.bars.items()):
        y = 2 * BAR + BAR * at - 14
        yield f'<rect class="bar" x="0" y="{y}" width="{max(value * room, 1):.1f}" height="{BAR - 8}"/>'
        yield f'<text x="{value * room + 6:.1f}" y="{y + 13}">{escape(name)}</text>'


def _lanes(panel: Panel) -> list[str]:
    return list(dict.fromkeys(bar.lane for bar in panel.timeline))


def _labels(panel: Panel) -> dict[str, int]:
    """Number the labels of a timeline: what has one label has one colour."""
    return {label: at for at, label in enumerate(dict.fromkeys(bar.label for bar in panel.timeline))}


def _looks(panel: Panel) -> dict[str, str]:
    """Return the look of each name of a timeline or of a strip."""
    return {name: f"mark c{at % 10}" for name, at in _labels(panel).items()} | {
        tile.name: tile.look for tile in panel.tiles
    }


def _lines(panel: Panel) -> list[str]:
    return wrap(panel.xlabel, int(WIDTH / CHARACTER))


def _strip(panel: Panel) -> Iterator[str]:
    """Yield tiles of one width with as many texts as have room, their owners above, and below them sizes and words."""
    wide, foot = WIDTH / len(panel.tiles), TOP + TILE
    yield f'<text class="title" x="0" y="14">{escape(panel.title)}</text>' if panel.title else ""
    middles = [round(wide * (at + 0.5), 1) for at in range(len(panel.tiles))]
    every = math.ceil(ALONE / wide)
    for at, (x, tile) in enumerate(zip(middles, panel.tiles, strict=True)):
        left, turned = x - wide / 2 + 0.5, CHARACTER * len(tile.text) > wide - 2
        yield f'<rect class="{tile.look}" x="{left:.1f}" y="{TOP}" width="{wide - 1:.1f}" height="{TILE}"/>'
        if wide >= UPRIGHT and at % every == 0:
            place = f'transform="translate({x} {TOP + TILE / 2}){" rotate(-90)" * turned}"'
            yield f'<text class="on" text-anchor="middle" y="4" {place}>{escape(tile.text)}</text>'
    owners = [list(of) for _, of in groupby(zip(middles, panel.tiles, strict=True), lambda placed: placed[1].name)]
    named = (((of[0][0] + of[-1][0]) / 2, TOP - 5, of[0][1].name, wide * len(of)) for of in owners)
    yield _texts("middle", (name[:3] for name in named if CHARACTER * (len(name[2]) + 1) <= name[3]))
    yield _texts("middle", _apart([(x, foot + LINE, tile.tick) for x, tile in zip(middles, panel.tiles, strict=True)]))
    yield _texts("start", ((0, foot + LINE * (2 + at), line) for at, line in enumerate(_lines(panel))))


def _timeline(panel: Panel) -> Iterator[str]:
    lanes, labels = _lanes(panel), _labels(panel)
    left = 8 + CHARACTER * max(map(len, lanes))
    ends = [0.0, max(bar.start + bar.width for bar in panel.timeline)]
    across, foot = _Scale(ends, (left, WIDTH - RIGHT - 8), linear=True), TOP + BAR * len(lanes)
    yield f'<text class="title" x="{left}" y="14">{escape(panel.title)}</text>' if panel.title else ""
    yield _texts("end", ((left - 6, TOP + BAR * at + 16, lane) for at, lane in enumerate(lanes)))
    for bar in panel.timeline:
        x, y = across(bar.start), TOP + BAR * lanes.index(bar.lane) + 3
        width = max(across(bar.start + bar.width) - x, 0.5)
        yield f'<rect class="mark c{labels[bar.label] % 10}" x="{x}" y="{y}" width="{width:.1f}" height="{BAR - 6}"/>'
    step = _round(ends[1] / 5)
    ticks = [step * at for at in range(int(ends[1] / step) + 1)]
    yield _texts("middle", ((across(x), foot + 16, f"{x:g}") for x in ticks))
    yield _texts("middle", [((left + WIDTH - RIGHT) / 2, foot + 34, panel.xlabel)])


def _texts(anchor: str, texts: Iterable[tuple[float, float, str]]) -> str:
    """Return texts whose places are their ends or their middles."""
    made = "".join(f'<text x="{x:g}" y="{y:g}">{escape(text)}</text>' for x, y, text in texts)
    return f'<g text-anchor="{anchor}">{made}</g>'


def _class(line: Line) -> str:
    """Return the page's name of a colour; greys and black are those of text."""
    color = str(line.style.get("color", "C0"))
    return color.lower() if color.startswith("C") else "ink" if color == "black" else "soft"


def _stroke(line: Line) -> str:
    dash = DASHES.get(str(line.style.get("linestyle", "-")))
    width = float(line.style.get("linewidth", 1.5))
    return f'class="line {_class(line)}" stroke-width="{width:g}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _markers(line: Line, points: Sequence[tuple[float, float]]) -> str:
    shape = SHAPES.get(str(line.style.get("marker", "o")), ROUND)
    kind, path = "dot" if shape == ROUND else "mark", "".join(f"M{x:g} {y:g}{shape}" for x, y in points)
    return f'<path class="{kind} {_class(line)}" d="{path}"/>'
