"""Tables: which rules to write for what was measured, what is alike, what serves others, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from commlib.collectives.spec import MAX_SMS
from commlib.plan import Plan
from commlib.tools.tune.case import PLAIN, Case, Option
from commlib.tools.tune.choose import BySize, Choice, Settings, choose, compared
from commlib.tools.tune.judge import judge
from commlib.tools.tune.rules import Table
from commlib.tools.tune.samples import Samples
from commlib.tools.tune.survey import incumbent

VENDORS = ("nccl_direct", "torch_direct")  # the calls that are somebody else's library
ALIKE, ALIKE_WORST = 0.01, 0.05  # one table serves two modes or types if it costs the other no more than this


class Tables:
    """What was measured for one number of ranks, and the rules that come of it on top of a plan in force.

    `by_mode`: graphs and eager calls are different things here, as on GPUs.
    """

    def __init__(self, plan: Plan, world: int, settings: Settings, by_mode: bool) -> None:
        self.plan, self.world, self.settings, self.by_mode = plan, world, settings, by_mode
        self.measured: dict[Case, tuple[Samples, Choice]] = {}
        self._serves_all: set[Case] = set()

    def add(self, case: Case, samples: Samples, serves_all: bool = False) -> None:
        """Take what was measured of a case; `serves_all`: a run before found that it serves the other mode too."""
        samples.sms = dict(_multiprocessors(case, samples, self.world))
        self.measured[case] = samples, choose(samples, self.settings, self.now(case))
        self._serves_all |= {case} if serves_all else set()

    def of(self, cases: Sequence[Case]) -> Iterator[Table]:
        """Yield the rules of one collective: what serves other modes and types as well as their own, serves them."""
        for placement in ("plain", "symmetric"):
            here = [case for case in cases if case.placement == placement and case in self.measured]
            if here:
                yield from self._of_placement(here)

    def _of_placement(self, here: Sequence[Case]) -> Iterator[Table]:
        first = here[0]
        other_modes = [case for case in here if case.dtype == first.dtype and case.mode != first.mode]
        alike = bool(other_modes) and all(self._serves(first, case) for case in other_modes)
        one_mode = alike or not self.by_mode or (not other_modes and first in self._serves_all)
        tables = [self._table(first, "*", "*" if one_mode else first.mode)]
        served: list[tuple[str, str]] = []
        for case in here[1:]:
            name = str(case.dtype).removeprefix("torch.") if case.dtype != first.dtype else "*"
            general = first if one_mode else replace(case, dtype=first.dtype)
            if (one_mode and name == "*") or (name != "*" and self._serves(general, case)):
                served.append((name, case.mode))
            else:
                tables.append(self._table(case, name, case.mode if self.by_mode else "*"))
        yield replace(tables[0], serves=tuple(served))
        yield from tables[1:]

    def _table(self, case: Case, dtype: str, mode: str) -> Table:
        samples, choice = self.measured[case]
        default, now = self._default(case, samples), self.now(case)
        verdict = judge(samples, None, default, self.settings, now)
        if verdict.slower:  # what the default does better it goes on doing
            kept = samples.with_only({size: default(size) for size in verdict.slower})
            choice = compared(choose(kept, self.settings, now), samples)
            verdict = judge(samples, choice.at, default, self.settings, now)
            self.measured[case] = samples, choice
        return Table(case, dtype, mode, samples, choice, verdict)

    def _serves(self, general: Case, case: Case) -> bool:
        """Whether one case's choice is as good for another."""
        if general not in self.measured:
            return False
        samples = self.measured[case][0]
        verdict = judge(samples, self.measured[general][1].at, lambda size: None, self.settings)
        spare = self.settings.spare if samples.sms else 0.0  # which another's knee may cost this one
        return verdict.regret <= ALIKE + spare and verdict.worst <= ALIKE_WORST + spare

    def keeps(self, table: Table) -> bool:
        """Whether the plan in force stays, also for the types and modes that the table serves."""
        return not any(self.measured[case][1].changes for case in (table.case, *table.served()))

    def now(self, case: Case) -> BySize:
        """Return what the plan in force runs, by size."""
        return lambda size: incumbent(self.plan, case, size, self.world)

    def on_plain(self, case: Case) -> BySize:
        """Return what runs on plain tensors, by size: what was chosen, else what the plan in force has."""
        plain = replace(case, placement="plain")
        return self.measured[plain][1].at if plain in self.measured else self.now(plain)

    def _default(self, case: Case, samples: Samples) -> BySize:
        """Return the vendor's own call by size, or the plan in force where there is no vendor."""
        names = {option.algorithm for option in samples.options}
        vendors = [Option(name) for name in VENDORS if name in names]
        return (lambda size: vendors[0]) if vendors else self.now(case)


def _multiprocessors(case: Case, samples: Samples, world: int) -> Iterator[tuple[int, dict[Option, int]]]:
    """Yield the sizes at which more and fewer were tried, with what each option takes there.

    Those are sizes of tiles and copy engines: smaller calls are over before a model misses its multiprocessors.
    """
    for size in samples.sizes:
        meant = {o: samples.plain.get(size) if o == PLAIN else o for o in samples.options}
        taken = {o: case.sms(means, size, world) if means else MAX_SMS for o, means in meant.items()}
        tried = [o for o in samples.times[size] if (means := meant[o]) and (o == PLAIN or case.is_for_large(means))]
        if len({taken[o] for o in tried}) > 1:
            yield size, taken


def by_op(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yield the cases of each collective."""
    for op in dict.fromkeys(case.op for case in cases):
        yield [case for case in cases if case.op == op]
