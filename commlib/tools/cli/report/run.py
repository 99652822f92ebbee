"""The steps of a report: commands one after the other, each a process whose document stays in a folder."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from shutil import get_terminal_size
from threading import Event
from typing import Any

import click

from commlib.tools.report.document import Kind
from commlib.tools.report.files import write
from commlib.tools.report.formats import json_text
from commlib.tools.report.packed import packed
from commlib.tools.report.progress import Progress

KIND = Kind("commlib.report", 1, "commlib report", "commlib.tools.cli.report")
STATE = "report.json"
DONE, FAILED, INTERRUPTED = "done", "failed", "interrupted"
SCOPES = ("quick", "usual", "all")
LIMIT_S = {"quick": 600.0, "usual": 1200.0, "all": 3600.0}  # of one step: then it hangs
TICK_S = 0.2  # how often the time is shown, and Ctrl-C looked at
STOP_S = 20.0  # after Ctrl-C a step writes what it has
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINE = 300  # characters of the last line on stderr
COMM = "bench all_reduce --phases -n {ranks} {gpu} --format json"
PATHS = "plan explain all_reduce -n {ranks} {mode} --placement both --json --bytes"
KERNEL = "--no-compile --time 3", "", "--sweep"  # a quick one compiles nothing with torch
ATTENTION = "--no-compile --time 4", "", "--sweep"
SIZES = "1K,64K,1M", "8,1K,64K,1M,16M", "8,1K,16K,64K,256K,1M,4M,16M,64M"


@dataclass(frozen=True)
class Settings:
    """What is measured: how much, on how many ranks, and whether these are on GPUs."""

    scope: str
    ranks: int
    on_gpus: bool


@dataclass(frozen=True)
class Step:
    """A command that prints a document, and its further options for each scope."""

    title: str
    command: str
    options: tuple[str, str, str] = ("", "", "")

    def words(self, settings: Settings) -> list[str]:
        """Return the words of the command."""
        gpu = "--graph --dtype bfloat16" if settings.on_gpus else ""
        mode = "--mode graph --dtype bfloat16" if settings.on_gpus else ""
        text = f"{self.command} {self.options[SCOPES.index(settings.scope)]}"
        return text.format(ranks=settings.ranks, gpu=gpu, mode=mode).split()


STEPS = {
    "environment": Step("Environment", "doctor --json"),
    "correctness": Step("Correctness", "test -n {ranks} --json", ("--quick", "", "")),
    "collectives": Step(
        "Collectives",
        "bench -n {ranks} {gpu} --format json",
        ("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300"),
    ),
    "comm": Step("Phases of one all_reduce", COMM, ("--time 3", "", "--time 20")),
    "paths": Step("Other sizes of all_reduce", PATHS, SIZES),
    "index": Step("Kernel: index", "bench index --json", (f"--dim 4096 -n 1,64,1024,16384 {KERNEL[0]}", *KERNEL[1:])),
    "store": Step("Kernel: store", "bench store --json", (f"--dim 1024 -n 1,64,512,4096 {KERNEL[0]}", *KERNEL[1:])),
    "metadata": Step("Kernel: metadata", "bench metadata --json", KERNEL),
    "attention": Step("Attention: decoding", "bench attention --phase=decode --compare --json", ATTENTION),
    "prefill": Step("Attention: prompts", "bench attention --phase=prefill --compare --json", ATTENTION),
    "radix": Step("Radix cache", "bench radix --json", ("--time 3 --leaves 10000", "", "--time 30")),
    "plan": Step("Plan", "plan show -n {ranks} --json"),
}


class Folder:
    """What a report has measured, so that a second run goes on: NAME.json of each step, and how the steps ended."""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        self.path = path
        if (path / STATE).exists():
            self.state = KIND.read(path / STATE)
        elif settings is None:
            raise ValueError(f"{path} has no {STATE}; name the folder that `commlib report -o` wrote")
        else:
            head = {"schema": KIND.name, "version": KIND.version}
            self.state = {**head, "settings": asdict(settings), "stages": {}}
        self.settings = Settings(**self.state["settings"])

    @property
    def ended(self) -> dict[str, dict[str, Any]]:
        """How each step that was begun ended, in the order of the table."""
        return {name: self.state["stages"][name] for name in STEPS if name in self.state["stages"]}

    def has(self, name: str) -> bool:
        """Say whether a step is measured."""
        return bool(self.ended.get(name, {}).get("state") == DONE)

    def file(self, name: str) -> Path:
        """Return where the document of a step is."""
        return self.path / f"{name}.json"

    def save(self, name: str, ended: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
        """Write how a step ended, after its document if it has one."""
        if document is not None:
            write(self.file(name), packed([document]) if "rows" in document else json_text(document))
        self.state["stages"][name] = dict(ended)
        write(self.path / STATE, json.dumps(self.state, indent=1))


def measure(folder: Folder, names: Sequence[str]) -> bool:
    """Run these steps; return whether Ctrl-C ended it."""
    progress = Progress(len(names), get_terminal_size().columns)
    with _ctrl_c() as asked:
        for done, name in enumerate(names):
            words = STEPS[name].words(folder.settings)
            if name == "paths" and folder.file("collectives").exists():
                words += ["--results", str(folder.file("collectives"))]
            deadline = time.monotonic() + LIMIT_S[folder.settings.scope]
            ended, document = _step(words, deadline, asked, lambda at=(done, name): progress.show(*at))
            folder.save(name, ended, document)
            progress.clear()
            code = f", exit code {ended['code']}" if ended["code"] else ""
            why = f": {ended['said']}" if ended["said"] else ""
            click.echo(f"{name:<12} {ended['state']} in {ended['seconds']:.0f} s{code}{why}")
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

    heard = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, ask) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _step(words: Sequence[str], deadline: float, asked: Event, show: Any) -> tuple[dict[str, Any], Any]:
    """Run a command of commlib; return how it ended and the document that it printed, None if it printed none."""
    start, created = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "commlib", *words]
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
    return {
        "state": state,
        "command": shlex.join(["commlib", *words]),
        "code": code,
        "seconds": round(time.monotonic() - start, 1),
        "said": why if state == FAILED else "",
        "created": created,
    }, document


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _document(text: str) -> Any:
    """Return the document in what was printed; a library may have printed something else before or after it."""
    start = re.search(r"^\{", text, re.MULTILINE)
    with suppress(json.JSONDecodeError):
        return json.JSONDecoder().raw_decode(text, start.start())[0] if start else None
    return None
