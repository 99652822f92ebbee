"""`commlib debug`: what the ranks of a job on this host are in, who waits for whom, and which rank holds them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from commlib.debug.findings import findings_of
from commlib.debug.jobs import Job, ask_stacks, command_of, moments
from commlib.debug.record import Record
from commlib.debug.starting import LOG_S, Starting
from commlib.tools.cli.options import Result, Seconds, result_options
from commlib.tools.debug import slow as slow_job
from commlib.tools.debug.flight import flights
from commlib.tools.debug.host import jobs_here, starting_here, why_none
from commlib.tools.debug.page import brief, document, page, records_document, wrapped
from commlib.tools.report.formats import json_text

APART_S = 0.7  # between the two looks at a job


@click.command("debug")
@click.argument("job", type=click.IntRange(min=1), metavar="[JOB|PID]", required=False)
@click.option("--slow", is_flag=True, help="Watch a job that is slow: where its time goes, and who is late.")
@click.option("--time", "seconds", type=Seconds(), default="2s", help="How long --slow watches.")
@click.option("--sites/--no-sites", default=None, help="From now on, ranks record where in the program each call is.")
@click.option("--dump", type=click.Path(file_okay=False, path_type=Path), help="Save everything in this folder.")
@result_options
def debug(job: int | None, as_json: bool, output: Path | None, **options: Any) -> int:
    """Show what a job hangs in: commlib debug, from another shell, while the job runs.

    The job needs no preparation. JOB is the process of any of its ranks, or of what started them; without it, all jobs
    of this user on this host are shown, those in trouble first. The first lines name the rank that holds up the others,
    and what it does; then there is a line for each rank and communicator. Of ranks on other hosts it says where they
    are. --slow is for a job that is not stuck: which share of the time each rank waits, moves data and is in the
    program, and which rank is late.

    The document of --json has the findings; --dump also saves all records, and dumps for torch's flight recorder. The
    exit code is 3 if something is wrong.
    """
    jobs, starting = jobs_here(job), starting_here(job)
    if not jobs and not starting:
        raise click.ClickException(why_none(job))
    return 3 * _show_all(jobs, starting, Result(as_json, output), **options)


@dataclass
class Shown:
    """What there is to show of a job: text and data."""

    job: Job
    records: list[Record]
    text: str
    data: dict[str, Any]
    wrong: bool
    line: str = ""  # shown instead of the text, where nothing is wrong and there are other jobs


def _show_all(
    jobs: list[list[Record]],
    starting: list[Starting],
    result: Result,
    slow: bool,
    seconds: float,
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
    schema = {"schema": "commlib.debug.slow" if slow else "commlib.debug", "version": 3 if slow else 2}
    for at, one in enumerate(shown):
        if at and not shown[at - 1].line:
            result.say("")
        result.say(one.line or one.text)
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
        wrong = any(finding.serious for finding in findings)
        text = page(job, before, findings, partial(click.style, fg="red" if wrong else "yellow"))
        line = "" if wrong or len(jobs) == 1 else brief(job, before)
        yield Shown(job, records, text, document(job, before, findings), wrong, line)


def _slow(records: list[Record], seconds: float) -> Shown:
    job, slow = slow_job.watch(records, seconds)
    lines = slow_job.sentences(records, job, slow)
    text, data = slow_job.slow_page(job, slow, lines), slow_job.slow_document(job, slow, lines)
    return Shown(job, records, text, data, bool(slow.late))


def _dump(place: Path, shown: Shown, schema: Mapping[str, Any]) -> None:
    """Write a folder for the job: what was shown, and the record of each rank, as it is and for torch's analyser."""
    data = json_text({**schema, **shown.data, **records_document(shown.job)})
    (place / "flight").mkdir(parents=True, exist_ok=True)
    for name, text in {"page.txt": click.unstyle(shown.text), "job.json": data}.items():
        (place / name).write_text(text + "\n", encoding="utf-8")
    for record in shown.records:
        (place / f"record.{record.pid}").write_bytes(record.in_use().rstrip(b"\0"))
    for rank, flight in flights(shown.job).items():
        (place / "flight" / f"rank_{rank}").write_bytes(flight)
