"""`commlib debug`: what the ranks of a job on this host are in, who waits for whom, and which rank keeps it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from commlib.debug.record import Record

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
@click.option("--dump", type=click.Path(file_okay=False, path_type=Path), help="Keep everything in this folder.")
@click.option("--sites/--no-sites", default=None, help="Have the ranks keep the place of each call from now on.")
@click.option("--native", is_flag=True, help="Show native stacks too, with py-spy, gdb or eu-stack; takes seconds.")
def debug(job: int | None, watch: bool, as_json: bool, dump: Path | None, sites: bool | None, native: bool) -> int:
    """Say what the ranks of JOB are in: commlib debug, from another shell, while the job runs.

    The job needs no preparation. JOB is the process of any of its ranks, or of what started them; without it, all jobs
    of this user on this host are shown. First it says in words which rank keeps the others, and what that rank does;
    then there is a line for each rank and communicator.

    The exit code is 3 if something is wrong.
    """
    from commlib.debug.jobs import jobs_here

    while True:
        jobs = jobs_here(job)
        if not jobs:
            whose = "of this user on this host" if job is None else f"of process {job}"
            raise click.ClickException(f"no job {whose} has a communicator that `commlib debug` can read")
        if watch:
            click.clear()
        wrong = [_show(records, as_json, dump, sites, native) for records in jobs]
        if not watch:
            return 3 * any(wrong)
        time.sleep(WATCH_S)


def _show(records: list[Record], as_json: bool, dump: Path | None, sites: bool | None, native: bool) -> bool:
    """Show one job; say whether something is wrong."""
    from commlib.debug import document, findings_of, page
    from commlib.debug.jobs import moments

    if sites is not None:
        for record in records:
            record.keep_sites(sites)
    before, job = moments(records, APART_S)
    findings = findings_of(job, before)
    job.ask_stacks(list(job.ranks))
    text, data = page(job, before, findings), json.dumps(document(job, before, findings), default=str)
    click.echo(data if as_json else text)
    suspects = {pid for finding in findings for pid in finding.threads} or set(job.ranks)
    stacks = {pid: native_stack(pid) for pid in sorted(suspects) if native}
    for pid, stack in stacks.items():
        click.echo(f"\nrank {job.ranks[pid].number} (process {pid}):\n{stack}", err=as_json)
    if dump is not None:
        _dump(dump, job.number, records, {"page.txt": text, "job.json": data})
    for record in records:
        record.close()
    return any(finding.serious for finding in findings)


def native_stack(pid: int) -> str:
    """Return what the first tool that is here says."""
    for tool, words in _NATIVE.items():
        if path := shutil.which(tool):
            try:
                ran = subprocess.run(
                    [path, *words, str(pid)], capture_output=True, text=True, timeout=NATIVE_S, check=False
                )
            except subprocess.TimeoutExpired:
                return f"{tool} took longer than {NATIVE_S:g} s"
            return ran.stdout or ran.stderr
    return f"none of {', '.join(_NATIVE)} is here"


def _dump(folder: Path, number: int, records: list[Record], texts: dict[str, str]) -> None:
    """Write a folder for the job: what was shown, and the record of each rank as it is."""
    place = folder / str(number)
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(text + "\n", encoding="utf-8")
    for record in records:
        data = Path(f"/proc/self/fd/{record.fd}").read_bytes().rstrip(b"\0")
        (place / f"record.{record.pid}").write_bytes(data)
