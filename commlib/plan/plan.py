"""Plan: which algorithm runs at which size; an immutable list of rules, the first of which that can serve decides."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from commlib import env
from commlib.plan.decide import ALL_SERVE, Decision, Facts, Query, decide
from commlib.plan.explanation import Explanation, Match
from commlib.plan.faults import SCHEMA, VERSION
from commlib.plan.pins import pins, range_of
from commlib.plan.read import MAX_RULES, parse, read_rules
from commlib.plan.rules import Rule, size_text

WIDTH = 120  # of a line of a plan file


class Plan:
    """An immutable set of rules; the first that covers a call and names something that can serve it decides.

    `fit` is how well the fingerprint matches the machine on which the plan was taken, `pinned` what the environment
    pins: collective → algorithm. Neither is part of the digest.
    """

    def __init__(self, document: Mapping[str, Any], source: str) -> None:
        # Through JSON: nobody else holds parts of the document, and tuples are lists.
        copy = json.loads(json.dumps(document))
        self._take(copy, source, read_rules(copy, source))

    def _take(self, document: dict[str, Any], source: str, rules: tuple[Rule, ...]) -> None:
        if len(rules) > MAX_RULES:
            raise ValueError(f"plan {source} has {len(rules)} rules; a plan has at most {MAX_RULES}")
        self.document, self.source, self.rules = document, source, rules
        self.fit = Match()
        self.pinned: Mapping[str, str] = {}

    def _with(self, rules: tuple[Rule, ...] | None = None, **changes: Any) -> Plan:
        """Return a copy with other rules, which stand in the document too, or with other attributes."""
        made = object.__new__(Plan)
        made.__dict__.update({key: value for key, value in self.__dict__.items() if key not in ("text", "digest")})
        if rules is not None:
            made._take({**self.document, "rules": changes.pop("texts")}, self.source, rules)
            made.fit, made.pinned = self.fit, self.pinned
        made.__dict__.update(changes)
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; every fault is a ValueError that names the file and the line."""
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would hold up all ranks
                raise ValueError(f"cannot read plan {path}: it is no regular file; give the path of a file")
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read plan {path}: {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Plan:
        """Read a plan from its text."""
        document = parse(text, source)
        made = object.__new__(cls)
        made._take(document, source, read_rules(document, source, text))
        return made

    @classmethod
    def empty(cls) -> Plan:
        """Return a plan without rules: what others are written on."""
        return cls({"schema": SCHEMA, "version": VERSION, "rules": []}, "nothing")

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
        return base._with(own.rules + base.rules, texts=rules + base.document["rules"], source=source)

    def overridden(self, algorithms: Mapping[str, str]) -> Plan:
        """Return this plan with collectives pinned by the environment, which explain then says."""
        return Plan.only(algorithms, base=self)._with(source=self.source, pinned=dict(algorithms))

    def completed(self, base: Plan) -> Plan:
        """Return this plan with the rules of `base` as the last ones, for what its own do not cover or cannot serve."""
        known = {op: [rule for rule in self.rules if rule.op == op] for op in {rule.op for rule in self.rules}}
        more = [at for at, rule in enumerate(base.rules) if rule not in known.get(rule.op, ())]
        texts = [*self.document["rules"], *(base.document["rules"][at] for at in more)]
        return self._with((*self.rules, *(base.rules[at] for at in more)), texts=texts)

    def fitted(self, fingerprint: Mapping[str, Any]) -> Plan:
        """Return this plan with what its fingerprint has in common with this machine's, for explain."""
        return self._with(fit=self.match(fingerprint))

    def match(self, fingerprint: Mapping[str, Any]) -> Match:
        """Compare the fingerprint with that of a machine."""
        return Match.of(self.document.get("fingerprint", {}), fingerprint)

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
        """The text to keep in a file: a line for each range, and for each fallback."""
        rows = ",\n".join(_rule_text(rule) for rule in self.document["rules"])
        head = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.document.items() if key != "rules"]
        return "{\n" + ",\n".join([*head, f' "rules": [\n{rows}\n ]']) + "\n}\n"

    def packed(self) -> str:
        """Return what rank 0 sends to the others: the document, and where its rules come from."""
        origins = [[rule.source, rule.number] for rule in self.rules]
        texts = {rule.source: rule.text for rule in self.rules}
        fit = [self.fit.score, self.fit.total, self.fit.differences]
        return json.dumps([self.document, self.source, origins, texts, fit, dict(self.pinned)])

    @classmethod
    def unpacked(cls, packed: str) -> Plan:
        """Return the plan that rank 0 packed."""
        document, source, origins, texts, (score, total, differences), pinned = json.loads(packed)
        rules = tuple(
            replace(rule, source=file, number=number, text=texts[file])
            for rule, (file, number) in zip(read_rules(document, source), origins, strict=True)
        )
        made = object.__new__(cls)
        made._take(document, source, rules)
        return made._with(fit=Match(score, total, tuple(differences)), pinned=pinned)

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
        facts: Facts = ALL_SERVE,
    ) -> Explanation:
        """Say which algorithm runs such a call, by which rule of which file, and what was passed over before it."""
        return self.explained(Query(op, num_bytes, dtype, redop, world, placement, mode), facts)

    def explained(self, call: Query, facts: Facts) -> Explanation:
        """Say the same of a call that is there as one."""
        found = self.decide(call, facts)
        rule, entry = found.rule, found.entry
        before, here = rule.ranges[found.at - 1] if found.at else None, rule.ranges[found.at]
        return Explanation(
            op=call.op,
            num_bytes=call.num_bytes,
            algorithm=entry.algorithm,
            rule=found.place,
            source=rule.source,
            low_bytes=(before.max_bytes or 0) + 1 if before else 0,
            high_bytes=here.max_bytes,
            gain=entry.gain,
            runner_up=entry.runner_up,
            digest=self.digest,
            params=entry.params,
            confidence=entry.confidence,
            ci_bytes=here.ci_bytes,
            low_ci_bytes=before.ci_bytes if before else None,
            match=str(self.fit) if rule.source == self.source else "",
            pinned_by=env.ALGORITHM.name if self.pinned.get(call.op) == entry.algorithm else "",
            passed=found.passed,
        )

    def decide(self, query: Query, facts: Facts = ALL_SERVE) -> Decision:
        """Find what runs a call; a ValueError where no rule has anything that can."""
        found = decide(self.rules, query, facts)
        if found is None:
            call = f"{query.op} of {query.num_bytes} B of {query.dtype} on {query.world} ranks"
            raise ValueError(f"plan {self.source} has no rule for {call}")
        return found

    def __str__(self) -> str:
        """Return the rules as a table."""
        lines = [f"plan {self.digest} from {self.source}"]
        for rule in self.rules:
            lines.append(f"rules[{rule.number}] {rule.keys}" + (f" of {rule.source}" * (rule.source != self.source)))
            for entry in rule.ranges:
                limit = "rest" if entry.max_bytes is None else f"≤ {size_text(entry.max_bytes)}"
                lines.append(f"  {limit:>14}  {entry.choice}")
            lines += [f"  {'fallback':>14}  {entry.choice}" for entry in rule.fallback]
        return "\n".join(lines)


def _rule_text(rule: Mapping[str, Any]) -> str:
    """Return a rule as it stands in a file: one line, or its keys and then a line for each range and fallback."""
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
