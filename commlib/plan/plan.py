"""Plan: which algorithm runs at which size; an immutable list of rules, the first of which that can serve decides."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import astuple, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from commlib.plan.rules import (
    MAX_RULES,
    PLACEMENTS,
    SCHEMA,
    TOO_MANY,
    VERSION,
    Query,
    Rule,
    Span,
    parse,
    read_rules,
    size_text,
)
from commlib.plan.table import Explanation, Match, table_of

WIDTH = 120  # of a line of a plan file
HEAD = {"schema": SCHEMA, "version": VERSION}


class Plan:
    """An immutable list of rules; the first rule that covers a call, and can serve it, decides.

    `head` is the document without its rules; `fit` says how well its fingerprint matches this machine; `pinned` maps
    each collective that the environment pins to its algorithm. The last two are not part of the digest.
    """

    rules: tuple[Rule, ...]
    fit = Match()
    pinned: Mapping[str, str] = MappingProxyType({})

    def __init__(self, document: Mapping[str, Any], source: str) -> None:
        copied = json.loads(json.dumps(document))  # nobody else holds parts of it, and tuples are lists
        self.rules, self.source = read_rules(copied, source), source
        self.head = {key: value for key, value in copied.items() if key != "rules"}

    def _with(self, **changes: Any) -> Plan:
        made = copy(self)
        for derived in ("document", "digest"):
            made.__dict__.pop(derived, None)
        made.__dict__.update(changes)
        if len(made.rules) > MAX_RULES:
            raise ValueError(f"plan {made.source}: {TOO_MANY.format(len(made.rules))}")
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; every fault is a ValueError that names the file and the rule."""
        try:
            if not Path(path).is_file():  # a pipe would hold up all ranks
                raise ValueError(f"cannot read plan {path}: there is no regular file of that name; give its path")
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"plan {path} is not a text file; take a file that `commlib tune` wrote") from None
        except OSError as error:
            raise ValueError(f"cannot read plan {path}: {error.strerror}; give the path of a file") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Plan:
        return cls(parse(text, source), source)

    @classmethod
    def only(
        cls,
        algorithms: Mapping[str, str],
        *,
        base: Plan | None = None,
        params: Mapping[str, int] | None = None,
    ) -> Plan:
        """Pin collectives to algorithms at every size, on top of `base`: for tests, bench and bisecting.

        Without `params`, each size keeps the parameters that `base` has for the algorithm, there or nearby.
        """
        rules = [pin for op, name in algorithms.items() for pin in pins(op, name, base.rules if base else (), params)]
        source = f"pinned {', '.join(f'{op}:{name}' for op, name in algorithms.items())}"
        return cls._on_top(rules, base, source)

    @classmethod
    def threshold(
        cls,
        max_bytes: int,
        *,
        below: str,
        above: str,
        op: str = "all_reduce",
        base: Plan | None = None,
        world: int | None = None,
    ) -> Plan:
        """Express the classic single threshold: `below` up to max_bytes, `above` beyond."""
        ranges = [{"max_bytes": max_bytes, "algorithm": below}, {"algorithm": above}]
        rule = {"op": op, "world": [world or 1, world], "ranges": ranges}
        return cls._on_top([rule], base, f"threshold of {size_text(max_bytes)}")

    @classmethod
    def _on_top(cls, rules: list[dict[str, Any]], base: Plan | None, source: str) -> Plan:
        pinned = cls({**HEAD, "rules": rules}, source)
        return pinned if base is None else base._with(rules=pinned.rules + base.rules, source=source)

    def overridden(self, algorithms: Mapping[str, str]) -> Plan:
        """Return this plan with collectives pinned by the environment, which explain then says."""
        return Plan.only(algorithms, base=self)._with(source=self.source, pinned=dict(algorithms))

    def completed(self, base: Plan) -> Plan:
        """Return this plan with the rules of `base` as the last ones, for what it does not cover or cannot serve."""
        return self._with(rules=(*self.rules, *(rule for rule in base.rules if rule not in self.rules)))

    def fitted(self, fingerprint: Mapping[str, Any]) -> Plan:
        """Return this plan with what its fingerprint has in common with this machine's, for explain."""
        return self._with(fit=Match.of(self.fingerprint, fingerprint))

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The machine on which it was measured; empty for a plan that fits every machine."""
        fingerprint: Mapping[str, Any] = self.head.get("fingerprint", {})
        return fingerprint

    @cached_property
    def document(self) -> dict[str, Any]:
        return {**self.head, "rules": [rule.document() for rule in self.rules]}

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits that are equal exactly where plans are."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def file_text(self) -> str:
        """The text to keep in a file: a line for each range, and for each fallback."""
        rows = ",\n".join(_rule_text(rule.document()) for rule in self.rules)
        head = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.head.items()]
        return "{\n" + ",\n".join([*head, f' "rules": [\n{rows}\n ]']) + "\n}\n"

    def packed(self) -> str:
        """Return what rank 0 sends to the others: the document, and where its rules come from."""
        origins = [[rule.source, rule.number] for rule in self.rules]
        return json.dumps([self.document, self.source, origins, astuple(self.fit), dict(self.pinned)])

    @classmethod
    def unpacked(cls, packed: str) -> Plan:
        document, source, origins, fit, pinned = json.loads(packed)
        made = cls(document, source)
        rules = tuple(
            replace(rule, source=file, number=number) for rule, (file, number) in zip(made.rules, origins, strict=True)
        )
        return made._with(rules=rules, fit=Match(*fit), pinned=pinned)

    def rules_of(self, world: int) -> list[Rule]:
        return [rule for rule in self.rules if rule.world[0] <= world <= rule.world[1]]

    def explain(  # noqa: PLR0913 - the keys of a rule
        self,
        op: str,
        num_bytes: int,
        dtype: str = "float32",
        redop: str = "sum",
        *,
        world: int,
        placement: str = "plain",
        mode: str = "eager",
        max_sms: int = 0,
        async_op: bool = False,
    ) -> Explanation:
        """Say which algorithm runs such a call, by which rule of which file, and what was passed over before it.

        An asynchronous call on GPUs spares them, unless it has a limit.
        """
        query = Query(op, num_bytes, dtype, redop, world, placement, mode)
        return table_of(self, world).explain(query, max_sms, async_op)

    def __str__(self) -> str:
        lines = [f"plan {self.digest} from {self.source}"]
        for rule in self.rules:
            lines.append(f"rules[{rule.number}] {rule.keys}" + (f" of {rule.source}" * (rule.source != self.source)))
            for entry in rule.ranges:
                limit = "rest" if entry.max_bytes is None else f"≤ {size_text(entry.max_bytes)}"
                lines.append(f"  {limit:>14}  {entry.choice}")
            lines += [f"  {'fallback':>14}  {entry.choice}" for entry in rule.fallback]
        return "\n".join(lines)


def _rule_text(rule: Mapping[str, Any]) -> str:
    whole = f"  {json.dumps(rule)}"
    parts = {part: rule[part] for part in ("ranges", "fallback") if part in rule}
    if sum(map(len, parts.values())) == 1 and len(whole) <= WIDTH:
        return whole
    lines = ["  {" + ", ".join(f"{json.dumps(key)}: {json.dumps(rule[key])}" for key in rule if key not in parts)]
    for part, entries in parts.items():
        lines[-1] += f', "{part}": ['
        lines += [f"   {json.dumps(entry)}," for entry in entries]
        lines[-1] = lines[-1].removesuffix(",") + "]"
    return "\n".join(lines) + "}"


# --- pins: rules that leave no choice, on top of a plan, with the parameters that the plan has for them ---------------


def pins(
    op: str, algorithm: str, base: Sequence[Rule], params: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield rules that pin a collective to an algorithm, with `params`, else with those that `base` has for it."""
    # Each stands in both tables, and only one can serve: where it cannot, the base plan's choice stands.
    for placement in PLACEMENTS:
        rules = [rule for rule in base if (rule.op, rule.placement) == (op, placement)]
        if params is None and any(entry.params for _, _, entry in _spans(rules, algorithm)):
            first: dict[str, Rule] = {}
            for rule in rules:  # one pin for calls that several rules speak of: pins of pins do not multiply
                first.setdefault(rule.keys, rule)
            for rule in first.values():
                yield {**rule.document(), "ranges": _tuned(rule, algorithm, rules), "fallback": []}
        yield {"op": op, "placement": placement, "ranges": [{"algorithm": algorithm, "params": dict(params or {})}]}


def _tuned(rule: Rule, algorithm: str, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Cut the sizes as the rule does, each range with the parameters of the nearest that runs the algorithm."""
    alike = [other for other in rules if other.world[0] <= rule.world[1] and rule.world[0] <= other.world[1]]
    known = _spans([rule], algorithm) or _spans(alike, algorithm)
    ranges: list[dict[str, Any]] = []
    for low, high, _ in rule.spans():

        def distance(span: Span, low: float = low, high: float = high) -> float:
            its_low, its_high, _ = span
            return max(1.0, low / max(1, its_high), its_low / max(1, high))

        params = dict(min(known, key=distance)[2].params) if known else {}
        if ranges and ranges[-1]["params"] == params:
            ranges.pop()
        ranges.append({"max_bytes": high, "algorithm": algorithm, "params": params})
    ranges[-1]["max_bytes"] = None  # a pin leaves no size out
    return ranges


def _spans(rules: Iterable[Rule], algorithm: str) -> list[Span]:
    return [span for rule in rules for span in rule.spans() if span[2].algorithm == algorithm]
