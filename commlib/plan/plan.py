"""Plan: which algorithm runs at which size; an immutable list of rules, the first of which that fits decides."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from commlib import env
from commlib.plan.check import SCHEMA, VERSION, check, read
from commlib.plan.explanation import Explanation, Match
from commlib.plan.lines import Lines
from commlib.plan.pins import pins, range_of
from commlib.plan.rules import Rule, read_rules, size_text


@dataclass(frozen=True)
class _Origin:
    """Where the rules come from, and what was found out on the way: no part of the digest."""

    lines: Lines | None = None  # of a text that was read, and checked then
    rules: tuple[Rule, ...] | None = None
    fit: Match = field(default_factory=Match)
    pinned: Mapping[str, str] = field(default_factory=dict)  # by the environment: collective → algorithm


class Plan:
    """An immutable set of rules; the first rule that covers a call and has a range for its size decides."""

    def __init__(self, document: Mapping[str, Any], source: str, origin: _Origin | None = None) -> None:
        # Through JSON: nobody else holds parts of the document, and tuples are lists.
        self.document: dict[str, Any] = json.loads(json.dumps(document))
        self.source = source
        self._origin = origin or _Origin()
        if self._origin.rules is None:
            if self._origin.lines is None:
                check(self.document, source)
            self.rules = tuple(read_rules(self.document["rules"], source, self._origin.lines))
        else:
            self.rules = self._origin.rules

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; every fault is a ValueError that names the file and the line."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read plan {path}: {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Plan:
        """Read a plan from its text."""
        document, lines = read(text, source)
        return cls(document, source, _Origin(lines=lines))

    @classmethod
    def auto(
        cls,
        backend: str,
        *,
        world: int | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        accept: Callable[[Plan], None] | None = None,
    ) -> Plan:
        """Return the plan that applies here: COMMLIB_PLAN, else this user's for the machine, else a shipped one.

        Without `world` users' plans, which are for one number of ranks, are left out; `accept` raises a ValueError for
        a plan that cannot run.
        """
        from commlib.plan.search import find

        return find(backend, world, fingerprint, accept)

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
        source = f"pinned {', '.join(f'{op}:{name}' for op, name in algorithms.items())}"
        return cls._on_top(pins(algorithms, base.rules if base else (), params), base, source)

    @classmethod
    def threshold(
        cls, max_bytes: int, *, below: str, above: str, op: str = "all_reduce", base: Plan | None = None
    ) -> Plan:
        """Express the classic single threshold: `below` up to max_bytes, `above` beyond."""
        ranges = [range_of(max_bytes, below), range_of(None, above)]
        return cls._on_top([{"op": op, "ranges": ranges}], base, f"threshold of {size_text(max_bytes)}")

    @classmethod
    def _on_top(cls, rules: list[dict[str, Any]], base: Plan | None, source: str) -> Plan:
        own = cls({"schema": SCHEMA, "version": VERSION, "rules": rules}, source)
        if base is None:
            return own
        document = {**base.document, "rules": [*rules, *base.document["rules"]]}
        return cls(document, source, replace(base._origin, rules=own.rules + base.rules))

    def overridden(self, algorithms: Mapping[str, str]) -> Plan:
        """Return this plan with collectives pinned by the environment, which explain then says."""
        made = Plan.only(algorithms, base=self)
        return Plan(made.document, self.source, replace(made._origin, pinned=dict(algorithms)))

    def completed(self, base: Plan, world: int | None) -> Plan:
        """Return this plan with the rules of `base`, as the last ones, for collectives that it does not cover."""
        whole = {r.op for r in self.rules_of(world) if (r.placement, r.dtype, r.redop, r.mode) == ("plain", *"***")}
        more = [(rule, base.document["rules"][at]) for at, rule in enumerate(base.rules) if rule.op not in whole]
        if not more:
            return self
        document = {**self.document, "rules": [*self.document["rules"], *(text for _, text in more)]}
        rules = (*self.rules, *(rule for rule, _ in more))
        return Plan(document, self.source, replace(self._origin, rules=rules))

    def fitted(self, fingerprint: Mapping[str, Any]) -> Plan:
        """Return this plan with what its fingerprint has in common with this machine's, for explain."""
        return Plan(self.document, self.source, replace(self._origin, rules=self.rules, fit=self.match(fingerprint)))

    def match(self, fingerprint: Mapping[str, Any]) -> Match:
        """Compare where the plan was measured with a machine's fingerprint."""
        return Match.of(self.document.get("fingerprint", {}), fingerprint)

    @property
    def fit(self) -> Match:
        """How well the fingerprint matches the machine on which the plan was taken."""
        return self._origin.fit

    @property
    def pinned(self) -> Mapping[str, str]:
        """The collectives that the environment pins, and to which algorithms."""
        return self._origin.pinned

    @cached_property
    def text(self) -> str:
        """The canonical text: what the digest is taken over."""
        return json.dumps(self.document, sort_keys=True, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits that are equal exactly where plans are."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @property
    def file_text(self) -> str:
        """The text to keep in a file: a line for each rule."""
        rows = ",\n".join(f"  {json.dumps(rule)}" for rule in self.document["rules"])
        head = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.document.items() if key != "rules"]
        return "{\n" + ",\n".join([*head, f' "rules": [\n{rows}\n ]']) + "\n}\n"

    def packed(self) -> str:
        """Return what rank 0 sends to the others: the document, and where its rules come from."""
        origins = [[rule.source, rule.number, rule.line] for rule in self.rules]
        fit = [self.fit.score, self.fit.total, self.fit.differences]
        return json.dumps([self.document, self.source, origins, fit, dict(self.pinned)])

    @classmethod
    def unpacked(cls, text: str) -> Plan:
        """Return the plan that rank 0 packed."""
        document, source, origins, (score, total, differences), pinned = json.loads(text)
        rules = tuple(
            replace(rule, source=file, number=number, line=line)
            for rule, (file, number, line) in zip(read_rules(document["rules"], source), origins, strict=True)
        )
        fit = Match(score, total, tuple(differences))
        return cls(document, source, _Origin(rules=rules, fit=fit, pinned=pinned))

    def rules_of(self, world: int | None) -> list[Rule]:
        """Return the rules that speak of such a world; all of them without one."""
        return [rule for rule in self.rules if world is None or rule.world[0] <= world <= rule.world[1]]

    def rules_for(self, world: int, mode: str) -> Iterator[Rule]:
        """Yield the rules that speak of such a world and mode, in order."""
        return (rule for rule in self.rules_of(world) if rule.mode in ("*", mode))

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
    ) -> Explanation:
        """Say which algorithm runs such a call, by which rule of which file."""
        rule, at = self.decide(op, num_bytes, (dtype, redop, placement, mode, world))
        before, entry = rule.ranges[at - 1] if at else None, rule.ranges[at]
        return Explanation(
            op=op,
            num_bytes=num_bytes,
            algorithm=entry.algorithm,
            rule=f"rules[{rule.number}][{at}]",
            source=rule.source,
            low_bytes=(before.max_bytes or 0) + 1 if before else 0,
            high_bytes=entry.max_bytes,
            gain=entry.gain,
            runner_up=entry.runner_up,
            digest=self.digest,
            params=entry.params,
            confidence=entry.confidence,
            ci_bytes=entry.ci_bytes,
            low_ci_bytes=before.ci_bytes if before else None,
            match=str(self.fit) if rule.source == self.source else "",
            pinned_by=env.ALGORITHM.name if self.pinned.get(op) == entry.algorithm else "",
        )

    def decide(self, op: str, num_bytes: int, keys: tuple[str, str, str, str, int]) -> tuple[Rule, int]:
        """Find the range for (dtype, redop, placement, mode, world).

        Symmetric rules only say where zero-copy pays; elsewhere the plain choice stands.
        """
        dtype, redop, placement, mode, world = keys
        for rule in self.rules:
            if rule.op == op and rule.covers(dtype, redop, placement, mode, world):
                at = rule.at(num_bytes)
                if at is None:
                    break
                if placement == "symmetric" and not rule.ranges[at].algorithm.endswith("_symmetric"):
                    break
                return rule, at
        if placement == "symmetric":
            return self.decide(op, num_bytes, (dtype, redop, "plain", mode, world))
        raise ValueError(f"plan {self.source} has no rule for {op} of {num_bytes} B of {dtype} on {world} ranks")

    def __str__(self) -> str:
        """Return the rules as a table."""
        lines = [f"plan {self.digest} from {self.source}"]
        for rule in self.rules:
            lines.append(f"rules[{rule.number}] {rule.keys}" + (f" of {rule.source}" * (rule.source != self.source)))
            for entry in rule.ranges:
                limit = "rest" if entry.max_bytes is None else f"≤ {size_text(entry.max_bytes)}"
                lines.append(f"  {limit:>14}  {entry.choice}")
        return "\n".join(lines)
