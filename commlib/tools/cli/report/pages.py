"""The pages of a report, made of its documents and of what its commands printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from shlex import join
from typing import Any

from commlib.counts import counted
from commlib.tools.bench import view
from commlib.tools.bench.result import KIND
from commlib.tools.cli.doctor.checks import home_as_tilde
from commlib.tools.cli.doctor.command import JOBS
from commlib.tools.cli.report.command import STEPS, Settings, command_line, document_of, why_failed
from commlib.tools.report import chart
from commlib.tools.report.files import write
from commlib.tools.report.formats import escaped

Documents = Mapping[str, dict[str, Any]]  # by step
Texts = Iterator[tuple[str, str]]  # each with its class
GOOD, WARN, BAD = "good", "warn", "bad"  # classes of the template
WIDTH, CHARTS_PER_ROW = 120, 3
MACHINE = ("gpus", "gpu", "cpu", "cores", "driver", "cuda", "nccl", "torch", "commlib", "kernel", "python")
ONE_MACHINE = ("cpu", "cores", "kernel", "torch", "commlib")


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
    commands = [join(command_line(STEPS[name].arguments(settings))) for name in documents]
    sections.append(Section("made", "How this was made", output="\n".join(commands)))
    for section in sections:
        write(folder / f"{section.name}.md", markdown(section))
    created = min((of["created"] for of in documents.values() if "created" in of), default="")[:16].replace("T", " ")
    title = f"commlib on {machine.get('gpu') or machine.get('cpu') or 'a machine that is not measured'}"
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
