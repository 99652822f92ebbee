"""`commlib debug`: what the ranks of a job on this host are in, who waits for whom, and which rank holds them up."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from commlib.debug import findings_of
from commlib.debug.jobs import Job, ask_stacks, command_of, moments
from commlib.debug.record import Record
from commlib.debug.starting import LOG_S, Starting
from commlib.tools.cli.options import Result, Seconds, result_options
from commlib.tools.debug.flight import flights
from commlib.tools.debug.host import jobs_here, starting_here, why_none
from commlib.tools.debug.page import brief, document, page, records_document, wrapped
from commlib.tools.debug.sample import cores_of, whereabouts
from commlib.tools.debug.sample import watch as watch_job
from commlib.tools.debug.slow import slow_document, slow_page, slowness
from commlib.tools.debug.trace import Calls, events_of, recorded_calls, trace_text
from commlib.tools.report.formats import json_text

APART_S = 0.7  # between the two looks at a job
WATCH_S = 2.0
WATCHED_S = 0.1, 3600.0  # what --slow can watch
NATIVE_S = 30.0
_NATIVE = {  # tools that show native stacks, the better one first
    "py-spy": ["dump", "--native", "--pid"],
    "gdb": ["-batch", "-ex", "thread apply all backtrace 30", "-p"],
    "eu-stack": ["-p"],
}


@click.command("debug")
@click.argument("job", type=click.IntRange(min=1), metavar="[JOB|PID]", required=False)
@click.option("--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C.")
@click.option("--slow", is_flag=True, help="Watch a job that is slow: where its time goes, and who is late.")
@click.option("--time", "seconds", type=Seconds(), default="2s", help="How long --slow watches.")
@click.option("--native", is_flag=True, help="Show native stacks too, with py-spy, gdb or eu-stack; takes seconds.")
@click.option("--sites/--no-sites", default=None, help="From now on, ranks record where in the program each call is.")
@click.option("--dump", type=click.Path(file_okay=False, path_type=Path), help="Save everything in this folder.")
@result_options
def debug(job: int | None, watch: bool, as_json: bool, output: Path | None, **options: Any) -> int:
    """Show what a job hangs in: commlib debug, from another shell, while the job runs.

    The job needs no preparation. JOB is the process of any of its ranks, or of what started them; without it, all jobs
    of this user on this host are shown, those in trouble first. The first lines name the rank that holds up the others,
    and what it does; then there is a line for each rank and communicator. Of ranks on other hosts it says where they
    are. --slow is for a job that is not stuck: which share of the time each rank waits, moves data and is in the
    program, and which rank is late.

    The document of --json has the findings; --dump also saves all records, traces, and dumps for torch's flight
    recorder. The exit code is 3 if something is wrong.
    """
    if not WATCHED_S[0] <= options["seconds"] <= WATCHED_S[1]:
        raise click.UsageError("--time: a job is watched for 100ms to 1h")
    while True:
        jobs, starting = jobs_here(job), starting_here(job)
        if not jobs and not starting:
            raise click.ClickException(why_none(job))
        if watch:
            click.clear()
        wrong = _show_all(jobs, starting, Result(as_json, output), **options)
        if not watch:
            return 3 * wrong
        time.sleep(WATCH_S)


@dataclass
class Shown:
    """What there is to show of a job: text and data, the ranks to look at more closely, the calls by rank."""

    job: Job
    records: list[Record]
    text: str
    data: dict[str, Any]
    suspects: set[int]
    wrong: bool
    calls: Calls
    line: str = ""  # shown instead of the text, where nothing is wrong and there are other jobs


def _show_all(
    jobs: list[list[Record]],
    starting: list[Starting],
    result: Result,
    slow: bool,
    seconds: float,
    native: bool,
    sites: bool | None,
    dump: Path | None,
) -> bool:
    """Show jobs, those in which something is wrong first; say whether there are such. All are looked at together."""
    late = _show_starting(starting, result)
    for record in chain(*jobs) if sites is not None else ():
        record.header.wants_sites = sites
    if slow:
        shown = [_slow(records, seconds) for records in jobs]
    else:
        shown = sorted(_stuck(jobs), key=lambda one: not one.wrong)
    wrong = sum(one.wrong for one in shown)
    if len(shown) > 1:
        result.say(f"something is wrong in {wrong} of {len(shown)} jobs\n")
    schema = {"schema": "commlib.debug.slow" if slow else "commlib.debug", "version": 2}
    for at, one in enumerate(shown):
        if at and not shown[at - 1].line:
            result.say("")
        result.say(one.line or one.text)
        stacks = _native_stacks(one) if native else {}
        for rank, stack in stacks.items():
            result.say(f"\nrank {rank}:\n{stack}")
        if stacks:
            one.data["native_stacks"] = stacks
        if dump is not None:
            _dump(dump / str(one.job.number), one, schema)
    rows = [{"job": one.data["job"], "finding": line} for one in shown for line in one.data["sentences"]]
    waiting = [asdict(one) for one in starting]
    result.finish({**schema, "jobs": [one.data for one in shown], "in_init": waiting}, rows or waiting)
    return wrong > 0 or late


def _show_starting(starting: list[Starting], result: Result) -> bool:
    lines = (f"rank {one.rank} of {one.size} {one} (process {one.pid}, {command_of(one.pid)})" for one in starting)
    if starting:
        result.say("\n".join([*wrapped(lines), ""]))
    return any(one.waited_s >= LOG_S for one in starting)


def _stuck(jobs: list[list[Record]]) -> Iterator[Shown]:
    looks = moments(jobs, APART_S)
    ask_stacks(rank for _, job in looks for rank in job.ranks.values())
    for (before, job), records in zip(looks, jobs, strict=True):
        findings = findings_of(job, before)
        suspects = {pid for finding in findings for pid in finding.threads}
        wrong = any(finding.serious for finding in findings)
        text = page(job, before, findings, partial(click.style, fg="red" if wrong else "yellow"))
        line = "" if wrong or len(jobs) == 1 else brief(job, before)
        yield Shown(job, records, text, document(job, before, findings), suspects, wrong, recorded_calls(job), line)


def _slow(records: list[Record], seconds: float) -> Shown:
    from commlib.collectives import traffic

    watched = watch_job(records, seconds)
    job, slow = watched.job, slowness(watched, traffic)
    where = {one.pid: whereabouts(records, job, one.pid) for one in slow.late}
    parts = job, slow, where, cores_of(job)
    return Shown(job, records, slow_page(*parts), slow_document(*parts), set(where), bool(slow.late), watched.calls)


def _native_stacks(shown: Shown) -> dict[str, str]:
    pids = sorted(pid for pid in shown.suspects or set(shown.job.ranks) if pid > 0)
    return {f"{shown.job.ranks[pid].number} (process {pid})": native_stack(pid) for pid in pids}


def native_stack(pid: int) -> str:
    """Return what the first tool that is here says."""
    for tool, options in _NATIVE.items():
        if path := shutil.which(tool):
            try:
                ran = subprocess.run(
                    [path, *options, str(pid)], capture_output=True, text=True, timeout=NATIVE_S, check=False
                )
            except subprocess.TimeoutExpired:
                return f"{tool} took longer than {NATIVE_S:g} s"
            return ran.stdout or ran.stderr
    return f"none of {', '.join(_NATIVE)} is here"


def _dump(place: Path, shown: Shown, schema: Mapping[str, Any]) -> None:
    """Write a folder for the job: what was shown, the record of each rank as it is, and its calls for other tools."""
    data = json_text({**schema, **shown.data, **records_document(shown.job)})
    trace = trace_text(events_of(shown.job, shown.calls))
    try:
        (place / "flight").mkdir(parents=True, exist_ok=True)
        for name, text in {"page.txt": click.unstyle(shown.text), "job.json": data, "trace.json": trace}.items():
            (place / name).write_text(text + "\n", encoding="utf-8")
        for record in shown.records:
            (place / f"record.{record.pid}").write_bytes(record.in_use().rstrip(b"\0"))
        for rank, flight in flights(shown.job).items():
            (place / "flight" / f"rank_{rank}").write_bytes(flight)
    except OSError as error:
        why = error.strerror if error.filename is None else error
        raise click.ClickException(f"--dump: what is in {place} is not complete: {why}") from None
