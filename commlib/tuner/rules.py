"""Rules: what was chosen, as a plan document on top of the plan in force."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import torch

from commlib import __version__
from commlib.collectives.reference import reducible
from commlib.device import ELEMENTS
from commlib.plan import SCHEMA, VERSION, Plan
from commlib.redops import REDOPS
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
    """Return the plan document: the new rules, and those of `base` for everything that was not tuned, as measured."""
    gone = list(_replaced(base.document["rules"], tables, world))
    rules = [dict(rule) for rule in base.document["rules"] if rule not in gone]
    for table in sorted(tables, key=_general_first):
        rule = rule_of(table, world)
        for new in (rule, *_exceptions(rule, table.case)):
            rules = _placed(new, rules)
    # What the rules of `base` were chosen from goes with them, as long as they stand.
    served = {_name(case, world) for table in tables for case in table.served()}
    judged = _without(served, base.document.get("method", {}).get("judged", {}))
    samples = _without(served, base.document.get("samples", {}))
    judged |= {_name(table.case, world): _judged(table.verdict) for table in tables}
    samples |= {_name(table.case, world): table.samples.summary() for table in tables}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commlib": __version__,
        "fingerprint": dict(fingerprint),
        "method": {
            "penalty": settings.penalty,
            "folds": settings.folds,
            "resamples": settings.resamples,
            "seed": settings.seed,
            "statistic": "median of interleaved blocks, slowest rank",
            "judged": judged,
        },
        "samples": samples,
        "rules": rules,
    }


def rule_of(table: Table, world: int) -> dict[str, Any]:
    """Return the rule of one table; beyond the measured sizes the vendor's call runs, where there is one."""
    ranges = [_range(stretch, table.samples.plain) for stretch in table.choice.stretches]
    vendor = vendor_of(table.case, table.samples)
    if vendor is not None and ranges[-1]["algorithm"] != vendor:
        ranges[-1]["max_bytes"] = table.samples.sizes[-1]
        ranges.append({"max_bytes": None, "algorithm": vendor, "params": {}})
    keys = {"dtype": table.dtype, "mode": table.mode, "placement": table.case.placement}
    usual = {"dtype": "*", "mode": "*", "placement": "plain"}
    named = {key: value for key, value in keys.items() if value != usual[key]}
    return {"op": table.case.op, **named, "world": [world, world], "ranges": ranges}


def _exceptions(rule: dict[str, Any], case: Case) -> Iterator[dict[str, Any]]:
    """Yield rules for types and reductions that an algorithm of this rule for all refuses: the others run there."""
    if not case.collective.reduces or "dtype" in rule:
        return
    algorithms = [case.collective.algorithm(entry["algorithm"]) for entry in rule["ranges"]]
    calls = [("dtype", name, getattr(torch, name), "sum") for name in ELEMENTS]
    calls += [("redop", name, torch.int32, name) for name in REDOPS]
    for key, name, dtype, redop in calls:
        refused = {a.name for a in algorithms if a.refuses(dtype, redop, rule["world"][0])}
        left = [dict(entry) for entry in rule["ranges"] if entry["algorithm"] not in refused]
        if refused and left and reducible(dtype, redop):
            left[-1]["max_bytes"] = None
            yield {**rule, key: name, "ranges": left}


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
    return {
        "max_bytes": stretch.until,
        "algorithm": option.algorithm,
        "params": dict(option.params),
        **{key: value for key, value in found.items() if value is not None},
    }


def _general_first(table: Table) -> tuple[bool, bool]:
    """Each is put before what it is more special than."""
    return table.dtype != "*", table.mode != "*"


def _replaced(rules: Iterable[dict[str, Any]], tables: Sequence[Table], world: int) -> Iterator[dict[str, Any]]:
    """Yield the rules whose types and modes new ones speak of, and those that were made because of them."""
    for rule in rules:
        here = [table for table in tables if table.case.op == rule["op"]]
        if here and _modes(rule.get("mode", "*")) <= _covered(rule, here, world):
            yield rule
            yield from _exceptions(rule, here[0].case)


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


def _name(case: Case, world: int) -> str:
    return f"{case}, {world} ranks"


def _without(names: Container[str], found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def _judged(verdict: Verdict) -> dict[str, Any]:
    found = {"regret": verdict.regret, "worst": verdict.worst, "over_default": verdict.over_default}
    return {key: value for key, value in {**found, "noise": verdict.noise}.items() if value is not None}
