"""One run of `commlib tune` on one rank: time all options of a case in turns, choose, print, and write the plan."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from statistics import fmean, median
from types import SimpleNamespace

import torch

import commlib
from commlib import env
from commlib.collectives import Call
from commlib.collectives.reference import ordered
from commlib.counts import counted
from commlib.plan import Plan
from commlib.plan.plan import HEAD
from commlib.plan.search import user_path
from commlib.tools.report.document import write
from commlib.tools.report.formats import about, json_text, percent_text, size_text
from commlib.tools.report.run import Progress, printed, until_it_ends
from commlib.tools.timing import Candidate, Protocol, fingerprint, measure, pinned, plain_on, twin_of
from commlib.tools.tune.case import PLAIN, SAMPLES, Case, Option, Samples, cases_of, read_samples
from commlib.tools.tune.choose import Settings, views
from commlib.tools.tune.rules import Setup, Table

PER_OP_S, USED = 60.0, 0.9  # from the start to the plan; the first blocks of large sizes may take more than their share
HIGH_CPU, HIGH_GPU = 64 << 20, 256 << 20
CHECK_BYTES, CHECK_EVERY = 4 << 20, 8  # values are compared at every eighth size up to here, and where an option is new
TIMED = Protocol(block_s=200e-6, blocks=(5, 100), race=1.25, slow_s=4.0)
ROOTED = replace(TIMED, block_s=None)  # a root runs ahead: how fast such calls are shows in long blocks


class Tuning:
    """A run on live ranks, with the command's options: every rank comes to the same choice; rank 0 prints."""

    def __init__(self, comm: commlib.Communicator, order: SimpleNamespace, started: float) -> None:
        self.comm, self.order, self.started = comm, order, started
        gpu = comm.device.type == "cuda"
        largest = HIGH_GPU if gpu else HIGH_CPU
        self.high = order.high or largest
        dtypes = order.dtypes or ((torch.bfloat16, torch.float32) if gpu else (torch.float32, torch.bfloat16))
        modes = order.modes or (("graph", "eager") if gpu else ("eager",))
        if not gpu and "graph" in modes:
            raise ValueError(f"--mode graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        machine = {"backend": comm.backend, **fingerprint(comm.backend)}
        settings = Settings(order.margin, order.spare, order.fresh)
        until = self.high if self.high < largest else None
        self.setup = Setup(comm.plan, comm.size, machine, gpu, settings, until)
        self.seconds = order.seconds or PER_OP_S * len(order.ops)
        self.device = str(machine["device"])
        self.path = order.output or user_path(comm.backend, self.device, comm.size)
        self.before = self.path.read_text(encoding="utf-8") if self.path.is_file() else None
        self.cases = list(cases_of(order.ops, dtypes, modes, comm.backend, comm.size))
        self.tables, self.changed = dict[Case, Table](), list[Table]()
        self._progress = Progress(len(self.cases), get_terminal_size().columns, comm.rank == 0 and not order.json)

    def say(self, *lines: str) -> None:
        """Print on rank 0, over the progress line if that stands there."""
        if self.comm.rank == 0 and not self.order.json:
            self._progress.clear()
            printed(lines)

    def run(self) -> None:
        """Measure all cases; after each one print what was chosen, and write the plan if that changes it."""
        comm, order = self.comm, self.order
        self.say(
            f"# commlib {commlib.__version__} tune: {comm.size} ranks on {comm.backend}, {self.device}",
            f"# {counted(len(self.cases), 'table')} of {size_text(order.low)} to {size_text(self.high)} in about "
            f"{self.seconds:g} s; plan in force {comm.plan.digest} from {comm.plan.source}",
        )
        self._twin = twin_of(comm)  # where plans are switched, so the ranks' own exchanges are left alone
        for done, case in enumerate(self.cases):
            share_s = max(self.started + USED * self.seconds - time.monotonic(), 1.0) / (len(self.cases) - done)
            samples = self._samples(case, time.monotonic() + share_s)
            if samples.sizes:
                self.tables[case] = table = self.setup.table(case, self.cases, samples)
                self.say(*table_lines(table, self.setup))
                if table.changes or order.fresh:
                    self.setup = replace(self.setup, base=self.setup.plan(table, str(self.path)))
                    self.changed.append(table)
                    self._save()
        self._twin.close()

    def _samples(self, case: Case, deadline: float) -> Samples:
        """Time what is offered, the roughest grid of sizes first, without what raises errors or is wrong."""
        counts, plain = case.counts(self.comm.size, self.order.low, self.high), replace(case, placement="plain")
        samples, left_out, seen = Samples(), set[Option](), set[Option]()
        rough_first = dict.fromkeys(size for step in (8, 4, 2, 1) for size in list(counts)[::-step][::-1])
        for done, size in enumerate(rough_first):
            left_s = self.comm.broadcast_object(deadline - time.monotonic(), 0)
            if left_s < 0 and done > len(counts) // 8:
                break
            meant = {option: option for option in self._offered(case, size)}
            if case.placement == "symmetric" and (option := self.setup.incumbent(plain, size)):
                meant[PLAIN] = samples.plain[size] = option
            meant = {option: means for option, means in meant.items() if option not in left_out}
            check = (done % CHECK_EVERY == 0 and size <= CHECK_BYTES) or not seen.issuperset(meant)
            seen |= set(meant)
            timed, budget_s = ROOTED if case.collective.rooted else TIMED, max(left_s, 0.0) / (len(counts) - done)
            protocol = replace(timed, budget_s=budget_s, graph=case.mode == "graph", check=check)
            call = Call(self.comm.rank, self.comm.size, counts[size], case.dtype)
            tried = [self._candidate(case, option) for option in meant.values()]
            results = dict(zip(meant, measure(self.comm, case.collective, call, ordered, tried, protocol), strict=True))
            samples.times[size] = {option: tuple(result.times_s) for option, result in results.items()}
            for option in (option for option, result in results.items() if result.skipped or result.wrong):
                wrong = f"{counted(results[option].wrong or 0, 'wrong value')} at {counted(size, 'byte')}"
                self.say(f"# left out: {option}: {results[option].skipped or wrong}")
                left_out.add(option)
                for of_size in samples.times.values():
                    of_size.pop(option, None)
            self._progress.show(len(self.tables), f"{case}: {done + 1} of {counted(len(counts), 'size')}")
        return samples

    def _offered(self, case: Case, size: int) -> list[Option]:
        """Return what is tried at a size: every algorithm's variants, and what the plan in force has there."""
        algorithms, wanted = case.algorithms(self.comm.backend, self.comm.size), self.order.algorithms
        names = [a.name for a in algorithms if not wanted or a.name in wanted]
        tried = [Option.of(a.name, params) for a in algorithms for params in a.variants(size)]
        tried += [now] if (now := self.setup.incumbent(case, size)) else []
        return [option for option in dict.fromkeys(tried) if option.algorithm in names]

    def _candidate(self, case: Case, option: Option) -> Candidate:
        """Return the public call under a plan that leaves no choice but for calls that it is composed of."""
        algorithm = case.collective.algorithm(option.algorithm)
        plain = next(a.name for a in case.collective.algorithms if a.backend == self.comm.backend)
        # A kernel makes no other calls: a plan without their rules is switched to in a tenth of the time.
        base = None if algorithm.kernel and not algorithm.composed else self.comm.plan
        below = Plan.only({case.op: plain}, base=base, params={})  # a symmetric rule is no plan
        plan = Plan.only({case.op: option.algorithm}, base=below, params=dict(option.params))
        way = pinned(self._twin, case.collective, algorithm, plan)
        empty = self._twin.empty if case.placement == "symmetric" else plain_on(self.comm.device)
        return replace(way, label=str(option), in_place=case.in_place, empty=empty)

    def _save(self) -> None:
        """Write the plan with its samples; the one that was there before this run is next to it."""
        if self.comm.rank or self.order.dry_run:
            return
        source = Path(self.comm.plan.source).with_suffix(SAMPLES)
        cases = read_samples(source)[0]["cases"] if source.is_file() else {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.before is not None:
            write(Path(f"{self.path}.before"), self.before)
        write(self.path, self.setup.base.file_text)
        if self.path.is_file():  # and no /dev/null
            write(self.path.with_suffix(SAMPLES), json_text(self.setup.samples(self.changed, cases)))

    def finish(self, ended: str) -> None:
        """Say where the plan is and what is missing, print the document."""
        order, plan, tables = self.order, self.setup.base, list(self.tables.values())
        rest = ", ".join(str(case) for case in self.cases if case not in self.tables)
        self.say("#", *([f"# not tuned: {rest}"] if ended and rest else []))
        if plan is self.comm.plan:
            self.say("# no plan is written: the one in force is slower nowhere by the margin (--fresh ignores it)")
        elif order.dry_run:
            self.say(f"# dry run: plan {plan.digest} was not written to {self.path}")
        else:
            back = ["rm", str(self.path)] if self.before is None else ["mv", f"{self.path}.before", str(self.path)]
            taken = "" if order.output else "; init() takes it from now on"
            self.say(f"# plan {plan.digest} is in {self.path}{taken}", f"# to go back: {shlex.join(back)}")
        if order.json and self.comm.rank == 0:
            printed([json_text({**self.setup.samples(tables, {}), "plan": plan.document})])


def table_lines(table: Table, setup: Setup) -> Iterator[str]:
    """Yield what was chosen in a case by size, what that costs, and what it changes."""
    costs = [(of := table.samples.medians(size))[o] / min(of.values()) - 1 for size, o in table.choice.items()]
    types = f"{counted(len(costs), 'size')}, for {table.dtype.replace('*', 'all types')}"
    yield from ("#", f"# {table.case}: {types}", f"# {'up to':>6}   {'gain over':<26} runs")
    entries = setup.rule(table).ranges
    for entry in entries:
        until = "rest" if entry.max_bytes is None else about(entry.max_bytes)
        gain = "" if entry.gain is None else f"{percent_text(entry.gain)}%"
        yield f"{until:>8}  {gain:>6} {entry.runner_up or '':<19} {entry.choice}"
    if entries[-1].max_bytes is not None:
        yield "# larger calls, which were not measured: as in the plan in force"
    yield f"# {percent_text(fmean(costs))}% slower than the fastest, at most {percent_text(max(costs))}%"
    for sizes, now, option in table.changes:
        ratios = [of[now] / of[option] for size in sizes if now and now in (of := table.samples.medians(size))]
        gain = f", {percent_text(fmean(ratios) - 1)}% faster" if ratios else ""
        where = " to ".join(dict.fromkeys((about(sizes[0]), about(sizes[-1]))))
        yield f"# {where}: {option} instead of {now or 'no rule'}{gain}"
    if not table.changes:
        yield "# no change to the plan in force"
    halves = [views(table.samples.times[size][option])[:2] for size, option in table.choice.items()]
    if (noise := median(abs(first / second - 1) for first, second in halves)) > 0.05:
        yield f"# noise: the halves of the blocks differ by {percent_text(noise)}%; stop other work, or raise --time"


def buffer_bytes(order: SimpleNamespace, ranks: int = 0) -> int:
    """Return what a rank allocates: plain and symmetric buffers, and the input of so many ranks; without, symmetric."""
    high = int(order.high or (HIGH_GPU if torch.cuda.is_available() else HIGH_CPU))
    arena = TIMED.buffers * 2 * (high + (1 << 16))
    return 2 * arena + (ranks + 1) * high if ranks else arena


def main(order: SimpleNamespace) -> int:
    """Run on the ranks there are."""
    started = time.monotonic()
    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, buffer_bytes(order))
    with commlib.init(backend=order.backend, max_bytes=room, plan=order.plan or "auto") as comm:
        if comm.size == 1:
            raise ValueError("tune needs two ranks or more; start them with -n N")
        tuning = Tuning(comm, order, started)
        return until_it_ends(tuning.run, tuning.finish)


def rebuild(source: Path, order: SimpleNamespace) -> int:
    """Make the rules again of a file of samples, without a measurement: on top of --plan, or of nothing."""
    document, by_world = read_samples(source)
    machine, settings = document["fingerprint"], Settings(order.margin, order.spare, order.fresh)
    path = order.output or source.with_name(source.name.replace(".samples.json", ".json"))
    plan = Plan.load(order.plan) if order.plan else Plan({**HEAD, "rules": []}, "nothing")
    for world, cases in sorted(by_world.items()):
        for case, samples in cases.items():
            setup = Setup(plan, world, machine, machine["backend"].startswith("nccl"), settings)
            table = setup.table(case, list(cases), samples)
            printed(list(table_lines(table, setup)))
            plan = setup.plan(table, str(path))
    if not order.dry_run:
        write(path, plan.file_text)
        printed([f"# plan {plan.digest} is in {path}"])
    return 0
