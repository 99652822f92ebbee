"""Rules: what was chosen, as a plan document on top of the plan in force."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import median
from typing import Any

import torch

from commlib import __version__
from commlib.collectives.reference import reducible
from commlib.plan import HEAD, Plan
from commlib.redops import DTYPES, REDOPS
from commlib.tuner.case import PLAIN, Case, Option
from commlib.tuner.choose import Choice, Settings, Stretch
from commlib.tuner.judge import Verdict
from commlib.tuner.samples import Samples


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


def document(
    tables: Sequence[Table], base: Plan, world: int, fingerprint: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    """Return the plan document: the new rules, and those of `base` for everything that was not tuned."""
    rules = [dict(rule) for rule in base.document["rules"] if not _is_replaced(rule, tables, world)]
    for table in sorted(tables, key=_general_first):
        rules = _placed(rule_of(table, world), rules)
    return {
        **HEAD,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commlib": __version__,
        "fingerprint": dict(fingerprint),
        "method": {
            "penalty": settings.penalty,
            "folds": settings.folds,
            "resamples": settings.resamples,
            "seed": settings.seed,
            "statistic": "median of interleaved blocks, slowest rank",
        },
        "rules": rules,
    }


def rule_of(table: Table, world: int) -> dict[str, Any]:
    """Return the rule of one table; beyond the measured sizes runs what was best at the largest."""
    ranges = [_range(stretch, table.samples.plain) for stretch in table.choice.stretches]
    keys = {"dtype": table.dtype, "mode": table.mode, "placement": table.case.placement}
    usual = {"dtype": "*", "mode": "*", "placement": "plain"}
    named = {key: value for key, value in keys.items() if value != usual[key]}
    rule = {"op": table.case.op, **named, "world": [world, world], "ranges": ranges}
    fallback = _fallback(table, world)
    return {**rule, "fallback": [fallback]} if fallback else rule


def _fallback(table: Table, world: int) -> dict[str, Any] | None:
    """Return what runs for types and reductions that an algorithm of the ranges refuses, if one does.

    Of those that refuse none it is the one that costs least where the refusing ones run.
    """
    case, choice = table.case, table.choice
    refusing = {o for o in table.samples.options if o != PLAIN and _refuses(case, o.algorithm, world)}
    sizes = [size for stretch in choice.stretches if stretch.option in refusing for size in stretch.sizes]
    times = [table.samples.times[size] for size in sizes]
    able = [o for o in table.samples.options if o not in refusing and all(o in of_size for of_size in times)]
    if not sizes or not able:
        return None
    best = min(able, key=lambda option: sum(math.log(median(of_size[option])) for of_size in times))
    return _entry(best)


def _refuses(case: Case, algorithm: str, world: int) -> bool:
    row = case.collective.algorithm(algorithm)
    pairs = [(getattr(torch, dtype), redop) for dtype in DTYPES for redop in REDOPS]
    return case.collective.reduces and any(
        reducible(dtype, redop) and row.refuses(dtype, redop, world) for dtype, redop in pairs
    )


def vendor_of(case: Case, samples: Samples) -> str | None:
    """Return the call that is somebody else's library, if it was measured."""
    names = {option.algorithm for option in samples.options}
    return next((name for name in ("nccl_direct", "torch_direct") if name in names), None)


def _range(stretch: Stretch, plain: Mapping[int, Option]) -> dict[str, Any]:
    # A plain algorithm in a symmetric rule says that the plain rules decide: its name is for the reader.
    option = Option(plain[stretch.sizes[-1]].algorithm) if stretch.option == PLAIN else stretch.option
    found = {
        "ci_bytes": list(stretch.interval) if stretch.interval else None,
        "confidence": None if stretch.confidence is None else round(stretch.confidence, 3),
        "gain": stretch.gain,
        "runner_up": stretch.runner_up,
    }
    limit = {} if stretch.until is None else {"max_bytes": stretch.until}
    return {**limit, **_entry(option), **{key: value for key, value in found.items() if value is not None}}


def _entry(option: Option) -> dict[str, Any]:
    return {"algorithm": option.algorithm, **({"params": dict(option.params)} if option.params else {})}


def _general_first(table: Table) -> tuple[bool, bool]:
    """Each is put before what it is more special than."""
    return table.dtype != "*", table.mode != "*"


def _is_replaced(rule: Mapping[str, Any], tables: Sequence[Table], world: int) -> bool:
    """Whether new rules speak of all that this one does."""
    here = [table for table in tables if table.case.op == rule["op"]]
    return bool(here) and _modes(rule.get("mode", "*")) <= _covered(rule, here, world)


def _covered(rule: Mapping[str, Any], tables: Iterable[Table], world: int) -> set[str]:
    """Return the modes in which tables speak of this rule's type and ranks."""
    covered: set[str] = set()
    if list(rule.get("world") or ()) != [world, world] or "redop" in rule:
        return covered
    dtype = rule.get("dtype", "*")
    for table in tables:
        if table.case.placement == rule.get("placement", "plain"):
            covered |= _modes(table.mode) if table.dtype == dtype else set()
            covered |= {mode for served, mode in table.serves if served in ("*", dtype)}
    return covered


def _modes(mode: str) -> set[str]:
    return {"eager", "graph"} if mode == "*" else {mode}


def _placed(new: dict[str, Any], rules: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the rule with the same keys, or stand before the first that speaks of as many types and reductions."""
    kept = [rule for rule in rules if _keys(rule) != _keys(new)]
    for at, rule in enumerate(kept):
        same = rule["op"] == new["op"] and rule.get("placement", "plain") == new.get("placement", "plain")
        as_general = rule.get("redop", "*") == "*" and rule.get("dtype", "*") in ("*", new.get("dtype", "*"))
        if same and as_general:
            return [*kept[:at], new, *kept[at:]]
    return [*kept, new]


def _keys(rule: Mapping[str, Any]) -> tuple[object, ...]:
    world = rule.get("world") or (1, None)
    optional = (rule.get(key, "*") for key in ("dtype", "redop", "mode"))
    return (rule["op"], rule.get("placement", "plain"), tuple(world), *optional)
