"""Rules: what was chosen, as a plan on top of the plan in force."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import groupby
from statistics import median
from typing import Any

import torch

from commlib.collectives.reference import reducible
from commlib.plan import HEAD, MODES, Plan, Range, Rule
from commlib.redops import DTYPES, REDOPS
from commlib.tools.tune.case import PLAIN, Case, Option
from commlib.tools.tune.choose import Choice, Settings, Stretch, compared
from commlib.tools.tune.judge import Verdict
from commlib.tools.tune.knee import curve
from commlib.tools.tune.samples import Samples
from commlib.version import __version__


@dataclass(frozen=True)
class Table:
    """One rule to write: `dtype` and `mode` as the rule names them, "*" for all.

    `serves` are (dtype, mode) that were measured too and need no rule of their own, though a run before may have
    written one.
    """

    case: Case
    dtype: str
    mode: str
    samples: Samples
    choice: Choice
    verdict: Verdict
    serves: tuple[tuple[str, str], ...] = ()

    def served(self) -> Iterator[Case]:
        """Yield the cases that `serves` names."""
        for dtype, mode in self.serves:
            yield replace(self.case, dtype=self.case.dtype if dtype == "*" else getattr(torch, dtype), mode=mode)


def plan_of(
    tables: Sequence[Table], base: Plan, world: int, fingerprint: Mapping[str, Any], settings: Settings, source: str
) -> Plan:
    """Return the plan: the new rules, and those of `base` for everything that was not tuned."""
    rules = [rule for rule in base.rules if not _is_replaced(rule, tables, world)]
    for table in sorted(tables, key=lambda table: (table.dtype != "*", table.mode != "*")):
        rules = _placed(rule_of(table, world), rules)  # before what it is more special than
    head = {
        **HEAD,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commlib": __version__,
        "fingerprint": dict(fingerprint),
        "method": {**asdict(settings), "statistic": "median of interleaved blocks, slowest rank"},
    }
    return Plan({**head, "rules": [rule.document() for rule in rules]}, source)


def rule_of(table: Table, world: int) -> Rule:
    """Return the rule of one table; beyond the measured sizes runs what was best at the largest."""
    choice, samples = table.choice, table.samples
    parts = tuple(part for stretch in choice.stretches for part in _parts(stretch, samples))
    if len(parts) > len(choice.stretches):
        choice = compared(replace(choice, stretches=parts), samples)
    return Rule(
        op=table.case.op,
        dtype=table.dtype,
        mode=table.mode,
        placement=table.case.placement,
        world=(world, world),
        ranges=tuple(_range(stretch, table) for stretch in choice.stretches),
        fallback=tuple(_fallback(table, world)),
    )


def _parts(stretch: Stretch, samples: Samples) -> Iterator[Stretch]:
    """Yield a stretch; where the plain rules decide on many multiprocessors, in parts where these run one option.

    So the curve of a part says how long copy engines take beside one kernel. That falls with the size, so the sizes of
    a part are within a factor of four.
    """
    if stretch.option != PLAIN:
        yield stretch
        return

    def part(size: int) -> object:
        return (samples.plain[size], size.bit_length() // 2) if size in samples.sms else None

    runs = [tuple(sizes) for _, sizes in groupby(stretch.sizes, part)]
    for sizes in runs[:-1]:
        yield replace(stretch, sizes=sizes, until=sizes[-1], interval=None, confidence=None)
    yield replace(stretch, sizes=runs[-1])


def _range(stretch: Stretch, table: Table) -> Range:
    # A plain algorithm in a symmetric rule says that the plain rules decide: its name is for the reader.
    plain, own = table.samples.plain, stretch.option
    option = Option(plain[stretch.sizes[-1]].algorithm) if own == PLAIN else own
    return Range(
        max_bytes=stretch.until,
        algorithm=option.algorithm,
        params=dict(option.params),
        ci_bytes=stretch.interval,
        confidence=None if stretch.confidence is None else round(stretch.confidence, 3),
        gain=stretch.gain,
        runner_up=stretch.runner_up,
        curve=curve(table.case, table.samples, own, stretch.sizes),
    )


def _fallback(table: Table, world: int) -> Iterator[Range]:
    """Yield what runs for types and reductions that an algorithm of the ranges refuses, if one does.

    Of those that refuse none it is the one that costs least where the refusing ones run.
    """
    options = [option for option in table.samples.options if option != PLAIN]
    refusing = {option for option in options if _refuses(table.case, option.algorithm, world)}
    sizes = [size for stretch in table.choice.stretches if stretch.option in refusing for size in stretch.sizes]
    times = [table.samples.times[size] for size in sizes]
    able = [o for o in options if o not in refusing and all(o in of_size for of_size in times)]
    if sizes and able:
        best = min(able, key=lambda option: sum(math.log(median(of_size[option])) for of_size in times))
        yield Range(algorithm=best.algorithm, params=dict(best.params))


def _refuses(case: Case, algorithm: str, world: int) -> bool:
    row = case.collective.algorithm(algorithm)
    pairs = [(getattr(torch, dtype), redop) for dtype in DTYPES for redop in REDOPS]
    return case.collective.reduces and any(
        reducible(dtype, redop) and row.refuses(dtype, redop, world) for dtype, redop in pairs
    )


def _is_replaced(rule: Rule, tables: Sequence[Table], world: int) -> bool:
    """Whether new rules speak of all that this one does: of its type, in each of its modes."""
    covered: set[str] = set()
    for table in tables:
        if table.case.op == rule.op and table.case.placement == rule.placement:
            covered |= {table.mode} if table.dtype == rule.dtype else set()
            covered |= {mode for served, mode in table.serves if served in ("*", rule.dtype)}
    modes = MODES if rule.mode == "*" else (rule.mode,)
    named = (rule.world, rule.redop) == ((world, world), "*")
    return named and ("*" in covered or covered.issuperset(modes))


def _placed(new: Rule, rules: Iterable[Rule]) -> list[Rule]:
    """Replace the rule with the same keys, or stand before the first that speaks of as many types and reductions."""
    kept = [rule for rule in rules if replace(rule, ranges=new.ranges, fallback=new.fallback) != new]
    for at, rule in enumerate(kept):
        same = (rule.op, rule.placement) == (new.op, new.placement)
        if same and rule.redop == "*" and rule.dtype in ("*", new.dtype):
            return [*kept[:at], new, *kept[at:]]
    return [*kept, new]
