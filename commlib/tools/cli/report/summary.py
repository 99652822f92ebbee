"""Section that stands first: what this machine is, what it reaches of its limits, who is faster, which plan to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.rows import FASTER, measured, series_of, steady, title
from commlib.tools.cli.bench.notes import faster
from commlib.tools.cli.doctor.finding import home_as_tilde
from commlib.tools.cli.report import STAGES, machine
from commlib.tools.cli.report.bottleneck import RULE, Call, bottleneck
from commlib.tools.cli.report.folder import DONE, Folder
from commlib.tools.cli.report.sections import SECTIONS
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, percent_text, ratio_text
from commlib.tools.report.page import BAD, WARN, Block, Grid, Points, Section, Text
from commlib.tools.report.table import Column
from commlib.tools.report.view import grouped

Documents = Mapping[str, dict[str, Any]]
MACHINE = ("gpu", "cpu", "cores", "driver", "cuda", "nccl", "torch", "commlib", "kernel", "python")
LOST = 5  # calls that are named
FACTS = (Column("what", lambda fact: fact[0], left=True), Column("here", lambda fact: str(fact[1]), left=True))
REACHED = (
    Column("stage", lambda line: line.title, left=True),
    Column("largest call", lambda line: line.largest.name, left=True),
    Column("time", lambda line: fitted(line.largest.time_us, 9), unit="µs"),
    Column("rate", lambda line: line.largest.rate or "-"),
    Column("reached", lambda line: percent_text(line.largest.share), unit="% of floor"),
    Column("bottleneck", lambda line: bottleneck(line.largest)[0], left=True),
    Column("faster", lambda line: line.count("faster"), unit="calls"),
    Column("level", lambda line: line.count("level"), unit="calls"),
    Column("slower", lambda line: line.count("slower"), unit="calls"),
    Column("not compared", lambda line: line.count(""), unit="calls"),
)


class Timed:
    """The calls of one stage."""

    def __init__(self, title: str, calls: Sequence[Call]) -> None:
        self.title, self.calls = title, calls
        self.largest = max(calls, key=lambda call: (call.num_bytes or 0.0, call.time_us))
        self._counted = Counter(call.outcome for call in calls)

    def count(self, outcome: str) -> str:
        """Return how many calls are faster, level, slower, or were not compared."""
        return str(self._counted[outcome])


def section(folder: Folder, documents: Documents) -> Section:
    """Return the summary."""
    calls_of = {name: list(SECTIONS[name].calls(documents[name])) for name in documents}
    timed = [Timed(STAGES[name].title, calls) for name, calls in calls_of.items() if calls]
    calls = [call for stage in timed for call in stage.calls]
    blocks: list[Block] = [*_problems(folder, documents), Text(" ".join(_verdict(documents, calls)))]
    blocks += _plan(documents)
    if timed:
        blocks += [
            Grid("What it reaches of its limits, and how often commlib is faster", REACHED, timed),
            Points(list(_lost(calls))),
            Points(RULE, "How a bottleneck is named"),
        ]
    return Section("summary", "Summary", [*blocks, Grid("This machine", FACTS, list(_facts(folder, documents)))])


def _verdict(documents: Documents, calls: Sequence[Call]) -> Iterator[str]:
    """Say in a few sentences what everybody wants to know."""
    if found := documents.get("environment"):
        yield machine.job_said(found)
    if found := documents.get("correctness"):
        yield machine.values_said(found)
    if calls:
        counted = Counter(call.outcome for call in calls)
        judged = sum(counted[outcome] for outcome in ("faster", "level", "slower"))
        yield (
            f"{judged} of {len(calls)} calls of commlib can be compared with the best of what is installed here: "
            f"commlib is faster in {counted['faster']}, level in {counted['level']}, and slower in {counted['slower']}."
        )


def _problems(folder: Folder, documents: Documents) -> Iterator[Block]:
    """Say what failed, what was not measured, and what the doctor warns of."""
    for name, ended in folder.stages.items():
        if ended["state"] != DONE:
            rest = "what it had is shown" if name in documents else "it has no document"
            said = f": {ended['said']}" if ended["said"] else ""
            yield Text(f"Stage {name} {ended['state']} (exit code {ended['code']}){said}; {rest}.", BAD)
    if missing := [name for name in STAGES if name not in folder.stages]:
        yield Text(f"Not measured: {', '.join(missing)}.", WARN)
    if wrong := machine.wrong(documents.get("correctness", {"rows": []})["rows"]):
        yield Text(f"Wrong values: {'; '.join(wrong)}.", BAD)
    for found in documents.get("environment", {"findings": []})["findings"]:
        if found["state"] in ("warning", "broken") and found["topic"] != "last failure":  # which is of one job
            tone = BAD if found["state"] == "broken" else WARN
            yield Text(f"{found['topic']} ({found['state']}): {home_as_tilde(found['detail'])}", tone)
    if changed := _mixed(documents):
        yield Text(f"The stages were not measured on one machine with one software: {changed}.", BAD)


def _mixed(documents: Documents) -> str:
    found = [document["fingerprint"] for document in documents.values() if "fingerprint" in document]
    keys = ("cpu", "cores", "kernel", "torch", "commlib")
    values = {key: list(dict.fromkeys(str(each.get(key)) for each in found)) for key in keys}
    return "; ".join(f"{key} {' and '.join(of)}" for key, of in values.items() if len(of) > 1)


def machine_of(documents: Documents) -> dict[str, Any]:
    """Return what the documents know of the machine together: some are of its CPU alone."""
    known: dict[str, Any] = {}
    for document in documents.values():
        known |= document.get("fingerprint", {})
    return {**known, "gpu": f"{known.get('gpus') or 1} x {known['gpu']}"} if known.get("gpu") else known


def _facts(folder: Folder, documents: Documents) -> Iterator[tuple[str, Any]]:
    settings, known = folder.settings, machine_of(documents)
    yield from ((key, known[key]) for key in MACHINE if known.get(key))
    yield "measured", f"{settings.scope}, {counted(settings.ranks, 'rank')} on {'GPUs' if settings.on_gpus else 'CPUs'}"
    yield "took", f"{sum(ended['seconds'] for ended in folder.stages.values()):.0f} s"


def _plan(documents: Documents) -> Iterator[Block]:
    """Say which plan is in force, how well it fits, and where this run has something faster than its choice."""
    if found := documents.get("plan"):
        yield Text(f"Plan in force: {machine.plan_said(found)}", "" if machine.fits(found) else WARN)
        better = list(_better(documents["collectives"]["rows"])) if "collectives" in documents else None
        yield from (Text(f"Plan to use: {text}") for text in _advice(found, better))
        yield Points(better[:LOST] if better else [])


def _better(rows: Sequence[Row]) -> Iterator[str]:
    """Name the algorithms of ours that are faster than the plan's choice; blocks that do not agree say nothing."""
    steady_ones = [row for row in measured(rows) if row["ours"] and steady(row)]
    for of in grouped(steady_ones, series_of):
        yield from (f"{title(of[0])}: {line}" for line in faster(of))


def _advice(plan: dict[str, Any], better: list[str] | None) -> Iterator[str]:
    tune = f"`commlib tune -n {plan['world']}` measures one"
    if not machine.fits(plan):
        yield f"{tune}; the one in force was not measured on a machine like this."
    elif better:
        yield f"{tune} anew; in this run, something was more than {FASTER - 1:.0%} faster than its choice."
    elif better is not None:
        yield (
            f"the one in force. At the sizes of this run, nothing of commlib was more than {FASTER - 1:.0%} faster "
            "than its choice."
        )


def _lost(calls: Sequence[Call]) -> Iterator[str]:
    """Name the calls that another library makes faster, the worst first."""
    lost = [(call.versus["ratio"], call) for call in calls if call.outcome == "slower" and call.versus]
    lost.sort(key=lambda each: float(each[0]))
    for ratio, call in lost[:LOST]:
        yield f"{call.beside} takes {ratio_text(ratio)} of commlib's time: {call.series}, {call.name}"
    if len(lost) > LOST:
        yield f"and {len(lost) - LOST} more; see the sections below"
