"""Survey: time every option of a case at every size, all of them in turns, on live ranks.

right at three sizes? | at each size: a few blocks of each | who is far behind is left out | the others to the end
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from commlib.collectives.reference import ordered
from commlib.counts import counted
from commlib.plan import Plan
from commlib.tools.timing import Candidate, Measurement, Protocol, measure, pinned, plain_on, twin_of
from commlib.tools.tune.case import PLAIN, Case, Option
from commlib.tools.tune.samples import Samples, Store

if TYPE_CHECKING:
    from commlib.communicator import Communicator

GATE_BYTES = 4 << 20  # values are compared up to here: beyond, the same code only goes on for longer
HOPELESS = 3.0  # times the best's, and growing over two sizes: not tried at the next one
GATE = Protocol(blocks=(1, 1), budget_s=0.0, iterations=1, warmup=0)
TIMED = Protocol(block_s=200e-6, blocks=(5, 100), check=False, race=1.25, slow_s=4.0)


class Survey:
    """Measures cases at sizes from the lowest to the highest, with some algorithms or all (none is named).

    Plans are switched on a twin, so that the ranks' own exchanges are left alone.
    """

    def __init__(
        self,
        comm: Communicator,
        store: Store,
        sizes: tuple[int, int],
        algorithms: Sequence[str],
        seed: int,
        progress: Callable[[str], None],
    ) -> None:
        self.comm, self._store, self._progress = comm, store, progress
        self._sizes, self._algorithms, self._seed = sizes, algorithms, seed
        self._twin = twin_of(comm)

    def close(self) -> None:
        """Let the twin go."""
        self._twin.close()

    def run(self, case: Case, seconds: float, plain: Callable[[int], Option | None] | None) -> Samples:
        """Return the samples of one case; symmetric ones also time what runs on plain tensors, by size."""
        deadline, hopeless = time.monotonic() + seconds, set[Option]()
        counts = case.counts(self.comm.size, *self._sizes)
        found = Samples(plain={size: option for size in counts if plain and (option := plain(size))})
        offered = {size: self._offered(case, size, found) for size in counts}
        found.left_out = self._gate(case, counts, offered)
        for done, (size, count) in enumerate(counts.items()):
            known = self.comm.broadcast_object(self._store.find(str(case), size) or {}, 0)
            if not known:
                options = [o for o in offered[size] if o not in found.left_out and o not in hopeless]
                left_s = self.comm.broadcast_object(deadline - time.monotonic(), 0)
                share_s = max(left_s, 0.0) / (len(counts) - done)
                protocol = replace(TIMED, budget_s=share_s, seed=self._seed, graph=case.mode == "graph")
                meant = {option: found.plain[size] if option == PLAIN else option for option in options}
                results = self._measure(case, count, meant, protocol)
                known = {option: tuple(result.times_s) for option, result in results.items() if result.times_s}
                self._store.add(str(case), size, known)
            if known:
                found.times[size] = known
                hopeless |= _hopeless(found)
            self._progress(f"{case}: {done + 1} of {counted(len(counts), 'size')}")
        return found

    def _offered(self, case: Case, size: int, found: Samples) -> list[Option]:
        """Return what is tried at a size: every algorithm's variants, and what the plan in force has there."""
        algorithms = case.algorithms(self.comm.backend, self.comm.size)
        tried = [Option.of(a.name, params) for a in algorithms for params in a.variants(size)]
        now = incumbent(self.comm.plan, case, size, self.comm.size)
        if now is not None and now.algorithm in {a.name for a in algorithms}:
            tried.append(now)
        tried = [o for o in dict.fromkeys(tried) if not self._algorithms or o.algorithm in self._algorithms]
        return tried + ([PLAIN] if size in found.plain else [])

    def _gate(
        self, case: Case, counts: Mapping[int, int], offered: Mapping[int, Sequence[Option]]
    ) -> dict[Option, str]:
        """Return who is not exactly right, or refuses, at the first, a middle and the last size it is offered at."""
        due: dict[int, list[Option]] = {}
        for option in dict.fromkeys(o for options in offered.values() for o in options if o != PLAIN):
            sizes = [s for s, options in offered.items() if option in options and s <= GATE_BYTES]
            sizes = sizes or [s for s, options in offered.items() if option in options][:1]
            for size in {sizes[0], sizes[len(sizes) // 2], sizes[-1]}:
                due.setdefault(size, []).append(option)
        failed: dict[Option, str] = {}
        for size, options in sorted(due.items()):
            self._progress(f"{case}: comparing every value at {counted(size, 'byte')}")
            for option, result in self._measure(case, counts[size], {o: o for o in options}, GATE).items():
                if result.skipped:
                    failed[option] = result.skipped
                elif result.wrong:
                    failed[option] = f"{counted(result.wrong, 'wrong value')} at {counted(size, 'byte')}"
        return failed

    def _measure(
        self, case: Case, count: int, options: Mapping[Option, Option], protocol: Protocol
    ) -> dict[Option, Measurement]:
        call = case.call(self.comm.rank, self.comm.size, count)
        candidates = [self._candidate(case, option) for option in options.values()]
        results = measure(self.comm, case.collective, call, ordered, candidates, protocol)
        return dict(zip(options, results, strict=True))

    def _candidate(self, case: Case, option: Option) -> Candidate:
        """Return the public call under a plan that leaves no choice but for calls that it is composed of."""
        algorithm = case.collective.algorithm(option.algorithm)
        plain = next(a.name for a in case.collective.algorithms if a.backend == self.comm.backend)
        # A kernel makes no other calls: a plan without their rules is switched to in a tenth of the time.
        base = None if algorithm.kernel and not algorithm.composed else self.comm.plan
        below = Plan.only({case.op: plain}, base=base, params={})  # a symmetric rule is no plan
        plan = Plan.only({case.op: option.algorithm}, base=below, params=dict(option.params))
        prepare, enter = pinned(self._twin, case.collective, algorithm, plan)
        empty = self._twin.empty if case.placement == "symmetric" else plain_on(self.comm.device)
        return Candidate(str(option), prepare, case.in_place, empty, enter)


def incumbent(plan: Plan, case: Case, num_bytes: int, world: int) -> Option | None:
    """Return what a plan runs there, PLAIN where its plain rules decide, or None where it has no rule."""
    dtype = str(case.dtype).removeprefix("torch.")
    try:
        why = plan.explain(case.op, num_bytes, dtype, world=world, placement=case.placement, mode=case.mode)
    except ValueError:
        return None
    if case.collective.algorithm(why.algorithm).placement != case.placement:
        return PLAIN
    return Option.of(why.algorithm, why.params)


def _hopeless(found: Samples) -> set[Option]:
    """Return who was far behind at the last two sizes, and further at the last."""
    last = [found.times[size] for size in found.sizes[-2:]]
    both = set(last[0]) & set(last[-1]) if len(last) > 1 else set()
    best = [min(median(blocks) for blocks in times.values()) for times in last]

    def ratios(option: Option) -> list[float]:
        return [median(times[option]) / of_best for times, of_best in zip(last, best, strict=True)]

    return {option for option in both if HOPELESS <= ratios(option)[0] <= ratios(option)[1]}
