"""One run of `commlib tune` on one rank: survey, choose, judge, and let rank 0 print and write."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

import commlib
from commlib import env
from commlib.cli.tune.table import closing, opening, table_lines
from commlib.plan import Plan, user_path
from commlib.report.table import fold
from commlib.timing import Protocol, fingerprint
from commlib.tuner import Case, Effort, Option, Settings, Store, Survey, cases_of, choose, document, judge
from commlib.tuner.judge import keeps
from commlib.tuner.rules import Table, vendor_of
from commlib.tuner.survey import incumbent

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.tuner import Choice, Samples

PER_OP_S = 60.0  # from the start of the ranks to the plan
USED = 0.9  # of the time: the least blocks of large sizes may take longer than their share
HIGH_CPU, HIGH_GPU = 64 << 20, 256 << 20
PAIRS = Protocol.buffers
ALIKE, ALIKE_WORST = 0.01, 0.05  # one table serves two modes or types if it costs the other no more than this


@dataclass(frozen=True)
class Order:
    """What was asked for, the same on every rank; empty or None: what suits the device."""

    ops: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    modes: tuple[str, ...]
    algorithms: tuple[str, ...]
    low: int
    high: int | None
    seconds: float | None
    penalty: float
    seed: int
    backend: str
    plan: str | None
    fresh: bool
    resume: bool
    dry_run: bool
    force: bool
    plot: Path | None
    output: Path | None


class Tuning:
    """A run on live ranks: every rank has the same samples and comes to the same choice; rank 0 speaks."""

    def __init__(self, comm: Communicator, order: Order, started: float) -> None:
        self.comm, self._started = comm, started
        gpu = comm.device.type == "cuda"
        wide, narrow = torch.float32, torch.bfloat16
        self.order = replace(
            order,
            dtypes=order.dtypes or ((narrow, wide) if gpu else (wide, narrow)),
            modes=order.modes or (("graph", "eager") if gpu else ("eager",)),
            high=order.high or (HIGH_GPU if gpu else HIGH_CPU),
        )
        if not gpu and "graph" in self.order.modes:
            raise click.UsageError(f"--mode graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        self.settings = Settings(penalty=order.penalty, seed=order.seed)
        self.machine = {"backend": comm.backend, **fingerprint(comm.backend)}
        self.path = order.output or user_path(comm.backend, str(self.machine["device"]), comm.size)
        self.width = shutil.get_terminal_size().columns
        self.cases = list(cases_of(self.order.ops, self.order.dtypes, self.order.modes, comm.backend, comm.size))
        self.measured: dict[Case, tuple[Samples, Choice]] = {}

    def say(self, *lines: str) -> None:
        """Print on rank 0, over the progress line if that stands there."""
        if self.comm.rank == 0:
            self.progress("")
            for line in lines:  # a path is not broken: it is there to be copied
                for piece in [line] if "/" in line else fold([line], self.width):
                    click.echo(piece)

    def progress(self, text: str) -> None:
        """Show where the run is, to a person only."""
        if self.comm.rank == 0 and sys.stderr.isatty():
            click.echo(f"\r\033[K{text[: self.width - 1]}", err=True, nl=False)

    def run(self) -> int:
        """Measure all cases, print what was chosen, write the plan; return the exit code."""
        if not self.cases:
            self.say(f"# nothing to choose: {', '.join(self.order.ops)} on {self.comm.backend} has one way each")
            return 0
        self.say(*opening(self.comm, self.order, self.machine, len(self.cases)))
        tables, refused = [], []
        survey = Survey(self.comm, self._store(), self.progress)
        for cases in _by_op(self.cases):
            for case in cases:
                self._survey(survey, case)
            for table in self._tables(cases):
                kept = not self.order.fresh and self.keeps(table)
                self.say(*table_lines(table, self.width, kept))
                refused += [table] if table.verdict.slower else []
                tables += [] if kept else [table]
        survey.close()
        return self._finish(tables, refused)

    def _survey(self, survey: Survey, case: Case) -> None:
        total_s = USED * (self.order.seconds or PER_OP_S * len(self.order.ops))
        left = len(self.cases) - self.cases.index(case)
        share_s = self.comm.broadcast_object(max(self._started + total_s - time.monotonic(), 1.0) / left, 0)
        assert self.order.high is not None
        effort = Effort(self.order.low, self.order.high, share_s, self.order.algorithms, self.order.seed)
        plain = None
        if case.placement == "symmetric":
            on_plain = replace(case, placement="plain")
            at = self.measured[on_plain][1].at if on_plain in self.measured else self._now(on_plain)
            sizes = case.counts(self.comm.size, effort.low, effort.high)
            plain = {size: option for size in sizes if (option := at(size)) is not None}
        samples = survey.run(case, effort, plain)
        for option, why in samples.left_out.items():
            self.say(f"# left out: {option}: {why}")
        if samples.times:
            self.measured[case] = samples, choose(samples, self.settings)

    def _tables(self, cases: list[Case]) -> Iterator[Table]:
        """Yield the rules to write: what serves other modes and types as well as their own does, serves them."""
        for placement in ("plain", "symmetric"):
            here = [case for case in cases if case.placement == placement and case in self.measured]
            if not here:
                continue
            first = here[0]
            other_modes = [case for case in here if case.dtype == first.dtype and case.mode != first.mode]
            alike = bool(other_modes) and all(self._serves(first, case) for case in other_modes)
            one_mode = alike or self.comm.device.type != "cuda"
            tables = [self._table(first, "*", "*" if one_mode else first.mode)]
            served: list[tuple[str, str]] = []
            for case in here[1:]:
                name = str(case.dtype).removeprefix("torch.") if case.dtype != first.dtype else "*"
                general = first if one_mode else replace(case, dtype=first.dtype)
                if (one_mode and name == "*") or (name != "*" and self._serves(general, case)):
                    served.append((name, case.mode))
                else:
                    tables.append(self._table(case, name, case.mode if self.comm.device.type == "cuda" else "*"))
            yield replace(tables[0], serves=tuple(served))
            yield from tables[1:]

    def _table(self, case: Case, dtype: str, mode: str) -> Table:
        samples, choice = self.measured[case]
        default = self._default(case, samples)
        verdict = judge(samples, None, default, self.settings)
        if verdict.slower:  # what the default does better it goes on doing
            choice = choose(samples.with_only({size: default(size) for size in verdict.slower}), self.settings)
            verdict = judge(samples, choice.at, default, self.settings)
            self.measured[case] = samples, choice
        return Table(case, dtype, mode, samples, choice, verdict)

    def _serves(self, general: Case, case: Case) -> bool:
        """Whether one case's choice is as good for another."""
        if general not in self.measured:
            return False
        samples = self.measured[case][0]
        verdict = judge(samples, self.measured[general][1].at, lambda size: None, self.settings)
        return verdict.regret <= ALIKE and verdict.worst <= ALIKE_WORST

    def keeps(self, table: Table) -> bool:
        """Whether the plan in force is as good, also for the types and modes that the table serves."""
        cases = [table.case, *table.served()]
        return all(keeps(self.measured[case][0], self._now(case), table.choice) for case in cases)

    def _now(self, case: Case) -> Callable[[int], Option | None]:
        """Return what the plan in force runs, by size."""
        return lambda size: incumbent(self.comm.plan, case, size, self.comm.size)

    def _default(self, case: Case, samples: Samples) -> Callable[[int], Option | None]:
        """Return the vendor's own call by size, or the plan in force where there is no vendor."""
        vendor = vendor_of(case, samples)
        return self._now(case) if vendor is None else lambda size: Option(vendor)

    def _store(self) -> Store:
        order = self.order
        asked = {"low": order.low, "high": order.high, "algorithms": order.algorithms, "seed": order.seed}
        conditions = {"machine": self.machine, "ranks": self.comm.size, "plan": self.comm.plan.digest, **asked}
        path = None if self.comm.rank != 0 or order.dry_run else self.path.with_suffix(".samples.jsonl")
        return Store(path, conditions, order.resume)

    def _finish(self, tables: list[Table], refused: list[Table]) -> int:
        base = self.comm.plan
        made = document(tables, base, self.comm.size, self.machine, self.settings)
        plan = Plan.parse(json.dumps(made), str(self.path))
        self.say(*closing(self, tables, refused, plan, time.monotonic() - self._started))
        if self.order.plot is not None and self.comm.rank == 0:
            self._plot()
        if refused and not self.order.force:
            return 1
        if self.comm.rank == 0 and tables and not self.order.dry_run:
            write(self.path, plan)
        return 0

    def _plot(self) -> None:
        from commlib.cli.tune.plot import plot

        assert self.order.plot is not None
        try:
            plot({case: found for case, found in self.measured.items()}, self.order.plot)
            self.say(f"# curves: {self.order.plot}")
        except commlib.Unsupported as error:
            self.say(f"# no plot: {error}")


def main(order: Order, command: str) -> int:
    """Run on the ranks there are; Ctrl-C leaves the samples for --resume."""
    plan, started = order.plan or "auto", time.monotonic()
    high = order.high or (HIGH_GPU if torch.cuda.is_available() else HIGH_CPU)
    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, PAIRS * 2 * (high + (1 << 16)))
    with commlib.init(backend=order.backend, max_bytes=room, plan=plan) as comm:
        if comm.size == 1:
            raise click.UsageError("one rank has nobody to talk to; -n N starts more")
        tuning = Tuning(comm, order, started)
        try:
            return tuning.run()
        except KeyboardInterrupt:
            tuning.say(f"# interrupted; `{command} --resume` goes on from here")
            return 130


def write(path: Path, plan: Plan) -> None:
    """Write a plan so that a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(plan.file_text, encoding="utf-8")
    beside.replace(path)


def _by_op(cases: list[Case]) -> Iterator[list[Case]]:
    for op in dict.fromkeys(case.op for case in cases):
        yield [case for case in cases if case.op == op]
