"""Rules: what was chosen for each case, as a plan on top of the plan in force and as a file of samples."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from statistics import fmean
from typing import Any

import torch

from commlib.collectives.reference import reducible
from commlib.collectives.spec import MAX_SMS
from commlib.plan import Plan
from commlib.plan.plan import HEAD
from commlib.plan.rules import Point, Range, Rule
from commlib.redops import DTYPES, REDOPS
from commlib.tools.tune.case import PLAIN, SCHEMA, VERSION, Case, Option, Samples
from commlib.tools.tune.choose import BySize, Choice, Settings, choose, gain, ranges
from commlib.version import __version__

CLOSER = 0.005  # of the time, that a point of a curve saves over those on fewer multiprocessors


@dataclass(frozen=True)
class Table:
    """What was chosen for a case; `dtype` and `mode` as its rule names them, "*" for all; `now`: the plan in force."""

    case: Case
    dtype: str
    mode: str
    samples: Samples
    choice: Choice
    now: BySize

    @property
    def changes(self) -> list[tuple[list[int], Option | None, Option]]:
        """Neighbouring sizes at which another option is chosen than runs now, with both."""
        sizes, pairs = list(self.choice), [(self.now(size), option) for size, option in self.choice.items()]
        return [(sizes[at.start : at.stop], *pairs[at.start]) for at in ranges(pairs) if len({*pairs[at.start]}) > 1]


@dataclass(frozen=True)
class Setup:
    """What rules are made for; `by_mode`: graphs and eager calls get rules of their own, as on GPUs."""

    base: Plan  # in force, with the rules of this run
    world: int
    machine: Mapping[str, Any]  # its fingerprint
    by_mode: bool
    settings: Settings
    until: int | None = None  # bytes: larger calls keep what the plan in force has; None: new rules have no end

    def incumbent(self, case: Case, size: int) -> Option | None:
        """Return what the plan in force runs, PLAIN where its plain rules decide, None without a rule."""
        keys: dict[str, Any] = {"world": self.world, "placement": case.placement, "mode": case.mode}
        try:
            why = self.base.explain(case.op, size, case.type_name, **keys)
        except ValueError:
            return None
        same = case.collective.algorithm(why.algorithm).placement == case.placement
        return Option.of(why.algorithm, why.params) if same else PLAIN

    def table(self, case: Case, cases: Sequence[Case], samples: Samples) -> Table:
        """Choose for one of the cases that are measured; the first type stands for all that get no rule."""
        for size in samples.sizes:
            meant = {o: samples.plain.get(size) if o == PLAIN else o for o in samples.options}
            taken = {o: case.sms(means, size, self.world) if means else MAX_SMS for o, means in meant.items()}
            # Multiprocessors matter to tiles and copy engines: smaller calls are over before a model misses any.
            rows = {o: case.collective.algorithm(means.algorithm) for o, means in meant.items() if means}
            large = {o for o, row in rows.items() if row.engine or "tile_bytes" in {param.name for param in row.params}}
            tried = [o for o in samples.times[size] if o in rows and (o == PLAIN or o in large)]
            if len({taken[o] for o in tried}) > 1:
                samples.sms[size] = taken
        first = next(each for each in cases if each.op == case.op)
        dtype, mode = "*" if case.dtype == first.dtype else case.type_name, case.mode if self.by_mode else "*"
        now = partial(self.incumbent, case)
        return Table(case, dtype, mode, samples, choose(samples, self.settings, now), now)

    def rule(self, table: Table) -> Rule:
        """Return the rule of a table; beyond what was measured runs what the plan in force has there, if it has any."""
        new = rule_of(table, self.world)
        if self.until is None or self.incumbent(table.case, self.until + 1) is None:
            return new
        before = next((rule.ranges for rule in self.base.rules if _same_calls(rule, new)), ())
        larger = (entry for entry in before if entry.max_bytes is None or entry.max_bytes > self.until)
        return replace(new, ranges=(*new.ranges[:-1], replace(new.ranges[-1], max_bytes=self.until), *larger))

    def plan(self, table: Table, source: str) -> Plan:
        """Return the plan in force with the rule of a table, before the rules that are for as many types."""
        new = self.rule(table)
        rules = [rule for rule in self.base.rules if not _same_calls(rule, new)]
        same = [(r.op, r.placement, r.redop) == (new.op, new.placement, "*") for r in rules]
        before = (at for at, rule in enumerate(rules) if same[at] and rule.dtype in ("*", new.dtype))
        rules.insert(next(before, len(rules)), new)
        head = {
            **HEAD,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commlib": __version__,
            "fingerprint": dict(self.machine),
            "method": {**asdict(self.settings), "statistic": "median of interleaved blocks, slowest rank"},
        }
        return Plan({**head, "rules": [rule.document() for rule in rules]}, source)

    def samples(self, tables: Iterable[Table], before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the file of samples of the tables, and the cases of the file before that were not measured again."""
        cases = {**before, **{f"{table.case}, {self.world} ranks": table.samples.document() for table in tables}}
        return {"schema": SCHEMA, "version": VERSION, "fingerprint": dict(self.machine), "cases": cases}


def _same_calls(rule: Rule, other: Rule) -> bool:
    return replace(rule, ranges=other.ranges, fallback=other.fallback) == other


def rule_of(table: Table, world: int) -> Rule:
    """Return the rule of one table; beyond the measured sizes runs what was best at the largest."""
    case, rest = table.case, tuple(_fallback(table, world))
    keys: dict[str, Any] = {"op": case.op, "dtype": table.dtype, "placement": case.placement, "mode": table.mode}
    return Rule(**keys, world=(world, world), ranges=tuple(_ranges(table)), fallback=rest)


def _ranges(table: Table) -> Iterator[Range]:
    """Yield the ranges; of symmetric tensors with a curve next to each plain option, by a factor of four in size."""
    samples, choice, now, sizes = table.samples, table.choice, table.now, list(table.choice)
    divided = {size: choice[size] == PLAIN and size in samples.sms for size in sizes}
    parts = [(choice[size], divided[size] and (samples.plain[size], size.bit_length() // 2)) for size in sizes]
    for rows in ranges(parts):
        here, after = sizes[rows.start : rows.stop], sizes[rows.stop :][:1]
        last, chosen, until = here[-1], choice[here[-1]], None
        if after and choice[after[0]] == chosen:
            until = last
        elif after and all(now(size) == choice[size] for size in (last, *after)):  # where it is in the plan in force
            until = last + bisect(range(last + 1, after[0]), 0, key=lambda size: now(size) != now(last))
        elif after:  # halfway
            until = max(last, round(math.sqrt(last * after[0])) // 8 * 8)
        # A plain algorithm in a symmetric rule says that the plain rules decide: its name is for the reader.
        option = Option(samples.plain[last].algorithm) if chosen == PLAIN else chosen
        more, than = gain(samples, chosen, here)
        points = curve(table.case, samples, chosen, here)
        params = dict(option.params)
        yield Range(max_bytes=until, algorithm=option.algorithm, params=params, gain=more, runner_up=than, curve=points)


def curve(case: Case, samples: Samples, chosen: Option, sizes: Sequence[int]) -> tuple[Point, ...]:
    """Return what was best at these sizes on fewer multiprocessors than an option takes, and the best on more."""
    where = [size for size in sizes if size in samples.sms and chosen in samples.times[size]]
    medians, points = [samples.medians(size) for size in where], list[Point]()
    for option in samples.options:
        ratios = [math.log(times[option] / times[chosen]) for times in medians if option in times]
        if option not in (chosen, PLAIN) and ratios:
            slower, params = round(math.expm1(fmean(ratios)), 4), dict(option.params)
            points.append(Point(sms=case.max_sms(option), algorithm=option.algorithm, params=params, slower=slower))
    sms = min((samples.sms[size][chosen] for size in where), default=0) if chosen == PLAIN else case.max_sms(chosen)
    fewer: list[Point] = []
    for point in sorted(points, key=lambda point: (point.sms, point.slower)):
        if point.sms < sms and point.slower < (fewer[-1].slower - CLOSER if fewer else math.inf):
            fewer.append(point)
    more = [point for point in points if point.sms > sms]
    return (*fewer, *sorted(more, key=lambda point: (point.slower, point.sms))[:1])


def _fallback(table: Table, world: int) -> Iterator[Range]:
    """Yield what runs for types and reductions that an algorithm of the ranges refuses: the fastest there of others."""
    collective = table.case.collective
    calls = [(getattr(torch, dtype), redop) for dtype in DTYPES for redop in REDOPS if collective.reduces]

    def refuses(option: Option) -> bool:
        row = collective.algorithm(option.algorithm) if option != PLAIN else None
        return row is not None and any(reducible(*call) and row.refuses(*call, world) for call in calls)

    times = [table.samples.medians(size) for size, option in table.choice.items() if refuses(option)]
    able = [o for o in table.samples.options if o != PLAIN and not refuses(o) and all(o in of for of in times)]
    if times and able:
        best = min(able, key=lambda option: sum(math.log(of_size[option]) for of_size in times))
        yield Range(algorithm=best.algorithm, params=dict(best.params))
