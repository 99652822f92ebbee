"""Text: the rows of algorithms and the rules of a plan, as native code reads them (csrc/plan/text_line.h)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm, Collective
from commlib.plan.rules import Point, Range, Rule
from commlib.redops import DTYPES, REDOPS


class Line(NamedTuple):
    """What a line of a plan's text has: a range or a fallback of a rule, or a point of a range's curve."""

    rule: Rule
    part: str  # "[2]", ".fallback[0]"
    row: Algorithm  # that it names
    entry: Range
    at: int | None = None  # the number of the range
    point: int | None = None  # the place in its curve

    @property
    def choice(self) -> Range:
        return self.entry if self.point is None else self.entry.on(self.entry.curve[self.point])


@cache
def rows_text(backend: str, size: int) -> str:
    """Return the rows of a backend's algorithms, as csrc/plan/row.cc reads them."""
    rows = ((spec, a) for spec in COLLECTIVES.values() for a in spec.algorithms if a.backend == backend)
    return "\n".join(line for spec, algorithm in rows for line in _lines_of_row(spec, algorithm, size))


def _lines_of_row(collective: Collective, algorithm: Algorithm, size: int) -> Iterator[str]:
    flags = {
        "arena": algorithm.needs_arena,
        "reduces": collective.reduces,
        "rooted": collective.rooted,
        "composed": algorithm.composed,
        "engine": algorithm.engine,
    }
    sms = algorithm.sms if algorithm.backend == "nccl" else 0
    yield (
        f"algorithm op={collective.name} name={algorithm.name} placement={algorithm.placement} "
        f"kernel={algorithm.source} room={algorithm.room_bytes} sms={sms} "
        + " ".join(f"{name}={'yes' if flag else 'no'}" for name, flag in flags.items())
    )
    for dtype, redop in _reductions(collective, algorithm, size):
        yield f"serves dtype={dtype} redop={redop}"
    for param in algorithm.params:
        yield f"param name={param.name} default={param.default}"


def _reductions(collective: Collective, algorithm: Algorithm, size: int) -> list[tuple[str, str]]:
    """Return what it serves; what only moves, serves every type or none."""
    calls = [(dtype, redop) for dtype in DTYPES for redop in REDOPS]
    if not collective.reduces:
        return [] if collective.refusal(algorithm, *calls[0], size) else [("*", "*")]
    return [call for call in calls if collective.refusal(algorithm, *call, size) is None]


def plan_text(rules: Iterable[Rule], backend: str) -> str:
    """Return rules as csrc/plan/table.cc reads them; a ValueError names what cannot be on the backend."""
    return "\n".join(text for text, _ in lines_of(rules, backend))


def lines_of(rules: Iterable[Rule], backend: str = "") -> Iterator[tuple[str, Line | None]]:
    """Yield each line of the same with what it has, if that is a choice; without a backend, for algorithms of all."""
    for rule in rules:
        yield f"where plan {rule.source}: rules[{rule.number}]", None
        keys = f"placement={rule.placement} mode={rule.mode} dtype={rule.dtype} redop={rule.redop}"
        yield f"rule op={rule.op} {keys}", None
        for at, entry in enumerate(rule.ranges):
            row, part = _row(rule, entry, backend), f"[{at}]"
            size = {} if entry.max_bytes is None else {"max_bytes": entry.max_bytes}
            yield _text("range", entry, {**size, "align": entry.align}), Line(rule, part, row, entry, at)
            for point in entry.fewer(row.max_sms_of(entry.params)):
                line = Line(rule, part, _row(rule, point, backend), entry, at, entry.curve.index(point))
                yield _text("fewer", point, {"time": point.time}), line
        for at, entry in enumerate(rule.fallback):
            line = Line(rule, f".fallback[{at}]", _row(rule, entry, backend), entry)
            yield _text("fallback", entry, {"align": entry.align}), line


def _row(rule: Rule, entry: Range | Point, backend: str) -> Algorithm:
    """Return the row of what an entry names; a ValueError says what is wrong with it."""
    rows = COLLECTIVES[rule.op].algorithms if rule.op in COLLECTIVES else ()
    named = (row for row in rows if row.name == entry.algorithm and backend in ("", row.backend))
    if (algorithm := next(named, None)) is None:
        on = f" on {backend}" if backend else ""
        raise ValueError(f"{rule.where()}: {rule.op} has no algorithm {entry.algorithm!r}{on}")
    if fault := algorithm.fault_of(entry.params):
        raise ValueError(f"{rule.where()}: {fault}")
    return algorithm


def _text(kind: str, entry: Range | Point, more: Mapping[str, int]) -> str:
    values = {"algorithm": entry.algorithm, **more, **entry.params}
    return " ".join([kind, *(f"{name}={value}" for name, value in values.items())])
