"""One run of `commlib tune` on one rank: survey, choose, judge, and let rank 0 print and write."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

import commlib
from commlib import env
from commlib.cli.tune.table import closing, opening, table_lines
from commlib.plan import HEAD, Plan, user_path
from commlib.report.files import write
from commlib.report.table import fold
from commlib.timing import Protocol, fingerprint
from commlib.tuner import Case, Effort, Settings, Store, Survey, Tables, beside, by_op, cases_of, document
from commlib.tuner.rules import Table

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
        self.tables = Tables(comm.plan, comm.size, self.settings, gpu)

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
        for cases in by_op(self.cases):
            for case in cases:
                self._survey(survey, case)
            for table in self.tables.of(cases):
                kept = not self.order.fresh and self.tables.keeps(table)
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
            known = self.tables.measured
            at = known[on_plain][1].at if on_plain in known else self.tables.now(on_plain)
            sizes = case.counts(self.comm.size, effort.low, effort.high)
            plain = {size: option for size in sizes if (option := at(size)) is not None}
        samples = survey.run(case, effort, plain)
        for option, why in samples.left_out.items():
            self.say(f"# left out: {option}: {why}")
        if samples.times:
            self.tables.add(case, samples)

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
            samples = beside.document(tables, beside.cases_beside(base), self.comm.size, self.machine)
            keep(self.path, plan, samples)
        return 0

    def _plot(self) -> None:
        from commlib.cli.tune.plot import plot

        assert self.order.plot is not None
        try:
            plot(self.tables.measured, self.order.plot)
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


def rebuild(source: Path, order: Order) -> int:
    """Make the rules again of a file of samples, without a measurement: on top of --plan, or of nothing."""
    found = beside.read(source)
    machine, settings = found["fingerprint"], Settings(penalty=order.penalty, seed=order.seed)
    path = order.output or source.with_name(source.name.replace(".samples.json", ".json"))
    plan = (
        Plan.load(order.plan)
        if order.plan
        else Plan(document([], Plan({**HEAD, "rules": []}, "nothing"), 2, machine, settings), str(path))
    )
    for world in beside.worlds(found):
        tables = Tables(plan, world, settings, machine["backend"].startswith("nccl"))
        for case, (samples, serves_all) in beside.measured(found, world).items():
            tables.add(case, samples, serves_all)
        made = [table for of_op in by_op(list(tables.measured)) for table in tables.of(of_op)]
        for table in made:
            click.echo("\n".join(table_lines(table, shutil.get_terminal_size().columns, False)))
        plan = Plan(document(made, plan, world, machine, settings), str(path))
    if not order.dry_run:
        write(path, plan.file_text)
        click.echo(f"# plan {plan.digest} is in {path}")
    return 0


def keep(path: Path, plan: Plan, samples: dict[str, Any]) -> None:
    """Write a plan, and beside it what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, plan.file_text)
    if path.is_file():
        write(beside.beside(path), beside.file_text(samples))
