"""`commlib doctor`: runs the checks, each group in a process that may crash or hang, and prints the findings."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from shutil import get_terminal_size
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

import click

from commlib.tools.cli.doctor import Check, Finding, broken, main_job
from commlib.tools.cli.doctor.checks import GROUPS
from commlib.tools.report.document import Kind
from commlib.version import __version__

KIND = Kind("commlib.doctor", 1, "commlib doctor --json", "commlib.tools.cli.doctor")
COLOURS = {"ok": "green", "warning": "yellow", "missing": "yellow", "broken": "red"}
JOBS = {"nccl": "ranks on GPUs", "shm": "ranks on CPUs over shared memory", "torch": "ranks over torch.distributed"}
# A first import of torch from a cold disk, or eight ranks on GPUs, take many seconds; a longer probe hangs.
PROBE_TIMEOUT_S = 120.0
PROBE = "from commlib.tools.cli.doctor import command; command.print_group({!r}, {!r})"


@click.command()
@click.option("--json", "as_document", is_flag=True, help="Print a JSON document instead of lines.")
@click.pass_context
def doctor(ctx: click.Context, as_document: bool) -> None:
    """Say what is here, what works, and why something does not.

    ok: it works. warning: it works, but read on. missing: it is not here. broken: it is, and does not work. What stands
    behind an arrow is what to do about it.

    Exit code 0: the main job will run; 1: something that it needs is missing or broken. The main job is the one that
    commlib.init() starts: ranks on GPUs if there are any, else ranks on CPUs; COMMLIB_BACKEND says another.
    """
    findings, job = [], main_job()
    for finding in run_all(job):
        findings.append(finding)
        if not as_document:
            text = "\n".join(finding.lines(get_terminal_size().columns))
            click.echo(text.replace(finding.state, click.style(finding.state, fg=COLOURS[finding.state]), 1))
    bad = [finding.topic for finding in findings if finding.needed and finding.state in ("missing", "broken")]
    if as_document:
        head = {"schema": KIND.name, "version": KIND.version, "commlib": __version__, "job": job, "runs": not bad}
        click.echo(json.dumps({**head, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        end = f"\nwill not run before this is put right: {', '.join(bad)}." if bad else " will run."
        click.echo(f"\nThe main job, {JOBS[job]},{end}")
    ctx.exit(1 if bad else 0)


def run_all(job: str) -> Iterator[Finding]:
    """Yield the findings of all groups, which run next to each other, each in a session for it and its children."""
    probes = {}
    for name in GROUPS:
        command = [sys.executable, "-c", PROBE.format(name, job)]
        probes[name] = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
    try:
        for name, probe in probes.items():
            yield from findings_of(probe, GROUPS[name], job)
    finally:
        for probe in probes.values():
            if probe.poll() is None:
                os.killpg(probe.pid, signal.SIGKILL)


def print_group(name: str, job: str) -> None:
    """Print the findings of a group, one line a check: the first check that has no line crashed or hangs."""
    for check in GROUPS[name]:
        print(json.dumps([asdict(finding) for finding in check.findings(job)]), flush=True)


def findings_of(probe: Popen[str], checks: Sequence[Check], job: str) -> Iterator[Finding]:
    """Yield what a probe prints; if it ends early or hangs, the check that it was at is broken."""
    try:
        out, errors = probe.communicate(timeout=PROBE_TIMEOUT_S)
        code, last = probe.returncode, (errors.strip() or "the probe ended early").splitlines()[-1]
        failure = f"died of {signal.Signals(-code).name}" if code < 0 else last
    except TimeoutExpired:
        os.killpg(probe.pid, signal.SIGKILL)
        out, _ = probe.communicate()
        failure = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
    finished = [json.loads(line) for line in out.splitlines() if line.startswith(("[]", "[{"))]
    yield from (Finding(**fields) for of_check in finished for fields in of_check)
    for check in checks[len(finished) : len(finished) + 1]:
        yield check.named(broken(failure, check.remedy), job)
