"""Sections of what is not timed: the machine as the doctor finds it, correct values, and the plan in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from commlib.counts import counted
from commlib.plan.rules import size_text
from commlib.tools.cli.doctor.command import JOBS
from commlib.tools.cli.doctor.finding import home_as_tilde
from commlib.tools.report.figures import percent_text
from commlib.tools.report.page import BAD, GOOD, WARN, Block, Code, Grid, Points, Text
from commlib.tools.report.table import Column

Document = dict[str, Any]
STATES = {"ok": "", "warning": WARN, "missing": "", "broken": BAD}


def _calls(row: Document) -> str:
    named = ((key, row[key]) for key in ("dtype", "redop", "mode"))
    return " ".join([row["placement"], *(f"{key}={value}" for key, value in named if value != "*")])


FINDINGS = (
    Column("what", lambda found: found["topic"], left=True),
    Column("state", lambda found: found["state"], left=True),
    Column("found", lambda found: home_as_tilde(found["detail"]), left=True),
    Column("what to do", lambda found: home_as_tilde(found["remedy"]), left=True),
)
CHECKED = (
    Column("collective", lambda row: row["op"], left=True),
    Column("algorithm", lambda row: row["algorithm"], left=True),
    Column("ranks", lambda row: str(row["ranks"])),
    Column("values", lambda row: row["wrong"] or "right", left=True),
)
RANGES = (
    Column("collective", lambda row: row["op"], left=True),
    Column("calls", _calls, left=True),
    Column("sizes", lambda row: _span_text(row["above"], row["up_to"]), left=True),
    Column("runs", lambda row: row["choice"], left=True),
    Column("gain", lambda row: percent_text(row["gain"]), unit="%, measured"),
    Column("runner-up", lambda row: row["runner_up"] or "-", left=True),
)


def environment(document: Document) -> list[Block]:
    """Return what the doctor found."""
    tables = (line for found in document["findings"] for line in found["table"])
    return [
        Text(job_said(document), GOOD if document["runs"] else BAD),
        Grid("What the doctor found", FINDINGS, document["findings"], _finding_tone),
        *_tables(list(tables)),
    ]


def job_said(document: Document) -> str:
    """Say whether the main job will run."""
    verdict = "will run" if document["runs"] else "will not run before what is broken or missing is put right"
    return f"The main job of this machine, {JOBS[document['job']]}, {verdict}."


def _finding_tone(found: Document) -> str:
    return BAD if found["needed"] and found["state"] == "missing" else STATES[found["state"]]


def _tables(lines: list[str]) -> list[Block]:
    return [Code([home_as_tilde(line) for line in lines])] if lines else []


def correctness(document: Document) -> list[Block]:
    """Return what was checked, wrong values first."""
    rows = sorted(document["rows"], key=lambda row: not row["wrong"])
    wrong = sum(bool(row["wrong"]) for row in rows)
    return [
        Text(values_said(document), BAD if wrong else GOOD),
        Grid("Algorithms that were checked", CHECKED, rows, lambda row: BAD if row["wrong"] else "", folded=not wrong),
        Points(document["notes"]),
    ]


def values_said(document: Document) -> str:
    """Say how many algorithms are right."""
    rows = document["rows"]
    ranks = ", ".join(str(count) for count in sorted({row["ranks"] for row in rows}))
    right = sum(not row["wrong"] for row in rows)
    return f"{right} of {counted(len(rows), 'algorithm')} give right values on {counted(ranks, 'rank')}."


def plan_said(document: Document) -> str:
    """Say which plan is in force, and how well it fits."""
    fit, source = document["fit"], home_as_tilde(document["source"])
    match = (
        f" Of its fingerprint, {fit['score']} of {fit['total']} keys are those of this machine." if fit["total"] else ""
    )
    pinned = "".join(f" The environment pins {op} to {name}." for op, name in document["pinned"].items())
    return f"init() takes {source} (plan {document['digest']}): {fit['said']}.{match}{pinned}"


def coverage(document: Document) -> str:
    """Say how many of the ranges in force were chosen by measuring."""
    ranges = [row for row in document["rows"] if row["placement"] == "plain"]
    counted = Counter(row["gain"] is not None for row in ranges)
    return f"{counted[True]} of {len(ranges)} ranges for plain tensors say what they gain, as it was measured."


def plan(document: Document) -> list[Block]:
    """Return the plan's ranges for this number of ranks."""
    world = document["world"]
    return [
        Text(plan_said(document)),
        Text(coverage(document)),
        *([] if fits(document) else [Code([f"commlib tune -n {world}"])]),
        Grid(
            f"What runs on {counted(world, 'rank')}, by the first rule that can serve a call",
            RANGES,
            document["rows"],
            folded=True,
        ),
        Text("One call, explained:"),
        Code([f"commlib plan explain all_reduce --bytes 1M -n {world}"]),
    ]


def fits(document: Document) -> bool:
    """Say whether the plan was measured on a machine like this one."""
    return bool(document["fit"]["total"]) and not document["fit"]["differences"]


def wrong(rows: Sequence[Document]) -> list[str]:
    """Name what gives wrong values."""
    return [
        f"{row['op']} by {row['algorithm']} on {counted(row['ranks'], 'rank')}: {row['wrong']}"
        for row in rows
        if row["wrong"]
    ]


def _span_text(above: int | None, up_to: int | None) -> str:
    """Return a span of sizes in parts: above 8K, up to 64K; every size."""
    parts = [] if above is None else [f"above {size_text(above)}"]
    if up_to is not None:
        parts.append(f"up to {size_text(up_to)}")
    return ", ".join(parts) or "every size"
