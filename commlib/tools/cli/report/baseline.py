"""Section of `--baseline`: what changed beyond the noise, by the rule of `commlib bench compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from commlib.counts import counted
from commlib.tools.baselines.kernels.case import OURS
from commlib.tools.bench.difference import MACHINE, SOFTWARE, changes, judged
from commlib.tools.bench.rows import measured, title
from commlib.tools.cli.profile import notes
from commlib.tools.cli.profile.attention_view import AttentionView
from commlib.tools.cli.report import STAGES
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, ratio_text, size_text
from commlib.tools.report.page import BAD, GOOD, WARN, Block, Grid, Points, Section, Text
from commlib.tools.report.table import Column
from commlib.tools.report.view import grouped

Documents = Mapping[str, dict[str, Any]]
THRESHOLD = 0.05  # as of `commlib bench compare`
KEYS = {"Times are not comparable, as the machines differ": MACHINE, "The software differs": SOFTWARE}
TONES = {"worse": BAD, "wrong": BAD, "better": GOOD}
COLUMNS = (
    Column("stage", lambda row: STAGES[row["stage"]].title, left=True),
    Column("call", lambda row: row["call"], left=True),
    Column("by", lambda row: row["algorithm"], left=True),
    Column("before", lambda row: fitted(row["a_us"], 9), unit="µs"),
    Column("now", lambda row: fitted(row["b_us"], 9), unit="µs"),
    Column("ratio", lambda row: ratio_text(row["ratio"]), unit="now / before"),
    Column("verdict", lambda row: row["verdict"], left=True),
)


def section(name: str, before: Documents, now: Documents) -> Section:
    """Return what changed since the report of that name."""
    rows = [
        {**row, "stage": stage}
        for stage, read in ROWS.items()
        if stage in before and stage in now
        for row in judged(read(before[stage]), read(now[stage]), THRESHOLD)
    ]
    ours = Counter(row["verdict"] for row in rows if row["ours"])
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(ours.items()))
    differing = [row for row in rows if row["changed"] or row["verdict"] == "wrong"]
    own, others = ([row for row in differing if row["ours"] == side] for side in (True, False))
    blocks: list[Block] = [
        *(Text(f"{each} (before / now).", WARN) for each in _machines(before, now)),
        Text(
            f"Of commlib's calls that are in both: {counted or 'none'}. A call changed if its median moved by more "
            f"than {THRESHOLD:.0%} beyond what other libraries' calls moved, and its blocks lie apart; where those "
            f"moved farther themselves, it is not judged."
        ),
        Grid(f"Calls of commlib that changed since {name}", COLUMNS, own, lambda row: TONES.get(row["verdict"], "")),
        Grid("Calls of other libraries that changed", COLUMNS, others, folded=True),
        Points(list(_found(before, now))),
    ]
    return Section("changes", "Changes", blocks)


def _machines(before: Documents, now: Documents) -> Iterator[str]:
    """Say once how the machines differ."""
    both = [name for name in now if name in before and "fingerprint" in now[name]]
    pairs = [(before[name]["fingerprint"], now[name]["fingerprint"]) for name in both]
    found = (f"{what}: {said}" for what, keys in KEYS.items() for pair in pairs if (said := changes(*pair, keys)))
    yield from dict.fromkeys(found)


def _found(before: Documents, now: Documents) -> Iterator[str]:
    """Say what the doctor, the check of values and the plan say otherwise than before."""
    for stage, states in STATES.items():
        if stage in before and stage in now:
            old, new = states(before[stage]), states(now[stage])
            for what in {**old, **new}:
                if old.get(what) != new.get(what):
                    yield f"{what}: {new.get(what, 'not there')}, before {old.get(what, 'not there')}"


def _findings(document: Mapping[str, Any]) -> dict[str, str]:
    of_topic = grouped(document["findings"], lambda found: found["topic"])
    return {of[0]["topic"]: ", ".join(found["state"] for found in of) for of in of_topic}


def _values(document: Mapping[str, Any]) -> dict[str, str]:
    rows = document["rows"]
    return {
        f"{row['op']} by {row['algorithm']}, {counted(row['ranks'], 'rank')}": row["wrong"] or "right" for row in rows
    }


def _digest(document: Mapping[str, Any]) -> dict[str, str]:
    return {"plan in force": document["digest"]}


STATES: dict[str, Callable[[Mapping[str, Any]], dict[str, str]]] = {
    "environment": _findings,
    "correctness": _values,
    "plan": _digest,
}


def _as_call(call: str, row: Row, time_us: Mapping[str, float]) -> Row:
    """Return a row of a profile as one of bench, which the rule is of."""
    return {
        **{"op": call, "size": row.get("bytes", 0), "type": row.get("type"), "redop": None, "root": None},
        **{"placement": "plain", "in_place": False, "mode": row.get("mode", "eager"), "call": call},
        **{"algorithm": row["candidate"], "ours": row.get("role", OURS) == OURS},
        **{"time_us": time_us, "wrong": row.get("wrong") or 0},
    }


def _bench(document: Mapping[str, Any]) -> list[Row]:
    return [{**row, "call": f"{title(row)}, {_size(row)}"} for row in measured(document["rows"])]


def _size(row: Row) -> str:
    words = [size_text(row["size"]), "symmetric" if row["placement"] != "plain" else "", "in place" * row["in_place"]]
    return ", ".join(filter(None, words))


def _kernel(document: Mapping[str, Any]) -> list[Row]:
    timed = (row for row in document["rows"] if row["time_us"])
    return [_as_call(f"{notes.title(row)}, n {row['n']}", row, row["time_us"]) for row in timed]


def _attention(document: Mapping[str, Any]) -> list[Row]:
    view = AttentionView(dict(document), 120)
    timed = (row for row in document["rows"] if row["time_us"])
    return [
        _as_call(f"{view.title([row])}, {row['batch']} x {counted(row['length'], 'token')}", row, row["time_us"])
        for row in timed
    ]


def _radix(document: Mapping[str, Any]) -> list[Row]:
    """Return its rows, whose blocks are known by the fastest and the median."""
    return [
        {
            **_as_call(
                f"{row['operation']}: {counted(row['tokens'], 'token')}, {row['detail']}",
                row,
                {"p0": row["least_us"], "p10": row["least_us"], "p50": row["median_us"], "p90": row["median_us"]},
            ),
            "ours": row["candidate"].startswith("commlib"),
        }
        for row in document["rows"]
    ]


ROWS: dict[str, Callable[[Mapping[str, Any]], Sequence[Row]]] = {
    **dict.fromkeys(("index", "store", "metadata"), _kernel),
    "radix": _radix,
    **dict.fromkeys(("attention", "prefill"), _attention),
    "collectives": _bench,
}
