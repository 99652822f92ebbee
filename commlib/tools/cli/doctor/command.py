"""`commlib doctor`: what is here, what works, why something does not, and what to do about it."""

from __future__ import annotations

import json
from shutil import get_terminal_size
from typing import Any

import click

from commlib.tools.cli.doctor.finding import STATE, TOPIC, Finding, as_json, main_job
from commlib.tools.report.document import Kind
from commlib.version import __version__

KIND = Kind("commlib.doctor", 1, "commlib doctor --json", "commlib.tools.cli.doctor")
COLOURS = {"ok": "green", "warning": "yellow", "missing": "yellow", "broken": "red"}
JOBS = {"nccl": "ranks on GPUs", "shm": "ranks on CPUs over shared memory", "torch": "ranks over torch.distributed"}


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
    from commlib.tools.cli.doctor.probes import run_all

    findings, job = [], main_job()
    for finding in run_all():
        findings.append(finding)
        if not as_document:
            _show(finding)
    if as_document:
        click.echo(json.dumps(document(findings, job), indent=2))
    else:
        click.echo(f"\n{verdict(findings, job)}")
    ctx.exit(1 if any(finding.fails for finding in findings) else 0)


def document(findings: list[Finding], job: str) -> dict[str, Any]:
    """Return what --json prints; schema.json says what is in it."""
    return {
        "schema": KIND.name,
        "version": KIND.version,
        "commlib": __version__,
        "job": job,
        "runs": not any(finding.fails for finding in findings),
        "findings": [as_json(finding) for finding in findings],
    }


def verdict(findings: list[Finding], job: str) -> str:
    """Say whether the main job will run."""
    bad = [finding.topic for finding in findings if finding.fails]
    what = f"The main job, {JOBS[job]},"
    return f"{what}\nwill not run before this is put right: {', '.join(bad)}." if bad else f"{what} will run."


def _show(finding: Finding) -> None:
    first, *rest = finding.lines(get_terminal_size().columns)
    state = slice(TOPIC + 1, TOPIC + 1 + STATE)
    colour = click.style(first[state], fg=COLOURS[finding.state])
    click.echo("\n".join([first[: state.start] + colour + first[state.stop :], *rest]))
