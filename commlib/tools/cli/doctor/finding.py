"""Finding: what a check found, and what to do about it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from commlib import env
from commlib.errors import one_line

TOPIC, STATE = 16, 7  # columns
DEVICES = Path("/dev")


@dataclass(frozen=True)
class Finding:
    """One line of the report: `needed` ones decide the exit code; `table` has fixed columns and stands below."""

    state: str  # ok, warning (it works, but read this), missing or broken
    detail: str
    remedy: str = ""
    table: tuple[str, ...] = ()
    topic: str = ""
    needed: bool = False

    @property
    def fails(self) -> bool:
        """Say whether the main job cannot run because of this."""
        return self.needed and self.state in ("missing", "broken")

    def lines(self, width: int) -> list[str]:
        """Return what is shown, no wider than the terminal."""
        room = max(width - TOPIC - STATE - 2, 20)
        parts = [*textwrap.wrap(home_as_tilde(self.detail), room, break_on_hyphens=False), *self.table]
        parts += textwrap.wrap(home_as_tilde(self.remedy), room, initial_indent="→ ", subsequent_indent="  ")
        heads = [f"{self.topic:<{TOPIC}} {self.state:<{STATE}}"]
        heads += [" " * (TOPIC + STATE + 1)] * (len(parts) - 1)
        return [f"{head} {part}"[:width] for head, part in zip(heads, parts, strict=True)]


ok, warning, missing, broken = (partial(Finding, state) for state in ("ok", "warning", "missing", "broken"))


class Check(NamedTuple):
    """One row of the table of checks.

    `job` says who needs it: "any" job, "nccl" or "shm" alone, or "" for none; a check of "nccl" is made only if that is
    the main job. `remedy` is what to do if the check itself crashes or hangs.
    """

    topic: str
    run: Callable[[], Finding | list[Finding]]
    job: str = ""
    remedy: str = ""

    def findings(self, job: str) -> list[Finding]:
        """Make the check, and return what it found."""
        try:
            found = self.run()
        except Exception as error:
            return [self.crashed(one_line(error), job)]
        return [self._told(finding, job) for finding in (found if isinstance(found, list) else [found])]

    def crashed(self, how: str, job: str) -> Finding:
        """Return the finding of a check that did not come to its own."""
        return self._told(broken(how, self.remedy), job)

    def _told(self, finding: Finding, job: str) -> Finding:
        """Return a finding with its topic, and whether the main job needs it."""
        return replace(finding, topic=self.topic, needed=self.job in ("any", job))


def main_job() -> str:
    """Name the backend of the job that this machine is for: what COMMLIB_BACKEND says, else nccl if it shows GPUs."""
    try:
        asked = env.BACKEND.get()
    except ValueError:  # the environment's own check says so
        asked = "auto"
    if asked != "auto":
        return asked
    return "nccl" if has_gpus() else "shm"


def has_gpus() -> bool:
    """Say whether NVIDIA's driver shows this process a GPU."""
    return not env.hides_gpus() and any(DEVICES.glob("nvidia[0-9]*"))


def home_as_tilde(text: str) -> str:
    """Write the home folder as ~, which is shorter and says no name."""
    home = env.foreign("HOME")
    return text.replace(f"{home}/", "~/") if len(home) > 1 else text


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as it stands in the document."""
    return {**asdict(finding), "table": list(finding.table)}


def from_json(read: dict[str, Any]) -> Finding:
    """Return a finding that a probe wrote."""
    return Finding(**{**read, "table": tuple(read["table"])})
