"""The calls of all steps in one form: who is the fastest at each, and what changed since another report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from commlib.counts import counted
from commlib.tools.baselines.kernels.case import FLOOR, OURS
from commlib.tools.bench import which
from commlib.tools.bench.result import measured, median_us, title
from commlib.tools.cli.bench.compare import difference
from commlib.tools.cli.bench.kernels_view import place
from commlib.tools.cli.bench.kernels_view import title as title_of
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, ratio_text, size_text
from commlib.tools.report.page import BAD, GOOD, WARN, Section, plain_table
from commlib.tools.report.view import grouped

Documents = Mapping[str, dict[str, Any]]
Named = tuple[str, which.Call]
THRESHOLD = 0.05  # as of `commlib bench compare`
LOOKS = {"worse": BAD, "wrong": BAD, "better": GOOD}
BARE: dict[str, Any] = {"config": {}, "environment": {}, "plan": {"digest": "", "source": ""}}  # of a kernel


KERNELS = ("index", "store", "metadata", "attention", "prefill", "radix")


def calls(step: str, document: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the calls of commlib in the document of a step, each with its name."""
    if step == "collectives":
        yield from ((_bench_name(call.ours), call) for of in which.calls(document) for call in of)
        return
    for of in grouped(_timed(step, document), lambda row: row["call"]):
        ours = [row for row in of if row["ours"]]
        others = [row for row in of if not row["ours"] and not row["wrong"] and not row["floor"]]
        if ours:
            best = min(others, key=median_us, default=None)
            yield of[0]["call"], which.Call(ours[0], best, interval=ours[0]["versus"] if best else None)


def _timed(step: str, document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a step that have a time as those of bench, each with the name of its call."""
    if step == "collectives":
        return [{**row, "call": _bench_name(row)} for row in measured(document["rows"])]
    rows = document["rows"] if step in KERNELS else []
    return [_row(f"{title_of(row)}, {place(row)}", row) for row in rows if row["time_us"]]


def _bench_name(row: Row) -> str:
    memory, place = "symmetric" * (row["placement"] != "plain"), "in place" * row["in_place"]
    return ", ".join(filter(None, (title(row), size_text(row["size"]), memory, place)))


def _row(call: str, row: Row) -> Row:
    """Return a row of a kernel as one of bench."""
    return {
        **{"op": call, "size": row["bytes"], "type": row.get("type"), "redop": None, "root": None},
        **{"placement": "plain", "in_place": False, "mode": row["mode"], "call": call},
        **{"algorithm": row["candidate"], "ours": row["role"] == OURS, "floor": row["role"] == FLOOR},
        **{"wrong": row["wrong"] or 0, "time_us": row["time_us"], "versus": row["versus"]},
    }


def section(name: str, before: Documents, now: Documents) -> Section:
    """Return what changed since the report of that name, by the rule of `commlib bench compare`."""
    both, text, rows, verdicts = [step for step in now if step in before], dict[str, str](), list[Row](), Counter[str]()
    for step in both:
        old, new = ({**BARE, **of[step], "rows": _timed(step, of[step])} for of in (before, now))
        text |= dict.fromkeys(_states(before[step], now[step]), WARN)
        if {row["call"] for row in old["rows"]} & {row["call"] for row in new["rows"]}:
            differing = difference((name, old), (step, new), THRESHOLD)
            text |= dict.fromkeys(differing["warnings"], WARN)
            rows += [row for row in differing["rows"] if row["changed"] or row["verdict"] == "wrong"]
            verdicts.update(differing["summary"].get("ours", {}).get("verdicts", {}))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if count)
    text[f"Calls of commlib in both, by the rule of `commlib bench compare`: {counts or 'none'}."] = ""
    table = plain_table(
        "Calls that changed", list(map(_cells, rows)), lambda row, column: LOOKS.get(row["verdict"], "")
    )
    return Section("changes", f"Changes since {name}", "", [(look, line) for line, look in text.items()], [table])


def _cells(row: Row) -> dict[str, str]:
    texts = {"call": row["call"], "by": row["algorithm"], "before, µs": fitted(row["a_us"], 9)}
    return {**texts, "now, µs": fitted(row["b_us"], 9), "ratio": ratio_text(row["ratio"]), "verdict": row["verdict"]}


def _states(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the doctor, the check of values and the plan answer otherwise than before."""
    old, new = dict(_answers(before)), dict(_answers(now))
    for what in {**old, **new}:
        if old.get(what) != new.get(what):
            yield f"{what}: {new.get(what, 'not there')}, before {old.get(what, 'not there')}"


def _answers(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for of in grouped(document.get("findings", ()), lambda finding: finding["topic"]):
        yield of[0]["topic"], ", ".join(finding["state"] for finding in of)
    for row in document["rows"] if document["schema"] == "commlib.test" else ():
        yield f"{row['op']} by {row['algorithm']}, {counted(row['ranks'], 'rank')}", row["wrong"] or "right"
    if "digest" in document:
        yield "plan in force", document["digest"]
