"""The pages of a report, made from its documents: a Markdown file for each section, and all of them as report.html."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from commlib.counts import counted
from commlib.tools.bench import which
from commlib.tools.cli.doctor import home_as_tilde
from commlib.tools.cli.doctor.command import JOBS
from commlib.tools.cli.report.run import DONE, Folder
from commlib.tools.cli.report.steps import ON_PAGE, STEPS, Documents, calls
from commlib.tools.report import chart
from commlib.tools.report.figures import ratio_text, size_text
from commlib.tools.report.files import write
from commlib.tools.report.page import BAD, GOOD, WARN, Section, Table, html, markdown, plain_table
from commlib.tools.report.table import Column

Document = Mapping[str, Any]
Texts = Iterator[tuple[str, str]]  # each with its class
WIDTH, CHARTS_PER_ROW = 120, 3
FIRST = ("op", "topic", "size", "placement", "algorithm")  # of the names in documents
SIZES = ("above", "up_to", "size")
LEFT_OUT = {"table", "needed", "backend", "params", "why", "latency_us", "gbps", "error", "sizes", "limit_is"}
SHORT = {"None": "-", "": "-", "*": "any"}
NEXT = ("tune", "plan explain all_reduce --bytes 1M")  # commands, below the plan
MAX_LOST = 10  # calls that another library makes faster
MACHINE = ("gpus", "gpu", "cpu", "cores", "driver", "cuda", "nccl", "torch", "commlib", "kernel", "python")
ONE_MACHINE = ("cpu", "cores", "kernel", "torch", "commlib")
CLASSES = {"broken": BAD, "missing": WARN, "warning": WARN}


def write_pages(folder: Folder) -> Section:
    """Write every page of what is there; return the summary."""
    documents = _documents(folder)
    sections = [section for name in documents for section in _sections(name, documents[name])]
    sections.insert(0, _summary(folder, documents))
    steps = [{"step": name, **_cells(asdict(ended))} for name, ended in folder.ended.items()]
    sections.append(Section("made", "How this was made", tables=[plain_table("Each step wrote NAME.json", steps)]))
    for section in sections:
        write(folder.path / f"{section.name}.md", markdown(section))
    machine = _machine(documents)
    begun = min((ended.created for ended in folder.ended.values()), default="")[:16].replace("T", " ")
    title = f"commlib on {machine.get('gpu') or machine.get('cpu') or 'a machine that is not measured'}"
    write(folder.path / "report.html", html(title, f"commlib {machine.get('commlib', '')}, {begun} UTC", sections))
    return sections[0]


def _documents(folder: Folder) -> Documents:
    present = [name for name in ON_PAGE if name in folder.ended and folder.file(name).exists()]
    return {name: STEPS[name].reader.read(folder.file(name)) for name in present}


def _machine(documents: Documents) -> dict[str, Any]:
    """Return what the documents know of the machine together: some are only of its CPU."""
    return {key: value for of in documents.values() for key, value in of.get("fingerprint", {}).items()}


def _drawn(title: str, rows: chart.Rows) -> str:
    return chart.svg(title, rows) if rows and not chart.missing() else ""


def _summary(folder: Folder, documents: Documents) -> Section:
    """Return the first screen: the chart of the first collective, problems, and who is the fastest."""
    drawn, text = "", list[tuple[str, str]]()
    if bench := documents.get("collectives"):
        first = {**bench, "rows": [row for row in bench["rows"] if row["op"] == bench["rows"][0]["op"]]}
        drawn = _drawn(which.chart_title(first), which.panels(first)[:1])
        text.append(("", f"Collectives: {which.verdict([call for of in which.calls(bench) for call in of])}"))
    text += _problems(folder, documents)
    for name, lines in RESULTS.items():
        text += lines(documents[name]) if name in documents else ()
    of_steps = {name: of for name in documents if (of := list(calls(name, documents[name])))}
    tables = [_counts(of_steps), _lost([each for of in of_steps.values() for each in of]), _here(folder, documents)]
    return Section("summary", "Summary", drawn, text, [table for table in tables if table.items])


def _counts(of_steps: Mapping[str, list[tuple[str, which.Call]]]) -> Table:
    lines = []
    for name, of in of_steps.items():
        fastest = Counter(call.fastest for _, call in of)
        nobody = {who: fastest[who] for who in which.NOBODY}
        others = fastest.total() - fastest[which.OURS] - sum(nobody.values())
        counts = {"commlib": fastest[which.OURS], "another library": others, **nobody}
        lines.append({"who is the fastest": STEPS[name].title, **{who: str(count) for who, count in counts.items()}})
    return plain_table("In how many calls who is the fastest", lines)


def _lost(of_all: list[tuple[str, which.Call]]) -> Table:
    lost = [(call.versus["ratio"], name, call) for name, call in of_all if call.versus and call.look == WARN]
    lines = [
        {"call": name, "fastest": call.fastest, "its time / commlib's": ratio_text(ratio)}
        for ratio, name, call in sorted(lost, key=lambda each: each[0])[:MAX_LOST]
    ]
    return plain_table("Where another library is the fastest", lines)


def _here(folder: Folder, documents: Documents) -> Table:
    machine, seconds = _machine(documents), sum(ended.seconds for ended in folder.ended.values())
    facts = {**{key: machine.get(key) for key in MACHINE}, **vars(folder.settings), "measured": f"in {seconds:.0f} s"}
    return plain_table("This machine", [{"what": key, "here": str(value)} for key, value in facts.items() if value])


def _problems(folder: Folder, documents: Documents) -> Texts:
    """Yield what failed, what was not measured, what is wrong, and what the doctor warns of."""
    if why := chart.missing():
        yield WARN, f"There are no charts: {why}."
    for name, ended in folder.ended.items():
        if ended.state != DONE:
            rest = "what it had is shown" if name in documents else "it has no document"
            yield BAD, f"Step {name} {ended.state} (exit code {ended.code}){ended.why and ': '}{ended.why}; {rest}."
    if missing := [name for name in STEPS if name not in folder.ended]:
        yield WARN, f"Not measured: {', '.join(missing)}."
    yield from _faults(documents)


def _faults(documents: Documents) -> Texts:
    for row in documents.get("correctness", {"rows": []})["rows"]:
        if row["wrong"]:
            call = f"{row['op']} by {row['algorithm']}, {counted(row['ranks'], 'rank')}"
            yield BAD, f"Wrong values: {call}: {row['wrong']}"
    for finding in documents.get("environment", {"findings": []})["findings"]:
        if finding["state"] in ("warning", "broken"):
            yield (
                CLASSES[finding["state"]],
                f"{finding['topic']} ({finding['state']}): {home_as_tilde(finding['detail'])}",
            )
    machines = [of["fingerprint"] for of in documents.values() if "fingerprint" in of]
    for key in ONE_MACHINE:
        if len(values := dict.fromkeys(str(of.get(key)) for of in machines)) > 1:
            yield BAD, f"The steps were not measured on one machine with one software: {key} {' and '.join(values)}."


def _job(document: Document) -> Texts:
    how = JOBS[document["job"]]
    if document["runs"]:
        yield GOOD, f"commlib.init() works here: {how}."
    else:
        yield BAD, f"commlib.init() does not work here: {how} need what is broken or missing below."


def _values(document: Document) -> Texts:
    rows = document["rows"]
    ranks = counted(", ".join(map(str, sorted({row["ranks"] for row in rows}))), "rank")
    right = sum(not row["wrong"] for row in rows)
    text = f"{right} of {counted(len(rows), 'algorithm')} give right values on {ranks}."
    yield GOOD if right == len(rows) else BAD, text


def _plan(document: Document) -> Texts:
    fit = document["fit"]
    match = f"; {fit['score']} of {fit['total']} keys of its fingerprint are this machine's" if fit["total"] else ""
    pinned = "".join(f" The environment pins {op} to {name}." for op, name in document["pinned"].items())
    text = f"{home_as_tilde(document['source'])} (plan {document['digest']}): {fit['description']}{match}.{pinned}"
    yield "" if fit["total"] and not fit["differences"] else WARN, f"init() takes {text}"


RESULTS: dict[str, Callable[[Document], Texts]] = {"correctness": _values, "environment": _job, "plan": _plan}


def _sections(name: str, document: dict[str, Any]) -> list[Section]:
    title, view = STEPS[name].title, STEPS[name].reader.shown_by
    if view is not None:
        return [view(document, WIDTH).section(name, title)]
    if name == "collectives":
        # All but the first collective, which stands in the summary.
        panels = [of[0] for of in which.panels(document)[1:] if of[0].lines]
        rows = [panels[at : at + CHARTS_PER_ROW] for at in range(0, len(panels), CHARTS_PER_ROW)]
        return which.sections(document, _drawn(which.chart_title(document), rows))
    code = [f"commlib {line} -n {document['ranks']}" for line in NEXT] if name == "plan" else []
    cells = list(map(_cells, document.get("findings") or document["rows"]))
    texts = list(RESULTS[name](document)) if name in RESULTS else []
    return [Section(name, title, "", texts, [plain_table(title, cells, _class)], code, document.get("notes", ()))]


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands in a table of an item as it is; a size is written as one."""
    names = sorted(row.keys() - LEFT_OUT, key=lambda name: (name not in FIRST, list(row).index(name)))
    texts = {name: size_text(row[name]) if name in SIZES and row[name] else str(row[name]) for name in names}
    return {name: SHORT.get(text, home_as_tilde(text)) for name, text in texts.items()}


def _class(cells: Mapping[str, str], column: Column) -> str:
    return CLASSES.get(cells.get("state", ""), BAD if cells.get("wrong", "-") != "-" else "")
