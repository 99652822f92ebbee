"""The pages of a report, made from its documents: a Markdown file for each section, and all of them as report.html."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from commlib.collectives import COLLECTIVES
from commlib.counts import counted
from commlib.tools.bench import rows as bench_rows
from commlib.tools.bench import which
from commlib.tools.cli import plan as plan_command
from commlib.tools.cli import test as test_command
from commlib.tools.cli.doctor import command as doctor
from commlib.tools.cli.doctor import home_as_tilde
from commlib.tools.cli.profile import attention, comm, comm_analysis, radix
from commlib.tools.cli.profile import report as profile
from commlib.tools.cli.profile.attention_view import AttentionView
from commlib.tools.cli.profile.comm_analysis_view import AnalysisView
from commlib.tools.cli.profile.comm_view import CommView
from commlib.tools.cli.profile.view import ProfileView
from commlib.tools.cli.report import changes
from commlib.tools.cli.report.run import DONE, STEPS, Folder
from commlib.tools.report import chart
from commlib.tools.report.document import Kind
from commlib.tools.report.figures import ratio_text, size_text
from commlib.tools.report.files import write
from commlib.tools.report.page import BAD, GOOD, WARN, Section, Table, html, markdown, plain_table
from commlib.tools.report.table import Column
from commlib.tools.report.view import View

Document = dict[str, Any]
Documents = Mapping[str, Document]
Texts = Iterator[tuple[str, str]]  # each with its look
WIDTH, ABREAST = 120, 3
FIRST, SIZES = ("op", "topic"), ("above", "up_to")  # of the names in documents
LEFT_OUT = {"table", "needed", "backend"}
SHORT = {"None": "-", "": "-", "*": "any"}
PLAN_NEXT = ("tune", "plan explain all_reduce --bytes 1M")  # commands
NAMED = 10  # calls that another library makes faster
MACHINE = ("gpus", "gpu", "cpu", "cores", "driver", "cuda", "nccl", "torch", "commlib", "kernel", "python")
LOOKS = {"broken": BAD, "missing": WARN, "warning": WARN}
# In the order of the page: the kind of a step's document, and the view that its command shows it by.
READERS: dict[str, tuple[Kind, type[View] | None]] = {
    "collectives": (bench_rows.KIND, None),
    "comm": (comm.KIND, CommView),
    "paths": (comm_analysis.KIND, AnalysisView),
    **dict.fromkeys(("index", "store", "metadata"), (profile.KIND, ProfileView)),
    **dict.fromkeys(("attention", "prefill"), (attention.KIND, AttentionView)),
    "radix": (radix.KIND, radix.RadixView),
    "plan": (plan_command.KIND, None),
    "correctness": (test_command.KIND, None),
    "environment": (doctor.KIND, None),
}


def write_pages(folder: Folder, before: Folder | None = None) -> Section:
    """Write every page of what is there, with what changed since another report; return the summary."""
    documents = _documents(folder)
    sections = [_summary(folder, documents)]
    if before is not None:
        sections.append(changes.section(before.path.resolve().name, _documents(before), documents))
    sections += [section for name in READERS if name in documents for section in _sections(name, documents[name])]
    steps = [{"step": name, **_cells(of)} for name, of in folder.ended.items()]
    sections.append(Section("made", "How this was made", tables=[plain_table("Each step wrote NAME.json", steps)]))
    for section in sections:
        write(folder.path / f"{section.name}.md", markdown(section))
    known = _machine(documents)
    begun = min((ended["created"] for ended in folder.ended.values()), default="")[:16].replace("T", " ")
    title = f"commlib on {known.get('gpu') or known.get('cpu') or 'a machine that is not measured'}"
    write(folder.path / "report.html", html(title, f"commlib {known.get('commlib', '')}, {begun} UTC", sections))
    return sections[0]


def _documents(folder: Folder) -> Documents:
    """Read the document of each step that has one."""
    documents = {name: READERS[name][0].read(folder.file(name)) for name in folder.ended if folder.file(name).exists()}
    for name in documents.keys() & {"collectives", "index", "store", "metadata", "attention", "prefill"}:
        documents[name]["rows"].sort(key=_place)  # a packed file has them in another order
    return documents


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    if "op" in row:
        return list(COLLECTIVES).index(row["op"]), row["size"]
    return row.get("n", 0), row.get("bytes", 0)


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
    calls = {name: of for name in READERS if name in documents and (of := list(changes.calls(name, documents[name])))}
    everywhere = [each for of in calls.values() for each in of]
    tables = [_counts(calls), _lost(everywhere), _here(folder, _machine(documents))]
    return Section("summary", "Summary", drawn, text, [table for table in tables if table.items])


def _counts(calls: Mapping[str, list[changes.Named]]) -> Table:
    lines = []
    for name, of in calls.items():
        fastest = Counter(call.fastest for _, call in of)
        others = sum(count for who, count in fastest.items() if who not in (which.OURS, *which.NOBODY))
        counts = {
            "commlib": fastest[which.OURS],
            "another library": others,
            **{who: fastest[who] for who in which.NOBODY},
        }
        lines.append({"who is the fastest": STEPS[name].title, **{who: str(count) for who, count in counts.items()}})
    return plain_table("In how many calls who is the fastest", lines)


def _lost(calls: list[changes.Named]) -> Table:
    lost = [(call.versus["ratio"], name, call) for name, call in calls if call.versus and call.look == WARN]
    lines = [
        {"call": name, "fastest": call.fastest, "its time / commlib's": ratio_text(ratio)}
        for ratio, name, call in sorted(lost, key=lambda each: each[0])[:NAMED]
    ]
    return plain_table("Where another library is the fastest", lines)


def _here(folder: Folder, machine: Mapping[str, Any]) -> Table:
    seconds = sum(ended["seconds"] for ended in folder.ended.values())
    facts = {**{key: machine.get(key) for key in MACHINE}, **vars(folder.settings), "measured": f"in {seconds:.0f} s"}
    return plain_table("This machine", [{"what": key, "here": str(value)} for key, value in facts.items() if value])


def _problems(folder: Folder, documents: Documents) -> Texts:
    """Yield what failed, what was not measured, what is wrong, and what the doctor warns of."""
    if why := chart.missing():
        yield WARN, f"There are no charts: {why}."
    for name, ended in folder.ended.items():
        if ended["state"] != DONE:
            rest = "what it had is shown" if name in documents else "it has no document"
            why = f": {ended['said']}" if ended["said"] else ""
            yield BAD, f"Step {name} {ended['state']} (exit code {ended['code']}){why}; {rest}."
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
                LOOKS[finding["state"]],
                f"{finding['topic']} ({finding['state']}): {home_as_tilde(finding['detail'])}",
            )
    machines = [of["fingerprint"] for of in documents.values() if "fingerprint" in of]
    for key in ("cpu", "cores", "kernel", "torch", "commlib"):
        if len(values := dict.fromkeys(str(of.get(key)) for of in machines)) > 1:
            yield BAD, f"The steps were not measured on one machine with one software: {key} {' and '.join(values)}."


def _job(document: Document) -> Texts:
    how = doctor.JOBS[document["job"]]
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


def _sections(name: str, document: Document) -> list[Section]:
    """Return what is written of the document of a step."""
    (_, view), title = READERS[name], STEPS[name].title
    if view is not None:
        return [view(document, WIDTH).section(name, title)]
    if name == "collectives":
        # All but the first collective, which stands in the summary.
        latencies = [panels[0] for panels in which.panels(document)[1:] if panels[0].lines]
        abreast = [latencies[at : at + ABREAST] for at in range(0, len(latencies), ABREAST)]
        return which.sections(document, _drawn(which.chart_title(document), abreast))
    code = [f"commlib {words} -n {document['ranks']}" for words in PLAN_NEXT] if name == "plan" else []
    cells = list(map(_cells, document.get("findings") or document["rows"]))
    texts = list(RESULTS[name](document))
    return [Section(name, title, "", texts, [plain_table(title, cells, _look)], code, document.get("notes", ()))]


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands in a table of an item as it is; a size is written as one."""
    names = sorted(row.keys() - LEFT_OUT, key=lambda name: (name not in FIRST, list(row).index(name)))
    texts = {name: size_text(row[name]) if name in SIZES and row[name] else str(row[name]) for name in names}
    return {name: SHORT.get(text, home_as_tilde(text)) for name, text in texts.items()}


def _look(cells: Mapping[str, str], column: Column) -> str:
    return LOOKS.get(cells.get("state", ""), BAD if cells.get("wrong", "-") != "-" else "")


RESULTS: dict[str, Callable[[Document], Texts]] = {"correctness": _values, "environment": _job, "plan": _plan}
