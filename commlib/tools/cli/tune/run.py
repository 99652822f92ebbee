"""One run of `commlib tune` on one rank: survey, choose, judge, and let rank 0 print and write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click
import torch

import commlib
from commlib import env
from commlib.counts import counted
from commlib.plan import HEAD, Plan, user_path
from commlib.tools.report import chart
from commlib.tools.report.figures import size_text
from commlib.tools.report.files import write
from commlib.tools.report.progress import Progress
from commlib.tools.report.run import INTERRUPTED_TEXT, printed, until_it_ends
from commlib.tools.report.table import fold
from commlib.tools.timing import Protocol, fingerprint
from commlib.tools.tune import beside
from commlib.tools.tune.case import Case, cases_of
from commlib.tools.tune.choose import Settings
from commlib.tools.tune.rules import Table, plan_of
from commlib.tools.tune.samples import Store
from commlib.tools.tune.survey import Survey
from commlib.tools.tune.tables import Tables, by_op
from commlib.tools.tune.words import changes, left_out, table_lines, way_back

if TYPE_CHECKING:
    from commlib.communicator import Communicator

PER_OP_S = 60.0  # from the start of the ranks to the plan
USED = 0.9  # of the time: the least blocks of large sizes may take longer than their share
HIGH_CPU, HIGH_GPU = 64 << 20, 256 << 20
PAIRS = Protocol.buffers


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
    spare: float
    seed: int
    backend: str
    plan: str | None
    fresh: bool
    resume: bool
    dry_run: bool
    force: bool
    plot: Path | None
    output: Path | None

    @property
    def settings(self) -> Settings:
        """How to choose."""
        return Settings(penalty=self.penalty, seed=self.seed, fresh=self.fresh, spare=self.spare)


class Tuning:
    """A run on live ranks: every rank has the same samples and comes to the same choice; rank 0 speaks."""

    def __init__(self, comm: Communicator, order: Order, started: float) -> None:
        self.comm, self.started = comm, started
        gpu = comm.device.type == "cuda"
        wide, narrow = torch.float32, torch.bfloat16
        self.high = order.high or (HIGH_GPU if gpu else HIGH_CPU)
        self.order = replace(
            order,
            dtypes=order.dtypes or ((narrow, wide) if gpu else (wide, narrow)),
            modes=order.modes or (("graph", "eager") if gpu else ("eager",)),
        )
        if not gpu and "graph" in self.order.modes:
            raise click.UsageError(f"--mode graph needs GPUs; the ranks use {comm.device} (backend {comm.backend})")
        self.machine = {"backend": comm.backend, **fingerprint(comm.backend)}
        self.path = order.output or user_path(comm.backend, str(self.machine["device"]), comm.size)
        self.width = get_terminal_size().columns
        self.cases = list(cases_of(order.ops, self.order.dtypes, self.order.modes, comm.backend, comm.size))
        self.tables = Tables(comm.plan, comm.size, order.settings, gpu)
        self._progress = Progress(len(self.cases), self.width, comm.rank == 0)

    def say(self, *lines: str) -> None:
        """Print on rank 0, over the progress line if that stands there."""
        if self.comm.rank == 0:
            self._progress.clear()
            for line in lines:  # a path is not broken: it is there to be copied
                printed([line] if "/" in line else fold([line], self.width))

    def _show(self, text: str) -> None:
        self._progress.show(len(self.tables.measured), text)

    def run(self) -> None:
        """Measure all cases, print what was chosen, write the plan."""
        if not self.cases:
            self.say(f"# nothing to choose: {self.comm.backend} has one algorithm each for {', '.join(self.order.ops)}")
            return
        comm, order, sizes = self.comm, self.order, (self.order.low, self.high)
        self.say(
            f"# commlib {commlib.__version__} tune: {comm.size} ranks on {comm.backend}, {self.machine['device']}",
            f"# {', '.join(order.ops)}: {counted(len(self.cases), 'table')} of {size_text(order.low)} to "
            f"{size_text(self.high)}",
            f"# plan in force {comm.plan.digest} from {comm.plan.source}",
        )
        tables = []
        survey = Survey(comm, self._store(), sizes, order.algorithms, order.seed, self._show)
        for cases in by_op(self.cases):
            for case in cases:
                self._survey(survey, case)
            for table in self.tables.of(cases):
                stays = (not order.fresh and self.tables.keeps(table)) or (
                    bool(table.verdict.slower) and not order.force
                )
                self.say(*table_lines(table, self.width, stays))
                tables += [] if stays else [table]
        survey.close()
        self._finish(tables)

    def _survey(self, survey: Survey, case: Case) -> None:
        order = self.order
        total_s = USED * (order.seconds or PER_OP_S * len(order.ops))
        left = len(self.cases) - self.cases.index(case)
        share_s = self.comm.broadcast_object(max(self.started + total_s - time.monotonic(), 1.0) / left, 0)
        samples = survey.run(case, share_s, self.tables.on_plain(case) if case.placement == "symmetric" else None)
        for option, why in samples.left_out.items():
            self.say(f"# left out: {option}: {why}")
        if samples.times:
            self.tables.add(case, samples)

    def _store(self) -> Store:
        order = self.order
        asked = {"low": order.low, "high": self.high, "algorithms": order.algorithms, "seed": order.seed}
        conditions = {"machine": self.machine, "ranks": self.comm.size, "plan": self.comm.plan.digest, **asked}
        path = None if self.comm.rank != 0 or order.dry_run else self.path.with_suffix(".samples.jsonl")
        return Store(path, conditions, order.resume)

    def _finish(self, tables: Sequence[Table]) -> None:
        comm, order = self.comm, self.order
        plan = plan_of(tables, comm.plan, comm.size, self.machine, order.settings, str(self.path))
        self.say("#", *(["# what changes"] if tables else []), *(line for table in tables for line in changes(table)))
        self.say(*left_out([choice for _, choice in self.tables.measured.values()], order.settings))
        self.say(f"# {time.monotonic() - self.started:.0f} s")
        if order.plot is not None and comm.rank == 0:
            try:
                chart.draw(order.plot, f"commlib tune, {self.machine['device']}", chart.tuning(self.tables.measured))
                self.say(f"# curves: {order.plot}")
            except (commlib.Unsupported, ValueError) as error:
                self.say(f"# no plot: {error}")
        if not tables:
            self.say("# no plan is written: the plan in force stays (--fresh chooses without it)")
        elif order.dry_run:
            self.say(f"# dry run: plan {plan.digest} was not written to {self.path}")
        elif comm.rank == 0:
            samples = beside.document(tables, beside.cases_beside(comm.plan), comm.size, self.machine)
            before = beside.keep(self.path, plan, samples)
            taken = "" if order.output else "; init() takes it from now on"
            self.say(f"# plan {plan.digest} is in {self.path}{taken}", way_back(self.path, before))


def buffer_bytes(order: Order, ranks: int) -> int:
    """Return what each of so many ranks allocates: plain and symmetric buffers, and every rank's input to check."""
    return 2 * _arena_bytes(order) + (ranks + 1) * _largest(order)


def _arena_bytes(order: Order) -> int:
    return PAIRS * 2 * (_largest(order) + (1 << 16))


def _largest(order: Order) -> int:
    return order.high or (HIGH_GPU if torch.cuda.is_available() else HIGH_CPU)


def main(order: Order, command: str) -> int:
    """Run on the ranks there are; Ctrl-C leaves the samples for --resume."""
    started = time.monotonic()
    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, _arena_bytes(order))
    with commlib.init(backend=order.backend, max_bytes=room, plan=order.plan or "auto") as comm:
        if comm.size == 1:
            raise click.UsageError("tune needs two ranks or more; start them with -n N")
        tuning = Tuning(comm, order, started)

        def finish(ended: str) -> None:
            if ended == INTERRUPTED_TEXT:
                tuning.say(f"# interrupted; `{command} --resume` continues from here")

        return until_it_ends(tuning.run, finish)


def rebuild(source: Path, order: Order) -> int:
    """Make the rules again of a file of samples, without a measurement: on top of --plan, or of nothing."""
    found = beside.read(source)
    machine, settings, width = found["fingerprint"], order.settings, get_terminal_size().columns
    path = order.output or source.with_name(source.name.replace(".samples.json", ".json"))
    plan = Plan.load(order.plan) if order.plan else Plan({**HEAD, "rules": []}, "nothing")
    for world, cases in sorted(beside.measured(found).items()):
        tables = Tables(plan, world, settings, machine["backend"].startswith("nccl"))
        for case, (samples, serves_all) in cases.items():
            tables.add(case, samples, serves_all)
        made = [table for of_op in by_op(list(cases)) for table in tables.of(of_op)]
        for table in made:
            click.echo("\n".join(table_lines(table, width, False)))
        plan = plan_of(made, plan, world, machine, settings, str(path))
    if not order.dry_run:
        write(path, plan.file_text)
        click.echo(f"# plan {plan.digest} is in {path}")
    return 0
