"""`commlib report`: run commands one after the other, keep each document in a folder, and write pages of them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from commlib.tools.cli.options import read_names
from commlib.tools.cli.ranks import command_line as typed
from commlib.tools.cli.run import default_ranks
from commlib.tools.report.run import first_signal_interrupts

COLOURS = {"done": "green", "failed": "red", "interrupted": "yellow"}
LIMIT_S = {"quick": 600.0, "usual": 1200.0, "all": 3600.0}  # of one step: then it hangs
STOP_S, STOP_SIGNALS = 4.0, 5  # after Ctrl-C a step writes what it has: the time between signals, and how many
INTERRUPTED = 130
MPIEXEC = Path(sys.executable).with_name("mpiexec")  # of the extra mpi: collectives are measured next to MPI, too
SCOPES = ("quick", "usual", "all")


@dataclass(frozen=True)
class Settings:
    """What is measured: how much, on how many ranks, and whether these are on GPUs."""

    scope: str
    ranks: int
    on_gpus: bool


@dataclass(frozen=True)
class Step:
    """A command that writes a document, and its further options for each scope."""

    title: str
    command: str
    options: tuple[str, str, str] = ("", "", "")

    def arguments(self, settings: Settings) -> list[str]:
        gpu = "--graph --dtype bfloat16" if settings.on_gpus else ""
        text = f"{self.command} {self.options[SCOPES.index(settings.scope)]}"
        return text.format(ranks=settings.ranks, gpu=gpu).split()


def _kernel(title: str, arguments: str, quick: str) -> Step:
    return Step(title, f"bench {arguments}", (f"{quick} --time 3", "", "--sweep"))


BENCH = ("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300")
STEPS = {  # in the order of the page
    "collectives": Step("Collectives", "bench -n {ranks} {gpu} --format table", BENCH),
    "index": _kernel("Kernel: index", "index", "--dim 4096 --rows 1,64,1024,16384"),
    "store": _kernel("Kernel: store", "store", "--dim 1024 --rows 1,64,512,4096"),
    "metadata": _kernel("Kernel: metadata", "metadata", ""),
    "attention": _kernel("Attention", "attention", ""),
    "radix": Step("Radix cache", "bench radix", ("--leaves 10000 --time 3", "", "--time 30")),
    "plan": Step("Plan", "plan show -n {ranks}"),
    "correctness": Step("Correctness", "test -n {ranks}", ("--quick", "", "")),
    "environment": Step("Environment", "doctor"),
}


@click.command()
@click.option("--quick", "scope", flag_value="quick", default=None, help="Few sizes: about three minutes.")
@click.option("--all", "scope", flag_value="all", help="Every size and pattern: up to an hour.")
@click.option("-n", "--ranks", type=click.IntRange(1), help="Ranks of collectives.  [default: one for each GPU, or 2]")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder to write; what it has stays, and the run goes on from there.",
)
@click.option("--only", metavar="A,B", help=f"Measure only these steps: {', '.join(STEPS)}.")
@click.pass_context
def report(ctx: click.Context, /, output: Path, only: str | None, scope: str | None, ranks: int | None) -> None:
    """Measure this machine from end to end, and write report.html and a Markdown file for each step.

    Each step is a command of commlib, whose JSON document stays in the folder. Ctrl-C keeps what is done, and the same
    command goes on from there. A step that fails does not stop the others: the report names it, and the exit code is 1.
    """
    from commlib import backends
    from commlib.tools.cli.report.pages import BAD, write_pages

    wanted = STEPS if only is None else read_names(only, STEPS, "step")
    output.mkdir(parents=True, exist_ok=True)
    ranks = ranks or default_ranks()
    settings = Settings(scope or "usual", ranks, backends.here(ranks) == "nccl")
    interrupted = measure(output, settings, [name for name in STEPS if name in wanted and not is_done(output, name)])
    texts = write_pages(output, settings)
    click.echo("\n".join([*(text for _, text in texts), f"report: {output / 'report.html'}"]))
    if interrupted:
        click.echo(f"commlib: interrupted; `{typed(ctx)}` goes on", err=True)
        ctx.exit(INTERRUPTED)
    ctx.exit(int(any(look == BAD for look, _ in texts)))


def document_of(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the document of a step, NAME.json, if it has one; NAME.txt is what the command printed."""
    try:
        document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document


def is_done(folder: Path, name: str) -> bool:
    """Whether a step has a whole document; NAME.log is what it wrote on stderr otherwise."""
    document = document_of(folder, name)
    return document is not None and bool(document.get("complete", True))


def measure(folder: Path, settings: Settings, names: Sequence[str]) -> bool:
    """Run these steps; return whether Ctrl-C ended it."""
    for name in names:
        click.echo(f"{name:<12} ", nl=False)
        begun, log = time.monotonic(), folder / f"{name}.log"
        arguments = [*STEPS[name].arguments(settings), "-o", str(folder / f"{name}.json")]
        interrupted = run(arguments, log, LIMIT_S[settings.scope])
        state = "done" if is_done(folder, name) else "interrupted" if interrupted else "failed"
        if state != "failed":
            log.unlink()
        why = f": {why_failed(log)}" if state == "failed" else ""
        click.echo(f"{click.style(state, fg=COLOURS[state])} in {time.monotonic() - begun:.0f} s{why}")
        if interrupted:
            return True
    return False


def run(arguments: Sequence[str], log: Path, limit_s: float) -> bool:
    """Run a command of commlib, with what it prints in files; return whether Ctrl-C ended it."""
    command = command_line(arguments, str(MPIEXEC), (sys.executable, "-m", "commlib"))
    with log.open("wb") as errors, log.with_suffix(".txt").open("wb") as output, first_signal_interrupts():
        # A session of its own: Ctrl-C is passed on once, and what it started ends with it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            errors.write(f"\n{shlex.join(command_line(arguments))} did not end within {limit_s:g} s\n".encode())
        except KeyboardInterrupt:
            for _ in range(STOP_SIGNALS):  # an import may swallow one
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGINT)
                    process.wait(STOP_S)
                    break
            return True
        finally:
            with suppress(ProcessLookupError):  # whatever is left of it, ranks included
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        if code < 0:
            errors.write(f"\nended by {signal.Signals(-code).name}\n".encode())
    return False


def command_line(
    arguments: Sequence[str], mpiexec: str = "mpiexec", program: Sequence[str] = ("commlib",)
) -> list[str]:
    """Return the command of a step: collectives of CPUs start under mpiexec, where it is there."""
    if arguments[:2] == ["bench", "-n"] and "--graph" not in arguments and MPIEXEC.exists():
        return [mpiexec, "-n", arguments[2], *program, "bench", *arguments[3:]]
    return [*program, *arguments]


def why_failed(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote no document"
