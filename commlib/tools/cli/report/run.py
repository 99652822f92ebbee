"""A run of a report: commands one after the other, each a process whose document stays in a folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from shutil import get_terminal_size
from threading import Event
from typing import Any, Literal, get_args

import click

from commlib.tools.cli.report.steps import STEPS, Settings
from commlib.tools.report.document import Kind
from commlib.tools.report.files import write
from commlib.tools.report.formats import json_text
from commlib.tools.report.packed import packed
from commlib.tools.report.progress import Progress

STATE = "report.json"
How = Literal["done", "failed", "interrupted"]
DONE, FAILED, INTERRUPTED = get_args(How)
COLOURS = {DONE: "green", FAILED: "red", INTERRUPTED: "yellow"}
LIMIT_S = {"quick": 600.0, "usual": 1200.0, "all": 3600.0}  # of one step: then it hangs
TICK_S = 0.2  # how often the time is shown, and Ctrl-C looked at
STOP_S = 20.0  # after Ctrl-C a step writes what it has
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINE = 300  # characters of the last line on stderr


@dataclass(frozen=True)
class Ended:
    """How a step ended; `why` it failed is its last line on stderr."""

    state: How
    command: str
    code: int  # below 0: the signal that ended it
    seconds: float
    why: str
    created: str  # ISO 8601, UTC


@dataclass
class State:
    """How far a folder is; the document of a step is NAME.json in it."""

    schema: str
    version: int
    settings: Settings
    steps: dict[str, Ended]


KIND = Kind("commlib.report", 2, "commlib report", of=State)


class Folder:
    """What a report has measured, so that a second run goes on."""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        self.path, self.ended = path, dict[str, Ended]()
        if (path / STATE).exists():
            state = KIND.read(path / STATE)
            settings = Settings(**state["settings"])
            steps = {name: Ended(**fields) for name, fields in state["steps"].items()}
            self.ended = {name: steps[name] for name in STEPS if name in steps}
        if settings is None:
            raise ValueError(f"{path} has no {STATE}; name the folder that `commlib report -o` wrote")
        self.settings = settings

    def has(self, name: str) -> bool:
        return name in self.ended and self.ended[name].state == DONE

    def file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def save(self, name: str, ended: Ended, document: Any) -> None:
        if document is not None:
            write(self.file(name), packed([document]) if "rows" in document else json_text(document))
        self.ended[name] = ended
        write(self.path / STATE, json_text(asdict(State(KIND.name, KIND.version, self.settings, self.ended))))


def measure(folder: Folder, names: Sequence[str]) -> bool:
    """Run these steps; return whether Ctrl-C ended it."""
    progress = Progress(len(names), get_terminal_size().columns)
    with _ctrl_c() as asked:
        for done, name in enumerate(names):
            arguments = STEPS[name].arguments(folder.settings)
            deadline = time.monotonic() + LIMIT_S[folder.settings.scope]
            ended, document = _step(arguments, deadline, asked, lambda at=(done, name): progress.show(*at))
            folder.save(name, ended, document)
            progress.clear()
            code = f", exit code {ended.code}" if ended.code else ""
            why = f": {ended.why}" if ended.why else ""
            click.echo(
                f"{name:<12} {click.style(ended.state, fg=COLOURS[ended.state])} in {ended.seconds:.0f} s{code}{why}"
            )
            if asked.is_set():
                break
    return asked.is_set()


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """Take the first Ctrl-C, or end of a session, as a question, in the middle of nothing; a second one ends us."""
    asked = Event()

    def ask(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, before[number])

    handled = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, ask) for number in handled}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _step(arguments: Sequence[str], deadline: float, asked: Event, show: Any) -> tuple[Ended, Any]:
    """Run a command of commlib; return how it ended and the document that it printed, None if it printed none."""
    start, created = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "commlib", *arguments]
        # A session of its own: Ctrl-C is passed on once, and what it started ends with it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True)
        try:
            while process.poll() is None and not asked.is_set() and time.monotonic() < deadline:
                show()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
            hangs = process.poll() is None and not asked.is_set()
            if asked.is_set():
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGINT)
                    process.wait(STOP_S)
        finally:
            with suppress(ProcessLookupError):  # whatever is left of it, ranks included
                os.killpg(process.pid, signal.SIGKILL)
        code, document, last = process.wait(), _document(_text(out)), _text(errors).strip().splitlines()[-1:]
    whole = document is not None and document.get("complete", True) and code >= 0
    state = INTERRUPTED if asked.is_set() and not whole else DONE if whole else FAILED
    why = "no end in the time that it has" if hangs else "".join(last)[-LINE:] or "it printed no document"
    seconds = round(time.monotonic() - start, 1)
    line = shlex.join(["commlib", *arguments])
    return Ended(state, line, code, seconds, why if state == FAILED else "", created), document


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _document(text: str) -> Any:
    """Return the document in what was printed; a library may have printed something else before or after it."""
    start = re.search(r"^\{", text, re.MULTILINE)
    with suppress(json.JSONDecodeError):
        return json.JSONDecoder().raw_decode(text, start.start())[0] if start else None
    return None
