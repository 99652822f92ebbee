"""What `commlib tune` says: the choice by size with its intervals, how good it is, and what it changes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from commlib.counts import counted
from commlib.tools.report.figures import about, percent_text
from commlib.tools.tune.choose import Change, Choice, Settings, Stretch
from commlib.tools.tune.rules import Table

NOISY = 0.05  # of one median: what is chosen under so much noise may be chosen otherwise next time


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
    if kept and verdict.slower:
        lines.append("# the plan in force stays: what was measured is slower than the default; --force writes it")
    elif kept:
        lines.append("# the plan in force stays: nothing is surely better")
    if verdict.noise > NOISY:
        lines.append(
            f"# this machine is noisy (standard error {_share(verdict.noise)}): stop other work, or raise --time"
        )
    slower = verdict.slower.items()
    return lines + [f"# the default is {_share(share)} faster at {about(size)}" for size, share in slower]


def changes(table: Table) -> Iterator[str]:
    """Yield what a table that will be written changes: where, by how much, how sure that is."""
    found = table.choice.changes
    yield from (f"#   {table.case}, {_sizes(change, table.choice)}: {_change(change)}" for change in found)
    if not found:
        served = ", ".join(f"{dtype} {mode}" for dtype, mode in table.serves)
        yield f"#   {table.case}: the rule as measured now" + (f", for {served} too" if served else "")


def left_out(choices: Sequence[Choice], settings: Settings) -> list[str]:
    """Say how many switches the blocks speak for, but not surely."""
    count = sum(choice.unsure for choice in choices)
    if not count:
        return []
    what = counted(count, "switch", "switches")
    return [f"# left out: {what}, measured as faster, but with less than {settings.sure:.0%} confidence"]


def way_back(path: Path, before: Path | None) -> str:
    """Say how to run again what ran before a plan was written."""
    words = ["rm", str(path)] if before is None else ["mv", str(before), str(path)]
    return f"# to go back: {shlex.join(words)}"


def _sizes(change: Change, choice: Choice) -> str:
    first, last = change.sizes[0], change.sizes[-1]
    if last == choice.stretches[-1].sizes[-1]:
        return f"from {about(first)}"
    return about(first) if first == last else f"{about(first)} to {about(last)}"


def _change(change: Change) -> str:
    if change.was is None:
        return f"{change.option}, for which there was no rule"
    if change.gain is None or change.sure is None:
        return f"{change.option} instead of {change.was}, which was not measured"
    gain = f"{_share(abs(change.gain))} {'slower' if change.gain < 0 else 'faster'}"
    before, after = change.sms or (0, 0)
    if after < before:
        return (
            f"{change.option} instead of {change.was}: {gain} on {counted(after, 'multiprocessor')} instead of {before}"
        )
    return f"{change.option} instead of {change.was}: {gain}, {change.sure:.0%} sure"


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
