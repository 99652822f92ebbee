"""What `commlib tune` prints: the choice by size with its intervals, and how good it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from commlib.report.figures import about, percent_text, size_text

if TYPE_CHECKING:
    from commlib.cli.tune.run import Tuning
    from commlib.plan import Plan
    from commlib.tuner.choose import Stretch
    from commlib.tuner.rules import Table

NOISY = 0.05  # of one median: what is chosen under so much noise may be chosen otherwise next time


def opening(tuning: Tuning) -> list[str]:
    """Say what is measured, and where."""
    comm, machine, order = tuning.comm, tuning.machine, tuning.order
    return [
        f"# commlib {machine['commlib']} tune: {comm.size} ranks on {comm.backend}, {machine['device']}",
        f"# {', '.join(order.ops)}: {len(tuning.cases)} tables of {size_text(order.low)} to {size_text(tuning.high)}",
        f"# plan in force {comm.plan.digest} from {comm.plan.source}",
    ]


def table_lines(table: Table, width: int, kept: bool) -> list[str]:
    """Return the lines of one table."""
    case, verdict = table.case, table.verdict
    serves = "all types" if table.dtype == "*" else table.dtype
    lines = ["#", f"# {case}: for {serves}" + (", both modes" if table.mode == "*" and case.mode == "graph" else "")]
    lines.append(f"# {'up to':>6}  {'crossover':<15} {'sure':>5}  {'gain':>6} over             runs")
    lines += [line for stretch in table.choice.stretches for line in _stretch(stretch, width)]
    gain = verdict.over_default
    than = "" if gain is None else f", {_share(abs(gain))} {'slower' if gain < 0 else 'faster'} than the default"
    lines.append(f"# regret {_share(verdict.regret)} on blocks held out, at most {_share(verdict.worst)}{than}")
    if kept:
        lines.append("# kept: the plan in force is as good here")
    if verdict.noise > NOISY:
        lines.append(f"# this machine is noisy: blocks scatter by {_share(verdict.noise)}; rest it, or give --time")
    slower = verdict.slower.items()
    return lines + [f"# the default is {_share(share)} faster at {about(size)}" for size, share in slower]


def closing(tuning: Tuning, tables: Sequence[Table], refused: Sequence[Table], plan: Plan) -> list[str]:
    """Say what becomes of it."""
    order, lines = tuning.order, ["#", f"# {time.monotonic() - tuning.started:.0f} s"]
    if refused and not order.force:
        names = ", ".join(str(table.case) for table in refused)
        return [*lines, f"# not written: slower than the default for {names}; give more --time, or --force"]
    if not tables:
        return [*lines, "# nothing to write: the plan in force is as good everywhere (--fresh writes one anyway)"]
    if order.dry_run:
        return [*lines, f"# dry run: plan {plan.digest} was not written to {tuning.path}"]
    taken = "" if order.output else "; init() takes it from now on"
    return [*lines, f"# plan {plan.digest} is in {tuning.path}{taken}"]


def _stretch(stretch: Stretch, width: int) -> list[str]:
    """Return one line, or two where the parameters do not fit on it."""
    until = "rest" if stretch.until is None else about(stretch.until)
    between = "–".join(map(about, stretch.interval)) if stretch.interval else ""
    sure = "" if stretch.confidence is None else f"{stretch.confidence:.0%}"
    gain = "" if stretch.gain is None else _share(stretch.gain)
    line = f"{until:>8}  {f'[{between}]' * bool(between):<15} {sure:>5}  {gain:>6} {stretch.runner_up or '':<17} "
    option, algorithm = str(stretch.option), stretch.option.algorithm
    if len(line) + len(option) <= width:
        return [line + option]
    return [line + algorithm, f"{option.removeprefix(algorithm).strip():>{width}}"]


def _share(value: float) -> str:
    return f"{percent_text(value)}%"
