"""The pages of a folder, made from its documents alone: a file for each section, and all of them as report.html."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commlib.tools.cli.report import STAGES, baseline, summary
from commlib.tools.cli.report.folder import Folder
from commlib.tools.cli.report.sections import SECTIONS
from commlib.tools.report.files import write
from commlib.tools.report.html import html
from commlib.tools.report.page import BAD, Block, Code, Grid, Section, Text, markdown
from commlib.tools.report.table import Column

PAGE = "report.html"
STAGE = (
    Column("stage", lambda line: line[0], left=True),
    Column("ended", lambda line: line[1]["state"], left=True),
    Column("exit code", lambda line: str(line[1]["code"])),
    Column("took", lambda line: f"{line[1]['seconds']:.0f}", unit="s"),
    Column("began", lambda line: line[1]["created"], left=True),
    Column("command", lambda line: line[1]["command"], left=True),
)


def write_pages(folder: Folder, before: Folder | None = None) -> Section:
    """Write every page of what is there, with what changed since another report; return the summary."""
    documents = _documents(folder)
    summed, *rest = _sections(folder, documents)
    changed = [baseline.section(before.path.resolve().name, _documents(before), documents)] if before else []
    sections = [summed, *changed, *rest]
    for section in sections:
        write(folder.path / f"{section.name}.md", markdown(section))
    known = summary.machine_of(documents)
    begun = min((ended["created"] for ended in folder.stages.values()), default="")[:16].replace("T", " ")
    title = f"commlib report: {known.get('gpu') or known.get('cpu') or 'nothing measured'}"
    write(folder.path / PAGE, html(title, f"commlib {known.get('commlib', '')}, {begun} UTC", sections))
    return summed


def _documents(folder: Folder) -> dict[str, dict[str, Any]]:
    """Read the document of each stage that has one."""
    return {name: SECTIONS[name].kind.read(folder.file(name)) for name in folder.stages if folder.file(name).exists()}


def _sections(folder: Folder, documents: dict[str, dict[str, Any]]) -> Iterator[Section]:
    yield summary.section(folder, documents)
    for name, document in documents.items():
        partial = [] if document.get("complete", True) else [Text(f"Not complete: {document['ended']}.", BAD)]
        yield Section(name, STAGES[name].title, [*partial, *SECTIONS[name].blocks(document)])
    yield Section("made", "How this was made", list(_made(folder)))


def _made(folder: Folder) -> Iterator[Block]:
    yield Grid("The stages; each wrote NAME.json beside this page", STAGE, list(folder.stages.items()))
    if looks := folder.state["looks"]:
        yield Text("One call under Nsight's tools; where the tool is not here, run the line where it is.")
        yield Code([f"{each['command']}{'  # ' + each['said'] if each['said'] else ''}" for each in looks])
