"""`commlib doctor`: what is here, what works, and why something does not."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from commlib.cli.checks import Finding, run_all

_COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of findings instead of lines.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what is here, what works, and why something does not.

    Exit code 1 when something that commlib needs is missing or broken; what is only optional does not count.
    """
    findings = []
    for finding in run_all():
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    bad = [finding.topic for finding in findings if finding.needed and finding.state != "ok"]
    verdict = f"needed, and not working: {', '.join(bad)}" if bad else "everything commlib needs works"
    if not as_json:
        click.echo(f"\n{verdict}")
    ctx.exit(1 if bad else 0)


def _show(finding: Finding) -> None:
    state = click.style(f"{finding.state:<8}", fg=_COLOURS[finding.state])
    click.echo(f"{finding.topic:<15} {state} {finding.detail}")
    if finding.remedy:
        click.echo(f"{'':<15} {'':<8} → {finding.remedy}")
