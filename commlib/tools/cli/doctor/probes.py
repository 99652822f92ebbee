"""Probes: a process for each group of checks, so that what they load can crash or hang without us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from commlib.tools.cli.doctor import GROUPS, QUICK
from commlib.tools.cli.doctor.finding import Check, Finding, as_json, from_json, main_job

# A first import of torch from a cold disk, or eight ranks on GPUs, take many seconds; a longer probe hangs.
PROBE_TIMEOUT_S = 120.0


def report(name: str) -> None:
    """Print a group's findings, a line for each check, before the next is tried: what is not there is what crashed."""
    job = main_job()
    for check in _made(GROUPS[name], job):
        print(json.dumps([as_json(finding) for finding in check.findings(job)]), flush=True)


def run_all() -> Iterator[Finding]:
    """Yield every finding; the slow groups run side by side while the quick checks are made."""
    job = main_job()
    call = "from commlib.tools.cli.doctor import probes; probes.report({!r})"
    checks = {name: made for name, group in GROUPS.items() if (made := _made(group, job))}
    probes = [Probe(made, [sys.executable, "-c", call.format(name)], job) for name, made in checks.items()]
    try:
        for check in QUICK:
            yield from check.findings(job)
        for probe in probes:
            yield from probe.findings()
    finally:
        for probe in probes:
            probe.kill()


def _made(checks: Sequence[Check], job: str) -> list[Check]:
    """Return the checks that are made: what only GPUs need is not looked at where the main job uses none."""
    return [check for check in checks if check.job != "nccl" or job == "nccl"]


class Probe:
    """A process that makes a group's checks beside the others."""

    def __init__(self, checks: Sequence[Check], command: list[str], job: str) -> None:
        self._checks, self._job = checks, job
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
        found = [json.loads(line) for line in out.splitlines() if line.startswith("[{")]
        yield from (from_json(finding) for of_check in found for finding in of_check)
        for check in self._checks[len(found) : len(found) + 1]:
            yield check.crashed(failure, self._job)

    def kill(self) -> None:
        """End the probe and everything it started; fine when it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
