"""One run of `commlib bench` on one rank: join the others, measure, and let rank 0 report."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import commlib
from commlib import env
from commlib.cli.bench_job import Bench, Group, Job, Line, arena_bytes, undefined
from commlib.cli.bench_table import Table, choices, foot, summary
from commlib.errors import CommError
from commlib.timing import Measurement, block_seconds, fingerprint

if TYPE_CHECKING:
    from commlib.communicator import Communicator

SCHEMA, VERSION = "commlib.bench", 1


@dataclass
class Output:
    """What rank 0 prints and writes; on the other ranks nothing is."""

    command: str
    form: str
    path: Path | None
    width: int = field(default_factory=lambda: shutil.get_terminal_size().columns)
    speaks: bool = False

    def __post_init__(self) -> None:
        """Lay the table out for the terminal."""
        self.table = Table(self.width)

    def lines(self, lines: list[str]) -> None:
        """Print lines of the table, over the progress if that stands there."""
        if self.speaks and self.form == "table":
            self.progress("")
            for line in lines:
                click.echo(
                    textwrap.fill(line, self.width, subsequent_indent="#   ") if len(line) > self.width else line
                )

    def progress(self, text: str) -> None:
        """Show where the run is, to a person only."""
        if self.speaks and sys.stderr.isatty():
            click.echo(f"\r\033[K{text}", err=True, nl=False)

    def document(self, found: dict[str, Any]) -> None:
        """Print or write the JSON."""
        if not self.speaks:
            return
        text = json.dumps({"schema": SCHEMA, "version": VERSION, "command": self.command, **found}, indent=1)
        if self.form == "json":
            click.echo(text)
        if self.path is not None:
            self.path.write_text(text + "\n", encoding="utf-8")


def main(job: Job, backend: str, output: Output) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    room = None if env.MAX_BYTES.is_set() else max(env.MAX_BYTES.default, arena_bytes(job))
    with commlib.init(backend=backend, max_bytes=room) as comm:
        if not 0 <= job.root < comm.size:
            raise click.UsageError(f"--root {job.root} is not one of {comm.size} ranks")
        output.speaks = comm.rank == 0
        groups: list[Group] = []
        try:
            _measure(comm, job, output, groups)
        except KeyboardInterrupt:
            return _report(comm, job, output, groups, "interrupted")
        except CommError as error:
            _report(comm, job, output, groups, str(error))
            raise
        return _report(comm, job, output, groups, "")


def _measure(comm: Communicator, job: Job, output: Output, groups: list[Group]) -> None:
    bench = Bench(comm, job)
    output.lines(_head(comm, job, len(bench.calls)))
    started = time.monotonic()
    try:
        for group in bench.run():
            if groups and _series(groups[-1]) != _series(group):
                output.lines(_choices_of_last(groups))
            if not groups or _series(groups[-1]) != _series(group):
                output.lines(output.table.head(group))
            groups.append(group)
            output.lines(output.table.body(group))
            spent_s = time.monotonic() - started
            output.progress(f"# {len(groups)} of {len(bench.calls)} calls, {spent_s:.0f} of {job.seconds:.0f} s")
    except CommError:
        time.sleep(0.2)  # the end of a peer that Ctrl-C reached may be seen before our own Ctrl-C
        raise
    bench.close()


def _series(group: Group) -> tuple[object, ...]:
    return group.collective.name, group.call.dtype, group.call.redop


def _choices_of_last(groups: list[Group]) -> list[str]:
    last = [list(of_series) for _, of_series in groupby(groups, _series)][-1:]
    return [line for series in last for line in choices(series)]


def _head(comm: Communicator, job: Job, calls: int) -> list[str]:
    machine, protocol = fingerprint(), job.protocol
    block = f"{protocol.iterations} iterations" if protocol.iterations else f"{block_seconds(comm) * 1e6:.0f} us"
    least, most = protocol.blocks
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    return [
        f"# commlib {machine['commlib']} bench: {_ranks(comm)}",
        f"# {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}",
        f"# torch {machine['torch']}, Python {machine['python']}" + (f", {settings}" if settings else ""),
        f"# {calls} calls in about {job.seconds:.0f} s; values are {'' if protocol.check else 'not '}checked",
        f"# time: median of {least} to {most} interleaved blocks of {block}, slowest rank, per call",
        f"# plan {comm.plan.digest} from {comm.plan.source}; * marks what it picks",
        "# torch (x): how many times as long torch.distributed takes" if job.peers else "# without torch.distributed",
        *(f"# skipped: {what} is not defined" for what in undefined(job)),
    ]


def _ranks(comm: Communicator) -> str:
    if comm.size == 1:
        return f"1 rank on {comm.backend}; -n N starts more"
    usable = len(os.sched_getaffinity(0))
    return (
        f"{comm.size} ranks on {comm.backend}, {'each on a core of its own' if usable == 1 else 'not bound to cores'}"
    )


def _report(comm: Communicator, job: Job, output: Output, groups: list[Group], ended: str) -> int:
    """Close the table, write the JSON, and return the exit code."""
    found = summary(groups)
    output.lines([*_choices_of_last(groups), *foot(groups), *([f"# {ended}: not complete"] if ended else [])])
    output.document(
        {
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "complete": not ended,
            "fingerprint": fingerprint(),
            "config": _config(comm, job),
            "plan": {"digest": comm.plan.digest, "source": Path(comm.plan.source).name},
            "rows": [row for group in groups for line in group.lines for row in _rows(group, line)],
            "out_of_bounds": {"count": found["wrong"], "okay": not found["wrong"]},
            "average_bus_bandwidth": {"plan": found["busbw"], "torch": found["torch_busbw"]},
        }
    )
    return 130 if ended == "interrupted" else int(found["wrong"] > 0)


def _config(comm: Communicator, job: Job) -> dict[str, Any]:
    protocol = job.protocol
    return {
        "ranks": comm.size,
        "backend": comm.backend,
        "cores_per_rank": len(os.sched_getaffinity(0)),
        "sizes": job.sizes,
        "block_us": block_seconds(comm) * 1e6,
        "blocks": protocol.blocks,
        "iterations": protocol.iterations,
        "warmup": protocol.warmup,
        "buffers": protocol.buffers,
        "seed": protocol.seed,
        "check": protocol.check,
        "seconds": job.seconds,
    }


def _rows(group: Group, line: Line) -> list[dict[str, Any]]:
    call, why = group.call, group.why.get(line.placement)
    shared = {
        "op": group.collective.name,
        "size": group.num_bytes,
        "count": call.count,
        "type": str(call.dtype).removeprefix("torch."),
        "redop": call.redop if group.collective.reduces else None,
        "root": call.root if group.collective.rooted else None,
        "algorithm": line.label,
        "placement": line.placement,
        "chosen": line.chosen,
        "rule": why.rule if why and line.chosen else None,
    }
    return [{**shared, "in_place": place, **_figures(group, line, place)} for place in line.found]


def _figures(group: Group, line: Line, in_place: bool) -> dict[str, Any]:
    result = line.found[in_place]
    if not result.times_s:
        return {"skipped": result.skipped}
    algorithm, bus = group.bandwidths(result.median_s)
    torch = next((other.found[in_place] for other in group.lines if other.label == "torch"), None)
    return {
        "time_us": {f"p{p}": round(result.percentile_s(p) * 1e6, 4) for p in (0, 10, 50, 90, 100)},
        "iterations": result.iterations,
        "blocks": len(result.times_s),
        "algbw": round(algorithm, 6),
        "busbw": round(bus, 6),
        "wrong": result.wrong,
        "vs_torch": _ratio(torch, result),
    }


def _ratio(torch: Measurement | None, result: Measurement) -> float | None:
    if torch is None or torch is result or not torch.times_s:
        return None
    return round(torch.median_s / result.median_s, 3)
