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
from typing import Any

import click

from commlib.tools.cli.doctor.checks import GROUPS, Check, Finding, broken, main_job
from commlib.tools.cli.options import Result, result_options
from commlib.version import __version__

COLOURS = {"ok": "green", "warning": "yellow", "broken": "red"}
JOBS = {"nccl": "ranks on GPUs", "shm": "ranks on CPUs over shared memory", "torch": "ranks over torch.distributed"}
# A first import of torch from a cold disk, or eight ranks on GPUs, take many seconds; a longer probe hangs.
PROBE_TIMEOUT_S = 120.0
PROBE = "from commlib.tools.cli.doctor import command; command.print_group({!r}, {!r})"


@click.command()
@result_options
@click.pass_context
def doctor(ctx: click.Context, /, **where: Any) -> None:
    """Check what works on this machine, and how to mend the rest.

    ok: it works. warning: it works, but read on. broken: it does not work. The text after an arrow is the remedy.

    The exit code is 0 if commlib will run here, and 1 if something that it needs is broken. What it needs
    depends on the ranks that commlib.init() starts: on GPUs if there are any, else on CPUs, unless COMMLIB_BACKEND
    selects another backend.
    """
    job, columns, result, findings = main_job(), get_terminal_size().columns, Result(**where), list[Finding]()
    for finding in run_all(job):
        findings.append(finding)
        text = "\n".join(finding.lines(columns))
        result.say(text.replace(finding.state, click.style(finding.state, fg=COLOURS[finding.state]), 1))
    bad = [finding.topic for finding in findings if finding.needed and finding.state == "broken"]
    rows = [asdict(finding) for finding in findings]
    head = {"schema": "commlib.doctor", "version": 1, "commlib": __version__, "job": job, "runs": not bad}
    end = f"cannot run commlib before this is mended: {', '.join(bad)}" if bad else "can run commlib"
    result.say(f"\nThis machine {click.style(end, fg='red' if bad else 'green')} ({JOBS[job]}).")
    result.finish({**head, "findings": rows}, rows)
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
