"""Run: the stages one after the other, each a process of its own, whose document is kept whatever ends it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from threading import Event
from typing import Any

import click

from commlib.tools.cli.report import SCOPES, STAGES, Stage
from commlib.tools.cli.report.folder import DONE, FAILED, INTERRUPTED, Folder
from commlib.tools.report.progress import Progress

TICK_S = 0.2  # how often the time that is left is shown, and Ctrl-C looked at
LIMIT_S, LIMIT = 300.0, 6  # a stage has so long, and so many times what it is said to take: then it hangs
STOP_S = 20.0  # after Ctrl-C a stage keeps what it has
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINE = 300  # characters of what a stage said last


def measure(folder: Folder, names: Sequence[str]) -> bool:
    """Measure these stages; return whether Ctrl-C ended it."""
    scope = SCOPES.index(folder.settings.scope)
    seconds = [STAGES[name].seconds[scope] for name in names]
    progress = Progress(len(names), get_terminal_size().columns, seconds=seconds)
    with _ctrl_c() as asked:
        for done, name in enumerate(names):
            if asked.is_set():
                break
            words = _words(folder, STAGES[name])
            wait = Wait(time.monotonic() + LIMIT_S + LIMIT * seconds[done], asked, partial(progress.show, done, name))
            ended, document = stage(words, wait)
            folder.keep(name, ended, document)
            progress.clear()
            click.echo(_line(name, ended))
    return asked.is_set()


def _words(folder: Folder, stage: Stage) -> list[str]:
    results, words = folder.file(stage.results_of), stage.words(folder.settings)
    return [*words, "--results", str(results)] if stage.results_of and results.exists() else words


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """Take the first Ctrl-C, or end of a session, as a question, in the middle of nothing; a second one ends us."""
    asked = Event()

    def ask(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in ENDS}
    heard = [number for number in ENDS if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _line(name: str, ended: dict[str, Any]) -> str:
    code = f", exit code {ended['code']}" if ended["code"] else ""
    said = f": {ended['said']}" if ended["state"] == FAILED and ended["said"] else ""
    return f"{name:<12} {ended['state']} in {ended['seconds']:.0f} s{code}{said}"


@dataclass(frozen=True)
class Wait:
    """Until when a stage may run, whether it is asked to stop, and what shows meanwhile how far the run is."""

    deadline: float
    asked: Event
    show: Callable[[], None]

    def over(self) -> str:
        """Say why the stage is ended now, "" as long as it is not."""
        if self.asked.is_set():
            return INTERRUPTED
        return "no end in the time that it has" if time.monotonic() > self.deadline else ""


def stage(words: Sequence[str], wait: Wait) -> tuple[dict[str, Any], Any]:
    """Run a command of commlib; return how it ended and the document that it printed, None if it printed none."""
    start, created = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "commlib", *words]
        # A session of its own: Ctrl-C is passed on once, and what it started ends with it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True)
        code, how = _ended(process, wait)
        document, said = _document(_text(out)), how or _last_line(_text(errors))
    whole = document is not None and document.get("complete", True) and code >= 0
    state = INTERRUPTED if how == INTERRUPTED else DONE if whole else FAILED
    ended = {
        "state": state,
        "command": shlex.join(["commlib", *words]),
        "code": code,
        "seconds": round(time.monotonic() - start, 1),
        "said": "" if state == DONE else said,
        "created": created,
    }
    return ended, document


def _ended(process: subprocess.Popen[bytes], wait: Wait) -> tuple[int, str]:
    """Wait for the end; return the exit code, and what ended it if that was not itself."""
    how = ""
    try:
        while process.poll() is None and not (how := wait.over()):
            wait.show()
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK_S)
        if how == INTERRUPTED:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)
                process.wait(STOP_S)
    finally:
        with suppress(ProcessLookupError):  # whatever is left of it, ranks included
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), how


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _document(text: str) -> Any:
    """Return the document in what was printed; a library may have printed something else before or after it."""
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line.startswith("{")), len(lines))
    try:
        found, _ = json.JSONDecoder().raw_decode("".join(lines[start:]))
    except json.JSONDecodeError:
        return None
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[-LINE:] if lines else "it printed no document"


def look(folder: Folder, tool: str) -> None:
    """Have Nsight's tool look at one call of each kernel, and of a collective; its command is kept, run or not."""
    ranks = str(folder.settings.ranks)
    asked = [
        ["profile", "index", "--dim", "4096", "-n", "1024"],
        ["profile", "store", "--dim", "1024", "-n", "512"],
        ["profile", "metadata", "-n", "64"],
        ["profile", "attention"],
        ["bench", "all_reduce", "-n", ranks, "--sizes", "1M", "--dtype", "bfloat16", "--algorithms", "auto"],
    ]
    folder.state["looks"] = [each for each in folder.state["looks"] if each["tool"] != tool]
    for words in asked:
        folder.state["looks"].append(_looked(folder.path, tool, [*words, f"--{tool}"]))
        folder.save()


def _looked(path: Path, tool: str, words: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "commlib", *words],
        cwd=path,  # where the tool writes its file
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    command = next(iter(done.stdout.splitlines()), "")
    said = "" if done.returncode == 0 else _last_line(done.stderr)
    click.echo(command)
    click.echo(f"commlib: {said}" if said else f"kept in {path}", err=True)
    asked = shlex.join(["commlib", *words])
    return {"tool": tool, "asked": asked, "command": command, "code": done.returncode, "said": said}
