"""What `commlib tune` prints: the choice by size with its intervals, and how good it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commlib.cli.tune.run import Order, Tuning
    from commlib.communicator import Communicator
    from commlib.plan import Plan
    from commlib.tuner import Stretch
    from commlib.tuner.rules import Table

NOISY = 0.05  # of one median: what is chosen under so much noise may be chosen otherwise next time


def opening(comm: Communicator, order: Order, machine: dict[str, Any], cases: int) -> list[str]:
    """Say what is measured, and where."""
    high = order.high or 0
    return [
        f"# commlib {machine['commlib']} tune: {comm.size} ranks on {comm.backend}, {machine['device']}",
        f"# {', '.join(order.ops)}: {cases} tables of {size_text(order.low)} to {size_text(high)}",
        f"# plan in force {comm.plan.digest} from {comm.plan.source}",
    ]


def table_lines(table: Table, width: int, kept: bool) -> list[str]:
    """Return the lines of one table."""
    case, verdict = table.case, table.verdict
    serves = "all types" if table.dtype == "*" else table.dtype
    lines = ["#", f"# {case}: for {serves}" + (", both modes" if table.mode == "*" and case.mode == "graph" else "")]
    lines.append(f"# {'up to':>6}  {'crossover':<15} {'sure':>5}  {'gain':>6} over             runs")
    lines += [line for stretch in table.choice.stretches for line in _stretch(stretch, width)]
    gain = "" if verdict.over_default is None else f", {_faster(verdict.over_default)} than the default"
    lines.append(f"# regret {_share(verdict.regret)} on blocks held out, at most {_share(verdict.worst)}{gain}")
    if kept:
        lines.append("# kept: the plan in force is as good here")
    if verdict.noise > NOISY:
        lines.append(f"# this machine is noisy: blocks scatter by {_share(verdict.noise)}; rest it, or give --time")
    for size, share in verdict.slower.items():
        lines.append(f"# the default is {_share(share)} faster at {size_text(size)}")
    return lines


def closing(tuning: Tuning, tables: Sequence[Table], refused: Sequence[Table], plan: Plan, spent_s: float) -> list[str]:
    """Say what becomes of it."""
    order, lines = tuning.order, ["#", f"# {spent_s:.0f} s"]
    if refused and not order.force:
        names = ", ".join(str(table.case) for table in refused)
        return [*lines, f"# not written: slower than the default for {names}; give more --time, or --force"]
    if not tables:
        return [*lines, "# nothing to write: the plan in force is as good everywhere (--fresh writes one anyway)"]
    if order.dry_run:
        return [*lines, f"# dry run: plan {plan.digest} was not written to {tuning.path}"]
    taken = "" if order.output else "; init() takes it from now on"
    return [*lines, f"# plan {plan.digest} is in {tuning.path}{taken}"]


def size_text(num_bytes: int) -> str:
    """Return 64K, 1.5M, 724: at most a digit behind the point."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= scale:
            text = f"{num_bytes / scale:.1f}"
            return text.removesuffix(".0") + unit
    return str(num_bytes)


def _stretch(stretch: Stretch, width: int) -> list[str]:
    """Return one line, or two where the parameters do not fit on it."""
    until = "rest" if stretch.until is None else size_text(stretch.until)
    between = f"[{size_text(stretch.interval[0])}–{size_text(stretch.interval[1])}]" if stretch.interval else ""
    sure = "" if stretch.confidence is None else f"{stretch.confidence:.0%}"
    gain = "" if stretch.gain is None else _share(stretch.gain)
    line = f"{until:>8}  {between:<15} {sure:>5}  {gain:>6} {stretch.runner_up or '':<17} "
    option, algorithm = str(stretch.option), stretch.option.algorithm
    if len(line) + len(option) <= width:
        return [line + option]
    return [line + algorithm, f"{option.removeprefix(algorithm).strip():>{width}}"]


def _faster(share: float) -> str:
    return f"{_share(abs(share))} {'slower' if share < 0 else 'faster'}"


def _share(value: float) -> str:
    return f"{value * 100:.0f}%" if abs(value) >= 0.1 else f"{value * 100:.1f}%"
