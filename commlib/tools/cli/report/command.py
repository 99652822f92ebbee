"""`commlib report`: run commands one after the other, keep each document in a folder, and write pages of them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import click

from commlib.counts import counted
from commlib.tools.bench import view
from commlib.tools.bench.result import KIND
from commlib.tools.cli.doctor.checks import home_as_tilde
from commlib.tools.cli.doctor.command import JOBS
from commlib.tools.cli.options import read_names
from commlib.tools.cli.run import command_line as typed
from commlib.tools.cli.run import default_ranks
from commlib.tools.report import chart
from commlib.tools.report.document import write
from commlib.tools.report.formats import escaped
from commlib.tools.report.run import first_signal_interrupts

COLOURS = {"done": "green", "failed": "red", "interrupted": "yellow"}
LIMIT_S = {"quick": 600.0, "usual": 1200.0, "all": 3600.0}  # of one step: then it hangs
STOP_S, STOP_SIGNALS = 4.0, 5  # after Ctrl-C a step writes what it has: the time between signals, and how many
INTERRUPTED = 130
MPIEXEC = Path(sys.executable).with_name("mpiexec")  # of the extra mpi: collectives are measured next to MPI, too
SCOPES = ("quick", "usual", "all")
Documents = Mapping[str, dict[str, Any]]  # by step
Texts = Iterator[tuple[str, str]]  # each with its class
GOOD, WARN, BAD = "good", "warn", "bad"  # classes of the template
WIDTH, CHARTS_PER_ROW = 120, 3
MACHINE = ("gpus", "gpu", "cpu", "cores", "driver", "cuda", "nccl", "torch", "commlib", "kernel", "python")
ONE_MACHINE = ("cpu", "cores", "kernel", "torch", "commlib")


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


# --- the pages, made of documents and of what the commands printed


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in this order; `name` is its place in the page and the stem of its file."""

    name: str
    title: str
    chart: str = ""  # an SVG element; Markdown has none
    text: Sequence[tuple[str, str]] = ()  # paragraphs, each with its class
    output: str = ""  # of a command, as it stands


def write_pages(folder: Path, settings: Settings) -> list[tuple[str, str]]:
    """Write every page of what is there; return the texts of the summary."""
    documents = {name: document for name in STEPS if (document := document_of(folder, name)) is not None}
    if "collectives" in documents:
        documents["collectives"] = KIND.read(folder / "collectives.json")
    machine = {key: value for of in documents.values() for key, value in of.get("fingerprint", {}).items()}
    texts = [*_results(documents), *_problems(folder, documents)]
    sections = [_summary(documents, texts, {**machine, **vars(settings)})]
    for name, document in documents.items():
        printed = folder / f"{name}.txt"
        output = printed.read_text(encoding="utf-8").rstrip() if printed.exists() else ""
        section = Section(name, STEPS[name].title, output=output)
        sections.append(_collectives(document, section) if name == "collectives" else section)
    commands = [shlex.join(command_line(STEPS[name].arguments(settings))) for name in documents]
    sections.append(Section("made", "How this was made", output="\n".join(commands)))
    for section in sections:
        write(folder / f"{section.name}.md", markdown(section))
    created = min((of["created"] for of in documents.values() if "created" in of), default="")[:16].replace("T", " ")
    gpus = f"{machine.get('gpus') or 1} × {machine['gpu']}" if machine.get("gpu") else ""
    title = f"commlib on {gpus or machine.get('cpu') or 'a machine that is not measured'}"
    write(folder / "report.html", html(title, f"commlib {machine.get('commlib', '')}, {created} UTC", sections))
    return texts


def html(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    from jinja2 import Environment  # which torch installs

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = (resources.files("commlib.tools.cli.report") / "page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(title=title, subtitle=subtitle, sections=sections)


def markdown(section: Section) -> str:
    output = section.output.replace("```", "'''")
    parts = [f"# {escaped(section.title)}", *(escaped(text) for _, text in section.text)]
    return "\n\n".join([*parts, *([f"```text\n{output}\n```"] if output else [])])


def _summary(documents: Documents, texts: list[tuple[str, str]], here: Mapping[str, Any]) -> Section:
    """Return the first screen: the chart of the first collective, who is the fastest, and what is wrong."""
    drawn = ""
    if bench := documents.get("collectives"):
        first = {**bench, "rows": [row for row in bench["rows"] if row["op"] == bench["rows"][0]["op"]]}
        drawn = chart.svg(view.chart_title(first), view.panels(first)[:1])
    facts = [f"{key:<8} {here[key]}" for key in (*MACHINE, "ranks", "scope") if here.get(key)]
    return Section("summary", "Summary", drawn, texts, "\n".join(facts))


def _collectives(document: dict[str, Any], section: Section) -> Section:
    """Add who is the fastest at which size, and all charts but that of the first collective."""
    panels = [of[0] for of in view.panels(document)[1:] if of[0].lines]
    rows = [panels[at : at + CHARTS_PER_ROW] for at in range(0, len(panels), CHARTS_PER_ROW)]
    drawn = chart.svg(view.chart_title(document), rows)
    return replace(section, chart=drawn, output="\n".join([*view.lines(document, WIDTH), "", section.output]))


def _results(documents: Documents) -> Texts:
    if bench := documents.get("collectives"):
        yield from (("", f"Collectives next to {line.removeprefix('# others: ')}.") for line in view.others(bench))
    if rows := documents.get("correctness", {}).get("rows"):
        right = sum(not row["wrong"] for row in rows)
        text = f"{right} of {counted(len(rows), 'algorithm')} give right values on {counted(rows[0]['ranks'], 'rank')}."
        yield GOOD if right == len(rows) else BAD, text
        for row in (row for row in rows if row["wrong"]):
            yield BAD, f"Wrong values: {row['op']} by {row['algorithm']}: {row['wrong']}"
    if doctor := documents.get("environment"):
        state = "works" if doctor["runs"] else "does not work"
        yield GOOD if doctor["runs"] else BAD, f"commlib.init() {state} here: {JOBS[doctor['job']]}."
    if plan := documents.get("plan"):
        fit = plan["fit"]
        text = f"init() takes {home_as_tilde(plan['source'])} (plan {plan['digest']}): {fit['description']}."
        yield "" if fit["total"] and not fit["differences"] else WARN, text


def _problems(folder: Path, documents: Documents) -> Texts:
    """Yield what failed, what was not measured, what is wrong, and what the doctor warns of."""
    if why := chart.missing():
        yield WARN, f"There are no charts: {why}."
    failed = [name for name in STEPS if (folder / f"{name}.log").exists()]
    for name in failed:
        yield BAD, f"Step {name} failed: {why_failed(folder / f'{name}.log')}"
    if missing := [name for name in STEPS if name not in documents and name not in failed]:
        yield WARN, f"Not measured: {', '.join(missing)}."
    for name, of in documents.items():
        if not of.get("complete", True):
            yield WARN, f"Step {name} is not complete: {of['ended']}."
        if wrong := of.get("wrong") or of.get("out_of_bounds", {}).get("count"):
            yield BAD, f"Step {name} has {counted(wrong, 'wrong value')}."
    yield from _of_machine(documents)


def _of_machine(documents: Documents) -> Texts:
    for finding in documents.get("environment", {}).get("findings", ()):
        if finding["state"] in ("warning", "broken"):
            look = BAD if finding["needed"] and finding["state"] == "broken" else WARN
            yield look, f"{finding['topic']} ({finding['state']}): {home_as_tilde(finding['detail'])}"
    machines = [of["fingerprint"] for of in documents.values() if "fingerprint" in of]
    if len({str([of.get(key) for key in ONE_MACHINE]) for of in machines}) > 1:
        yield BAD, "The steps were not measured on one machine with one software."
