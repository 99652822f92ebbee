"""`commlib debug`: what the ranks of a job on this host are in, who waits for whom, and which rank keeps it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.tools.cli.options import Finite

if TYPE_CHECKING:
    from commlib.debug.jobs import Job
    from commlib.debug.record import Record
    from commlib.debug.starting import Starting
    from commlib.tools.debug.trace import Calls

APART_S = 0.7  # between the two looks at a job
WATCH_S = 2.0
NATIVE_S = 30.0
_NATIVE = {  # tools that show native stacks, the better one first
    "py-spy": ["dump", "--native", "--pid"],
    "gdb": ["-batch", "-ex", "thread apply all backtrace 30", "-p"],
    "eu-stack": ["-p"],
}


@click.command("debug")
@click.argument("job", type=click.IntRange(min=1), metavar="[JOB|PID]", required=False)
@click.option("--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document for each job.")
@click.option("--dump", type=click.Path(file_okay=False, path_type=Path), help="Save everything in this folder.")
@click.option("--sites/--no-sites", default=None, help="Have the ranks keep the place of each call from now on.")
@click.option("--slow", is_flag=True, help="Watch a job that is slow, and say where its time goes, and who is late.")
@click.option("--seconds", type=Finite(0.1, 3600), default=2.0, help="How long --slow watches. [2]")
@click.option("--native", is_flag=True, help="Show native stacks too, with py-spy, gdb or eu-stack; takes seconds.")
def debug(job: int | None, watch: bool, **options: Any) -> int:
    """Say what the ranks of JOB are in: commlib debug, from another shell, while the job runs.

    The job needs no preparation. JOB is the process of any of its ranks, or of what started them; without it, all jobs
    of this user on this host are shown. First it says which rank keeps the others, and what that rank does; then there
    is a line for each rank and communicator. Of ranks on other hosts it says where they are. With --slow it says where
    the time of a job goes that is not stuck: waiting, moving data or the program, for each rank and operation, and
    which rank is late.

    The exit code is 3 if something is wrong.
    """
    from commlib.tools.debug.host import jobs_here, starting_here, why_none

    while True:
        jobs, starting = jobs_here(job), starting_here(job)
        if not jobs and not starting:
            raise click.ClickException(why_none(job))
        if watch:
            click.clear()
        waits = _show_starting(starting, options["as_json"])
        wrong = _show_all(jobs, Options(**options)) or waits
        if not watch:
            return 3 * wrong
        time.sleep(WATCH_S)


@dataclass(frozen=True)
class Options:
    """What is shown of a job, and saved."""

    as_json: bool
    dump: Path | None
    sites: bool | None
    native: bool
    slow: bool
    seconds: float


@dataclass
class Shown:
    """What there is to show of a job: text and data, who is to be looked at more closely, the calls by rank."""

    job: Job
    records: list[Record]
    text: str
    data: dict[str, Any]
    suspects: set[int]
    wrong: bool
    calls: Calls
    line: str = ""  # shown instead of the text, where nothing is wrong and there are other jobs


def _show_all(jobs: list[list[Record]], options: Options) -> bool:
    """Show jobs, those in which something is wrong first; say whether there are such. All are looked at together."""
    for record in chain(*jobs) if options.sites is not None else ():
        record.header.wants_sites = options.sites
    if options.slow:
        shown = [_slow(records, options.seconds) for records in jobs]
    else:
        shown = sorted(_stuck(jobs), key=lambda one: not one.wrong)
    wrong = sum(one.wrong for one in shown)
    if len(shown) > 1 and not options.as_json:
        click.echo(f"something is wrong in {wrong} of {len(shown)} jobs\n")
    for at, one in enumerate(shown):
        if at and not (options.as_json or shown[at - 1].line):
            click.echo()
        _show(one, options)
    return wrong > 0


def _show_starting(starting: list[Starting], as_json: bool) -> bool:
    """Show the ranks that wait in init(); say whether one has waited for long."""
    from commlib.debug.jobs import command_of
    from commlib.debug.starting import LOG_S
    from commlib.tools.debug.format import wrapped

    if as_json and starting:
        ranks = [asdict(one) for one in starting]
        click.echo(json.dumps({"schema": "commlib.debug.init", "version": 1, "ranks": ranks}))
    elif starting:
        lines = (f"rank {one.rank} of {one.size} {one} (process {one.pid}, {command_of(one.pid)})" for one in starting)
        click.echo("\n".join([*wrapped(lines), ""]))
    return any(one.waited_s >= LOG_S for one in starting)


def _show(shown: Shown, options: Options) -> None:
    """Show one job."""
    data = json.dumps(shown.data, default=str)
    click.echo(data if options.as_json else shown.line or shown.text)
    stacks = {
        pid: native_stack(pid) for pid in sorted(shown.suspects or set(shown.job.ranks)) if options.native and pid > 0
    }
    for pid, stack in stacks.items():
        click.echo(f"\nrank {shown.job.ranks[pid].number} (process {pid}):\n{stack}", err=options.as_json)
    if options.dump is not None:
        place = options.dump / str(shown.job.number)
        try:
            _dump(place, shown, data)
        except OSError as error:
            why = error.strerror if error.filename is None else error
            raise click.ClickException(f"--dump: what is in {place} is not complete: {why}") from None


def _stuck(jobs: list[list[Record]]) -> Iterator[Shown]:
    from commlib.debug import findings_of
    from commlib.debug.jobs import ask_stacks, moments
    from commlib.tools.debug.page import brief, document, page
    from commlib.tools.debug.trace import recorded_calls

    looks = moments(jobs, APART_S)
    ask_stacks(rank for _, job in looks for rank in job.ranks.values())
    for (before, job), records in zip(looks, jobs, strict=True):
        findings = findings_of(job, before)
        suspects = {pid for finding in findings for pid in finding.threads}
        wrong = any(finding.serious for finding in findings)
        text, data = page(job, before, findings), document(job, before, findings)
        line = "" if wrong or len(jobs) == 1 else brief(job, before)
        yield Shown(job, records, text, data, suspects, wrong, recorded_calls(job), line)


def _slow(records: list[Record], seconds: float) -> Shown:
    from commlib.collectives import traffic
    from commlib.tools.debug.sample import cores_of, watch, whereabouts
    from commlib.tools.debug.slow import slow_document, slow_page, slowness

    watched = watch(records, seconds)
    job, slow = watched.job, slowness(watched, traffic)
    where = {one.pid: whereabouts(records, job, one.pid) for one in slow.late}
    parts = job, slow, where, cores_of(job)
    return Shown(job, records, slow_page(*parts), slow_document(*parts), set(where), bool(slow.late), watched.calls)


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


def _dump(place: Path, shown: Shown, data: str) -> None:
    """Write a folder for the job: what was shown, the record of each rank as it is, and its calls for other tools."""
    from commlib.tools.debug.flight import flights
    from commlib.tools.debug.trace import events_of, trace_text

    (place / "flight").mkdir(parents=True, exist_ok=True)
    texts = {"page.txt": shown.text, "job.json": data, "trace.json": trace_text(events_of(shown.job, shown.calls))}
    for name, text in texts.items():
        (place / name).write_text(text + "\n", encoding="utf-8")
    for record in shown.records:
        (place / f"record.{record.pid}").write_bytes(record.in_use().rstrip(b"\0"))
    for rank, flight in flights(shown.job).items():
        (place / "flight" / f"rank_{rank}").write_bytes(flight)
