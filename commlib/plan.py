"""Plan: which algorithm runs at which size, as data that `commlib tune` writes and the communicator reads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from commlib import env
from commlib.errors import PlanMismatch

SCHEMA, VERSION = "commlib.plan", 1
PLACEMENTS, MODES = ("plain", "symmetric"), ("eager", "graph")
MAX_WORLD = 1 << 20


@dataclass(frozen=True)
class Range:
    """Sizes up to and including `max_bytes` (None: all that are left) and what runs there."""

    max_bytes: int | None
    algorithm: str
    params: Mapping[str, int] = field(default_factory=dict)
    ci_bytes: tuple[int, int] | None = None
    gain: float | None = None
    runner_up: str | None = None


@dataclass(frozen=True)
class Rule:
    """The ranges of one operation for the keys it names; "*" stands for every dtype or reduction."""

    op: str
    ranges: tuple[Range, ...]
    dtype: str = "*"
    redop: str = "*"
    placement: str = "plain"
    mode: str = "*"
    world: tuple[int, int] = (1, MAX_WORLD)
    where: str = "plan"

    def covers(self, dtype: str, redop: str, placement: str, mode: str, world: int) -> bool:
        """Whether the rule speaks of such a call."""
        keys = ((self.dtype, dtype), (self.redop, redop), (self.mode, mode))
        fits = all(own in ("*", wanted) for own, wanted in keys)
        return fits and self.placement == placement and self.world[0] <= world <= self.world[1]


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

    def __str__(self) -> str:
        """Return one sentence a person can act on."""
        upper = "every larger size" if self.high_bytes is None else f"{self.high_bytes} B"
        text = f"{self.op} of {self.num_bytes} B runs {self.algorithm}: {self.rule} of {self.source} "
        text += f"covers {self.low_bytes} B to {upper}"
        if self.gain is not None and self.runner_up:
            text += f"; measured {self.gain:.0%} faster than {self.runner_up}"
        return f"{text} (plan {self.digest})"


class Plan:
    """An immutable set of rules; the first rule that covers a call and has a range for its size decides."""

    def __init__(self, document: Mapping[str, Any], source: str) -> None:
        self.document = dict(document)
        self.source = source
        self.rules = tuple(_read_rules(self.document, source))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; every fault is a ValueError that names the file and the place in it."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read plan {path}: {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Plan:
        """Read a plan from its text."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"plan {source}, line {error.lineno}: {error.msg}") from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f'plan {source}: not a plan file (its "schema" is not "{SCHEMA}")')
        if document.get("version") != VERSION:
            found = document.get("version")
            raise ValueError(f"plan {source}: version {found!r}, but this commlib reads version {VERSION}")
        return cls(document, source)

    @classmethod
    def auto(cls, backend: str) -> Plan:
        """Return the plan that applies here: COMMLIB_PLAN, else the shipped one of the backend."""
        path = env.PLAN.get()
        if path:
            return cls.load(path)
        shipped = resources.files("commlib") / "plans" / f"{backend}.json"
        return cls.parse(shipped.read_text(encoding="utf-8"), f"plans/{backend}.json")

    @classmethod
    def only(
        cls,
        algorithms: Mapping[str, str],
        *,
        base: Plan | None = None,
        params: Mapping[str, int] | None = None,
    ) -> Plan:
        """Pin collectives to algorithms at every size, on top of `base`: for tests, bench and bisecting."""
        pinned = [
            {"op": op, "placement": placement, "ranges": [_range(None, name, params)]}
            for op, name in algorithms.items()
            for placement in PLACEMENTS
            # A symmetric algorithm has no say over plain tensors: the base plan's choice stands there.
            if placement == "symmetric" or not name.endswith("_symmetric")
        ]
        return cls._on_top(pinned, base, f"pinned {', '.join(f'{k}:{v}' for k, v in algorithms.items())}")

    @classmethod
    def threshold(
        cls, max_bytes: int, *, below: str, above: str, op: str = "all_reduce", base: Plan | None = None
    ) -> Plan:
        """Express the classic single threshold: `below` up to max_bytes, `above` beyond."""
        ranges = [_range(max_bytes, below), _range(None, above)]
        return cls._on_top([{"op": op, "ranges": ranges}], base, f"threshold of {max_bytes} B")

    @classmethod
    def _on_top(cls, rules: list[dict[str, Any]], base: Plan | None, source: str) -> Plan:
        below: dict[str, Any] = base.document if base else {"schema": SCHEMA, "version": VERSION, "rules": []}
        return cls({**below, "rules": rules + list(below["rules"])}, source)

    @property
    def text(self) -> str:
        """The canonical text: what rank 0 sends to everyone, and what the digest is taken over."""
        return json.dumps(self.document, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """Twelve hex digits that are equal exactly where plans are."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def rules_for(self, world: int, mode: str) -> Iterator[Rule]:
        """Yield the rules that speak of such a world, in order."""
        for rule in self.rules:
            if rule.world[0] <= world <= rule.world[1] and rule.mode in ("*", mode):
                yield rule

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
        rule, at = self._decide(op, num_bytes, (dtype, redop, placement, mode, world))
        low = (rule.ranges[at - 1].max_bytes or 0) + 1 if at else 0
        entry = rule.ranges[at]
        number = rule.where.rpartition(" ")[2]
        return Explanation(
            op=op,
            num_bytes=num_bytes,
            algorithm=entry.algorithm,
            rule=f"{number}[{at}]",
            source=self.source,
            low_bytes=low,
            high_bytes=entry.max_bytes,
            gain=entry.gain,
            runner_up=entry.runner_up,
            digest=self.digest,
        )

    def _decide(self, op: str, num_bytes: int, keys: tuple[str, str, str, str, int]) -> tuple[Rule, int]:
        """Find the range. Symmetric rules only say where zero-copy pays; elsewhere the plain choice stands."""
        dtype, redop, placement, mode, world = keys
        for rule in self.rules:
            if rule.op != op or not rule.covers(dtype, redop, placement, mode, world):
                continue
            for at, entry in enumerate(rule.ranges):
                if entry.max_bytes is None or num_bytes <= entry.max_bytes:
                    if placement == "symmetric" and not entry.algorithm.endswith("_symmetric"):
                        return self._decide(op, num_bytes, (dtype, redop, "plain", mode, world))
                    return rule, at
            break
        if placement == "symmetric":
            return self._decide(op, num_bytes, (dtype, redop, "plain", mode, world))
        raise ValueError(f"plan {self.source} has no rule for {op} of {num_bytes} B of {dtype} on {world} ranks")

    def agree(self, others: list[str]) -> None:
        """Raise PlanMismatch unless every rank's digest is this plan's."""
        if any(digest != self.digest for digest in others):
            table = ", ".join(f"rank {r}: {d}" for r, d in enumerate(others))
            raise PlanMismatch(f"ranks were given different plans ({table}); pass the same plan= on every rank")

    def __str__(self) -> str:
        """Return the rules as a table."""
        lines = [f"plan {self.digest} from {self.source}"]
        for rule in self.rules:
            world = f"{rule.world[0]}-{'' if rule.world[1] == MAX_WORLD else rule.world[1]}"
            keys = f"{rule.op} {rule.placement} dtype={rule.dtype} redop={rule.redop} world={world}"
            lines.append(keys)
            for entry in rule.ranges:
                limit = "rest" if entry.max_bytes is None else f"≤ {entry.max_bytes} B"
                params = " ".join(f"{k}={v}" for k, v in entry.params.items())
                lines.append(f"  {limit:>14}  {entry.algorithm} {params}".rstrip())
        return "\n".join(lines)


def _range(max_bytes: int | None, algorithm: str, params: Mapping[str, int] | None = None) -> dict[str, Any]:
    return {"max_bytes": max_bytes, "algorithm": algorithm, "params": dict(params or {})}


def _read_rules(document: Mapping[str, Any], source: str) -> Iterator[Rule]:
    rules = document.get("rules")
    if not isinstance(rules, list):
        raise ValueError(f'plan {source}: "rules" is not a list')
    for number, rule in enumerate(rules):
        where = f"plan {source}, rules[{number}]"
        if not isinstance(rule, dict) or not isinstance(rule.get("op"), str):
            raise ValueError(f'{where}: needs an "op"')
        low, high = rule.get("world") or (1, None)
        placement, mode = rule.get("placement", "plain"), rule.get("mode", "*")
        if placement not in PLACEMENTS or mode not in ("*", *MODES):
            raise ValueError(f"{where}: placement {placement!r} or mode {mode!r} is not known")
        yield Rule(
            op=rule["op"],
            ranges=tuple(_read_ranges(rule.get("ranges"), where)),
            dtype=rule.get("dtype", "*"),
            redop=rule.get("redop", "*"),
            placement=placement,
            mode=mode,
            world=(low, MAX_WORLD if high is None else high),
            where=where,
        )


def _read_ranges(ranges: object, where: str) -> Iterator[Range]:
    if not isinstance(ranges, list) or not ranges:
        raise ValueError(f'{where}: "ranges" is empty or not a list')
    last = -1
    for number, entry in enumerate(ranges):
        place = f"{where}.ranges[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("algorithm"), str):
            raise ValueError(f'{place}: needs an "algorithm"')
        limit = entry.get("max_bytes")
        if limit is None and number + 1 < len(ranges):
            raise ValueError(f"{place}: only the last range may have no max_bytes")
        if limit is not None and (not isinstance(limit, int) or limit <= last):
            raise ValueError(f"{place}: max_bytes {limit!r} is not a number above {last}")
        last = limit if limit is not None else last
        interval = entry.get("ci_bytes")
        yield Range(
            max_bytes=limit,
            algorithm=entry["algorithm"],
            params=entry.get("params") or {},
            ci_bytes=tuple(interval) if interval else None,
            gain=entry.get("gain"),
            runner_up=entry.get("runner_up"),
        )
