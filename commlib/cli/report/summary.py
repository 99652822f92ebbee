"""Section that stands first: what this machine is, what it reaches of its limits, who is faster, which plan to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commlib.cli.doctor.command import JOBS
from commlib.cli.doctor.finding import home_as_tilde
from commlib.cli.report import STAGES, machine
from commlib.cli.report.bottleneck import RULE, Call, bottleneck
from commlib.cli.report.folder import DONE, Folder
from commlib.cli.report.sections import SECTIONS
from commlib.report.figures import fitted, percent_text, ratio_text
from commlib.report.page import BAD, WARN, Block, Grid, Points, Section, Text
from commlib.report.table import Column

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
    Column("faster", lambda line: line.count("faster"), unit="than others"),
    Column("level", lambda line: line.count("level"), unit="with them"),
    Column("slower", lambda line: line.count("slower"), unit="than others"),
    Column("alone", lambda line: line.count(""), unit="or not sure"),
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
    timed = [
        Timed(STAGES[name].title, calls) for name in documents if (calls := list(SECTIONS[name].calls(documents[name])))
    ]
    blocks: list[Block] = [
        *_problems(folder, documents),
        Grid("This machine", FACTS, list(_facts(folder, documents))),
        *_plan(documents),
    ]
    if timed:
        calls = [call for stage in timed for call in stage.calls]
        blocks += [
            Text(_compared(calls)),
            Grid("What it reaches of its limits, and how often commlib is faster", REACHED, timed),
            Points(list(_lost(calls))),
            Text(RULE),
        ]
    return Section("summary", "Summary", blocks)


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
        if found["state"] in ("warning", "broken"):
            tone = BAD if found["state"] == "broken" else WARN
            yield Text(f"{found['topic']} ({found['state']}): {home_as_tilde(found['detail'])}", tone)
    if changed := _mixed(documents):
        yield Text(f"The stages were not measured on one machine with one software: {changed}.", BAD)


def _mixed(documents: Documents) -> str:
    found = [document["fingerprint"] for document in documents.values() if "fingerprint" in document]
    keys = ("cpu", "cores", "kernel", "torch", "commlib")
    values = {key: list(dict.fromkeys(str(each.get(key)) for each in found)) for key in keys}
    return "; ".join(f"{key} {' and '.join(of)}" for key, of in values.items() if len(of) > 1)


def _facts(folder: Folder, documents: Documents) -> Iterator[tuple[str, Any]]:
    settings = folder.settings
    known: dict[str, Any] = {}
    for document in documents.values():
        known |= document.get("fingerprint", {})
    if known.get("gpu"):
        known["gpu"] = f"{known.get('gpus') or 1} x {known['gpu']}"
    yield from ((key, known[key]) for key in MACHINE if known.get(key))
    if "environment" in documents:
        runs = "will run" if documents["environment"]["runs"] else "will not run"
        yield "main job", f"{JOBS[documents['environment']['job']]}: {runs}"
    if "correctness" in documents:
        rows = documents["correctness"]["rows"]
        yield "right values", f"{sum(not row['wrong'] for row in rows)} of {len(rows)} algorithms"
    yield "measured", f"{settings.scope}, {settings.ranks} ranks on {'GPUs' if settings.on_gpus else 'CPUs'}"
    yield "took", f"{sum(ended['seconds'] for ended in folder.stages.values()):.0f} s"


def _plan(documents: Documents) -> Iterator[Block]:
    if found := documents.get("plan"):
        yield Text(f"Plan to use: {machine.plan_said(found)}", "" if machine.fits(found) else WARN)


def _compared(calls: Sequence[Call]) -> str:
    counted = Counter(call.outcome for call in calls)
    judged = sum(counted[outcome] for outcome in ("faster", "level", "slower"))
    return (
        f"Of {len(calls)} calls of commlib, {judged} can be compared with the best of what is installed here: commlib "
        f"is faster in {counted['faster']}, level in {counted['level']}, and slower in {counted['slower']}."
    )


def _lost(calls: Sequence[Call]) -> Iterator[str]:
    """Name the calls that another library makes faster, the worst first."""
    lost = [(call.versus["ratio"], call) for call in calls if call.outcome == "slower" and call.versus]
    lost.sort(key=lambda each: float(each[0]))
    for ratio, call in lost[:LOST]:
        yield f"{call.beside} takes {ratio_text(ratio)} of commlib's time: {call.series}, {call.name}"
    if len(lost) > LOST:
        yield f"and {len(lost) - LOST} more; see the sections below"
