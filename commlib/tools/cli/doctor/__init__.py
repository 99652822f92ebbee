"""What `commlib doctor` consists of: a Check returns Findings, and the main job decides which of them it needs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from commlib import env
from commlib.errors import one_line

TOPIC, STATE = 16, 7  # columns
DEVICES = Path("/dev")


@dataclass(frozen=True)
class Finding:
    """One line of the output, as it stands in the document."""

    state: str  # ok, warning (it works, but read this), missing or broken
    detail: str
    remedy: str = ""
    topic: str = ""
    needed: bool = False

    def lines(self, width: int) -> list[str]:
        room = max(width - TOPIC - STATE - 2, 20)
        parts = textwrap.wrap(home_as_tilde(self.detail), room, break_on_hyphens=False)
        parts += textwrap.wrap(home_as_tilde(self.remedy), room, initial_indent="→ ", subsequent_indent="  ")
        indent = " " * (TOPIC + STATE + 2)
        return [f"{self.topic:<{TOPIC}} {self.state:<{STATE}} {parts[0]}", *(indent + part for part in parts[1:])]


ok, warning, missing, broken = (partial(Finding, state) for state in ("ok", "warning", "missing", "broken"))


class Check(NamedTuple):
    """One row of the table of checks."""

    topic: str
    run: Callable[[], Finding | list[Finding]]
    job: str = ""  # that needs it: "any", "shm", "nccl" (it is run for no other one), "" for none
    remedy: str = ""  # if the check itself crashes or hangs

    def findings(self, job: str) -> list[Finding]:
        """Run the check, unless the main job has no use for it."""
        if self.job == "nccl" != job:
            return []
        try:
            results = self.run()
        except Exception as error:
            results = broken(one_line(error), self.remedy)
        return [self.named(result, job) for result in (results if isinstance(results, list) else [results])]

    def named(self, finding: Finding, job: str) -> Finding:
        return replace(finding, topic=self.topic, needed=self.job in ("any", job))


def main_job() -> str:
    """Name the backend of the job that this machine is for: COMMLIB_BACKEND, else nccl if there are GPUs, else shm."""
    try:
        backend = env.BACKEND.get()
    except ValueError:  # the check of the environment reports it
        backend = "auto"
    return backend if backend != "auto" else "nccl" if has_gpus() else "shm"


def has_gpus() -> bool:
    return not env.hides_gpus() and any(DEVICES.glob("nvidia[0-9]*"))


def home_as_tilde(text: str) -> str:
    """Write the home folder as ~, which is shorter and hides the user's name."""
    home = env.foreign("HOME")
    return text.replace(f"{home}/", "~/") if len(home) > 1 else text
