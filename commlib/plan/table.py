"""Table: the native table of a plan (csrc/plan/table.h), which decides; what it reads, and its reasons for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from commlib import env
from commlib.backends.base import Backend, Choose
from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Algorithm, Collective
from commlib.counts import counted
from commlib.errors import Unsupported
from commlib.native import library
from commlib.plan.rules import SPARING, Point, Query, Range, Rule, size_text
from commlib.redops import DTYPES, REDOPS

if TYPE_CHECKING:
    from commlib.plan.plan import Plan

MULTIPROCESSORS = 132  # of an H100 or H200, where no GPU is known
MAX_CHOICES = 4096  # that a backend without native code remembers
REFUSALS = {"placement": "its tensors lie in symmetric memory", "arena": "there is no symmetric memory"}
NO_MULTIPROCESSORS = "takes no multiprocessors: copy engines move the data (a kernel the own block, out of place)"


class Table:
    """The native table of a plan for so many ranks, without a communicator or a GPU.

    `multiprocessors` has the smallest GPU; `max_sms` is a communicator's limit, which holds for each of its calls.
    """

    def __init__(
        self, plan: Plan, world: int, *, has_arena: bool = True, multiprocessors: int = 0, max_sms: int = 0
    ) -> None:
        self._plan, self._multiprocessors = plan, multiprocessors or MULTIPROCESSORS
        lines = list(lines_of(plan.rules_of(world)))
        self._lines = {number: line for number, (_, line) in enumerate(lines) if line is not None}
        backends = sorted({line.row.backend for line in self._lines.values()})
        self._native = library.open_plan("\n".join(rows_text(name, world) for name in backends), has_arena)
        self._native.set("\n".join(text for text, _ in lines), max_sms)

    def explain(self, query: Query, max_sms: int = 0, async_op: bool = False) -> Explanation:
        """Say which algorithm runs a call, by which rule, and what was passed over before it; a ValueError if none can.

        An asynchronous call on GPUs spares them, unless it has a limit.
        """
        plan, spares = self._plan, async_op and not max_sms
        why = self._ask(query, SPARING if spares else max_sms)
        passed = self._passed(query, why)
        usual, chosen = (self._lines.get(why[key]) for key in ("usual", "chosen"))
        on_curve = chosen is not None and chosen.point is not None and why["chosen"] in why["fewer"]
        if usual is None or chosen is None:
            raise ValueError(self._nothing(query, max_sms, passed, usual))
        if chosen is not usual and not on_curve and not spares:
            passed.append((usual.row.name, f"it takes more than {counted(max_sms, 'multiprocessor')}"))
        points = [*usual.choice.curve, *self._symmetric_points(usual, why["fewer"])]
        curve = [*((point.sms, point.slower) for point in points), (why["usual_sms"], 0.0)]
        rule, at, choice = chosen.rule, chosen.at, chosen.choice
        if at is None:
            num_bytes = min(max(query.num_bytes, why["min_bytes"]), why["max_bytes"])
            at = next((at for at, (_, high, _) in enumerate(rule.spans()) if num_bytes <= high), 0)
        low, _, here = list(rule.spans())[at]
        fit = plan.fit if rule.source == plan.source else None
        return Explanation(
            op=query.op,
            num_bytes=query.num_bytes,
            algorithm=choice.algorithm,
            rule=f"rules[{rule.number}]{chosen.part}" + f".curve[{chosen.point}]" * on_curve,
            source=rule.source,
            low_bytes=int(low),
            high_bytes=here.max_bytes,
            gain=choice.gain,
            runner_up=choice.runner_up,
            digest=plan.digest,
            params=choice.params,
            match=str(fit or ""),
            measured=(fit or Match()).where,
            pinned_by=env.ALGORITHM.name if plan.pinned.get(query.op) == choice.algorithm else "",
            remark=NO_MULTIPROCESSORS if chosen.row.engine else "",
            sms=min(why["chosen_sms"], max_sms or why["chosen_sms"]),
            curve=tuple(sorted(curve)) if points else (),
            spared=self._spared(why, points) if spares else "",
            passed=tuple(dict.fromkeys(f"{name}: {reason}" for name, reason in passed)),
        )

    def choose(self, query: Query) -> str:
        if _is_known(query) and (name := self._native.choose(*_keys(query))):
            return name
        raise Unsupported(self._nothing(query, 0, self._passed(query, self._ask(query, 0)), None))

    def _ask(self, query: Query, max_sms: int) -> dict[str, Any]:
        """Return what native code answers, as csrc/binding/plan_table.cc describes it."""
        if not _is_known(query):
            return {"usual": -1, "chosen": -1, "fewer": [], "passed": []}
        answer: dict[str, Any] = json.loads(self._native.explain(*_keys(query), max_sms, self._multiprocessors))
        return answer

    def _passed(self, query: Query, why: dict[str, Any]) -> list[tuple[str, str]]:
        collective = COLLECTIVES[query.op]
        passed = [] if _is_known(query) else [("all", f"there is no {query.redop} of {query.dtype}")]
        for number, refusal in why["passed"]:
            row, entry = self._lines[number].row, self._lines[number].entry
            reason = REFUSALS.get(refusal) or collective.refusal(row, query.dtype, query.redop, query.world)
            if refusal == "align":
                reason = f"{query.num_bytes} B is no multiple of {entry.align}"
            passed.append((row.name, str(reason)))
        return passed

    def _nothing(self, query: Query, max_sms: int, passed: Sequence[tuple[str, str]], usual: Line | None) -> str:
        call = f"{query.op} of {query.num_bytes} B of {query.dtype} on {counted(query.world, 'rank')}"
        limit = f" with max_sms={max_sms}" if max_sms else ""
        reasons = "; ".join(dict.fromkeys(reason for _, reason in passed))
        if usual is not None:
            reasons = f"{usual.row.name}, which runs without a limit, takes more multiprocessors"
        return f"plan {self._plan.source} has no rule for {call}{limit}" + (f": {reasons}" if reasons else "")

    def _symmetric_points(self, usual: Line, fewer: Sequence[int]) -> list[Point]:
        """Return those of the symmetric range that leaves the call to the plain rules."""
        lines = [self._lines[number] for number in fewer]
        return [
            line.entry.curve[line.point] for line in lines if line.point is not None and line.entry is not usual.entry
        ]

    def _spared(self, why: dict[str, Any], points: Sequence[Point]) -> str:
        """Say what an asynchronous call takes of a GPU; "" where it takes nothing either way."""
        usual, chosen = self._lines[why["usual"]], self._lines[why["chosen"]]
        if not why["usual_sms"]:
            return ""
        if chosen is usual:
            reason = "which is the knee of its curve" if points else "as it was not measured on fewer multiprocessors"
            return f"asynchronous: runs as a synchronous call, {reason}"
        curve = usual.choice.curve if chosen.entry is usual.entry else chosen.entry.curve
        slower = curve[chosen.point or 0].slower
        taken = f"{why['chosen_sms']} of {counted(self._multiprocessors, 'multiprocessor')}"
        than = "all" if why["usual_sms"] >= self._multiprocessors else str(why["usual_sms"])
        return f"asynchronous: the knee of its curve, {taken}, measured {slower:.0%} slower than on {than}"


def _is_known(query: Query) -> bool:
    """Whether native code has a name for the type, or its bytes are only moved."""
    return query.dtype in DTYPES or not COLLECTIVES[query.op].reduces


def _keys(query: Query) -> tuple[str, str, str, int, bool, bool]:
    dtype = query.dtype if query.dtype in DTYPES else "uint8"
    return query.op, dtype, query.redop, query.num_bytes, query.placement == "symmetric", query.mode == "graph"


table_of = lru_cache(maxsize=16)(Table)


def choice_of(plan: Plan, backend: Backend) -> Choose:
    """Return what a backend without native code asks for the algorithm of each call."""
    table, size = Table(plan, backend.size, has_arena=backend.has_arena), backend.size  # the backend keeps the result

    @lru_cache(maxsize=MAX_CHOICES)
    def choose(op: str, num_bytes: int, dtype: str, redop: str) -> str:
        return table.choose(Query(op, num_bytes, dtype, redop, size))

    return choose


# --- the rows of algorithms and the rules of a plan, as native code reads them (csrc/plan/text_line.h) ----------------


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


# --- the reasons, as people read them ---------------------------------------------------------------------------------

KEYS = ("backend", "device", "driver", "nccl", "cuda", "cpu", "cores", "kernel", "torch")
_SPELLED = {"nccl": "NCCL", "cuda": "CUDA", "cpu": "CPU"}


@dataclass(frozen=True)
class Match:
    """How many keys of a fingerprint are those of this machine, and which differ; a total of 0: there is none."""

    score: int = 0
    total: int = 0
    differences: Sequence[str] = ()

    @classmethod
    def of(cls, tuned: Mapping[str, Any], here: Mapping[str, Any]) -> Match:
        """Compare the fingerprint of a plan with this machine's, over the keys that the plan has."""
        keys = [key for key in KEYS if tuned.get(key) is not None]
        differing = [key for key in keys if tuned[key] != here.get(key)]
        texts = tuple(f"{_SPELLED.get(key, key)} {tuned[key]}, here {here.get(key, 'unknown')}" for key in differing)
        return cls(len(keys) - len(differing), len(keys), texts)

    @property
    def where(self) -> str:
        """Whether the plan was measured on this machine, as text."""
        if not self.total:
            return "not measured on this machine (`commlib tune` does)"
        return "measured elsewhere" if self.differences else "measured on a machine like this one"

    @property
    def description(self) -> str:
        """The same, with what differs."""
        return f"{self.where} ({self})" if self.differences else self.where

    def __str__(self) -> str:
        """Return it as explain prints it: match 5/6: NCCL 2.28.9, here 2.30.7."""
        if not self.total:
            return "no fingerprint"
        return f"match {self.score}/{self.total}" + (f": {'; '.join(self.differences)}" if self.differences else "")


@dataclass(frozen=True)
class Explanation:
    """Why an algorithm runs: what `explain` returns and the command line prints."""

    op: str
    num_bytes: int
    algorithm: str
    rule: str
    source: str
    low_bytes: int
    high_bytes: int | None
    gain: float | None = None
    runner_up: str | None = None
    digest: str = ""
    params: Mapping[str, int] = field(default_factory=dict)
    match: str = ""
    measured: str = ""  # whether the plan was, on this machine
    pinned_by: str = ""
    remark: str = ""  # of the algorithm, whatever the plan
    sms: int = 0  # multiprocessors that it takes at most; 0: none
    curve: Sequence[tuple[int, float]] = ()  # multiprocessors, and how much longer on so many than without a limit
    spared: str = ""  # what an asynchronous call takes, and why
    passed: tuple[str, ...] = ()  # what stood before it and cannot serve such a call, and why

    def __str__(self) -> str:
        """Return lines a person can act on: what runs and why, then for which sizes, how much better, by which rule."""
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        plan = "the shipped plan" if self.source.startswith("plans/") else f"the plan {self.source}"
        why = f"pinned by {self.pinned_by}" if self.pinned_by else f"chosen by {plan}, {self.measured}"
        origin = ", ".join(text for text in (f"plan {self.digest}", self.match) if text)
        lines = [
            f"{self.op} of {size_text(self.num_bytes)} runs {self.algorithm}: {why}",
            f"  for {self._sizes()}" + f", with {params}" * bool(params),
            *([] if self.pinned_by else [f"  {self._gain()}"]),
            f"  {self.rule} of {self.source} ({origin})",
        ]
        lines[2:2] = [f"  {text}" for text in (self.remark, self.spared, self._multiprocessors()) if text]
        lines[1:1] = [f"  passed over {reason}" for reason in self.passed]
        return "\n".join(lines)

    def _multiprocessors(self) -> str:
        if not self.sms:
            return ""
        measured = ", ".join(f"{sms} {slower:+.0%}" for sms, slower in self.curve)
        return f"takes up to {counted(self.sms, 'multiprocessor')}" + (
            f"; time on so many: {measured}" if measured else ""
        )

    def _sizes(self) -> str:
        ends = [] if self.low_bytes == 0 else [f"above {size_text(self.low_bytes - 1)}"]
        if self.high_bytes is not None:
            ends.append(f"up to {size_text(self.high_bytes)}")
        return f"sizes {', '.join(ends)}" if ends else "every size"

    def _gain(self) -> str:
        if self.gain is None or not self.runner_up:
            return "gain not measured"
        percent = round(100 * self.gain)
        than = f"{abs(percent)}% {'faster' if percent > 0 else 'slower'} than" if percent else "as fast as"
        return f"measured {than} {self.runner_up}"
