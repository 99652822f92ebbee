"""`commlib doctor`: what is here, what works, and why something does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict

import click

from commlib.cli.checks import GROUPS, QUICK, Finding, Group

# A first import of torch from a cold disk takes many seconds; a probe that is longer than this hangs.
PROBE_TIMEOUT_S = 60.0
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


def run_all() -> Iterator[Finding]:
    """Yield every finding; the slow groups run side by side while the quick checks are made."""
    call = "from commlib.cli import checks; checks.report({!r})"
    probes = [Probe(group, [sys.executable, "-c", call.format(name)]) for name, group in GROUPS.items()]
    try:
        for check in QUICK:
            yield check()
        for probe in probes:
            yield from probe.findings()
    finally:
        for probe in probes:
            probe.kill()


class Probe:
    """A process that makes a group's checks beside the others, so that what it loads can crash or hang without us."""

    def __init__(self, group: Group, command: list[str]) -> None:
        self._group = group
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def findings(self) -> Iterator[Finding]:
        """Yield what it found; if it ended early, the topic that it was at is broken."""
        try:
            out, errors = self._process.communicate(timeout=PROBE_TIMEOUT_S)
            code = self._process.returncode
            last = (errors.strip() or "the probe ended early").splitlines()[-1]
            failure = f"died of {signal.Signals(-code).name}" if code < 0 else last
        except subprocess.TimeoutExpired:
            self.kill()
            out, _ = self._process.communicate()
            failure = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        found = [Finding(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
        yield from found
        for topic in list(self._group.checks)[len(found) : len(found) + 1]:
            yield self._group.crashed(topic, failure)

    def kill(self) -> None:
        """End the probe and everything it started; fine when it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
