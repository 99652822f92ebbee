"""`commlib bench compare`: two runs side by side, whether they compare at all, and what became slower, which fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import click

from commlib.counts import counted
from commlib.tools.bench.result import KIND, label, measured, median_us, series_of, steady, title
from commlib.tools.report.document import Row
from commlib.tools.report.formats import Column, fitted, size_text
from commlib.tools.report.view import View

KEYS = ("op", "size", "type", "redop", "root", "algorithm", "placement", "in_place", "mode")
NOT_JUDGED = "not judged"
ALWAYS = ("worse", "better", "same")  # named also where there are none
VERDICTS = (*ALWAYS, NOT_JUDGED, "wrong")
NO_PEERS = "no row of another library is in both, so whether the machine changed between A and B cannot be seen"
MOVED = (
    "not judged: half of the peers' rows moved by a factor of {:.2f} to {:.2f}: the machine changed between A and B; "
    "measure both again, for longer (--time), or compare with a --threshold above that"
)
# What makes times of two runs different things: part of the documents, its keys (all without), and what to say.
SAME = (
    ("machines differ", "fingerprint", ()),
    ("runs differ", "config", ("ranks", "backend", "mode", "cores_per_rank", "check")),
    ("environment differs", "environment", ()),
)
TIME = 8  # characters
Document = dict[str, Any]


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--threshold", default=5.0, type=click.FloatRange(0), help="Smaller differences do not count; in percent."
)
@click.option("--format", "form", type=click.Choice(["table", "md", "json"]), default="table")
@click.option("--json", "form", flag_value="json", help="Print the document of the comparison.")
@click.pass_context
def compare(ctx: click.Context, before: Path, after: Path, threshold: float, form: str) -> None:
    """Compare the run in file B with that in A; exit with 1 if something of ours became slower or wrong.

    Slower: the median by more than the threshold, and nine tenths of the blocks apart from those of A. A call is not
    judged where half of the other libraries' rows moved beyond the threshold, too.
    """
    comparison = difference((before.name, KIND.read(before)), (after.name, KIND.read(after)), threshold / 100)
    click.echo(Comparison(comparison).render(form))
    ctx.exit(int(comparison["regressions"] > 0))


class Comparison(View):
    forms = ("table", "md", "json")

    def columns(self) -> list[Column]:
        return [
            Column("size", lambda row: size_text(row["size"]), 10, "(B)"),
            Column("algorithm", label, 19, left=True),
            Column("form", lambda row: "in" if row["in_place"] else "out", 4, left=True, spare=2),
            Column("A", lambda row: fitted(row["a_us"], TIME), TIME, "(us)", spare=1),
            Column("B", lambda row: fitted(row["b_us"], TIME), TIME, "(us)", spare=1),
            Column("B/A", lambda row: fitted(row["ratio"], 6), 6),
            Column("peers", lambda row: fitted(row["drift"], 6), 6, "by", spare=3),
            Column("", lambda row: f"{row['wrong'] or ''} {row['verdict']}".strip(), 10, left=True),
        ]

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def opening(self) -> list[str]:
        """Name the files, and say what speaks against comparing them."""
        names = [f"# {side.upper()}: {name}" for side, name in self.document["files"].items()]
        return [*names, *(f"# warning: {warning}" for warning in self.document["warnings"])]

    def closing(self) -> list[str]:
        lines = [f"rows by a threshold of {self.document['threshold'] * 100:.3g} %; B/A is the geometric mean"]
        for name, part in self.document["summary"].items():
            shown = [f"{count} {verdict}" for verdict, count in part["verdicts"].items() if count or verdict in ALWAYS]
            lines.append(f"{name}: {part['rows']} in both, B/A {part['mean_ratio']:.3f}: {', '.join(shown)}")
        return ["#", *(f"# {line}" for line in (*lines, *self.document["notes"]))]


def difference(before: tuple[str, Document], after: tuple[str, Document], threshold: float) -> Document:
    """Match the rows of two named documents; two that share none cannot be compared.

    A row is that of the second run, with the times of both and a verdict.
    """
    (name_a, a), (name_b, b) = before, after
    rows_a, rows_b = ({_key(row): row for row in measured(of["rows"]) if median_us(row)} for of in (a, b))
    pairs = [(rows_a[key], row) for key, row in rows_b.items() if key in rows_a]
    if not pairs:
        sides = f"{name_a} ({_content(a)}) and {name_b} ({_content(b)})"
        raise ValueError(f"{sides} share no row: measure the same in both")
    peers = [pair for pair in pairs if not pair[1]["ours"]]
    rows = [_judged(*pair, _drift(peers, pair[1]), threshold) for pair in pairs]
    drifts = [row["drift"] for row in rows if row["verdict"] == NOT_JUDGED]
    sides_of = {"ours": [row for row in rows if row["ours"]], "others": [row for row in rows if not row["ours"]]}
    return {
        "schema": "commlib.bench.compare",
        "version": 1,
        "files": {"a": name_a, "b": name_b},
        "threshold": threshold,
        "warnings": [*_warnings(a, b), *([] if peers else [NO_PEERS])],
        "rows": [row for row in rows if row["changed"] or row["verdict"] == "wrong"],
        # What other libraries do is none of our failures.
        "regressions": sum(row["ours"] and row["verdict"] in ("wrong", "worse") for row in rows),
        "summary": {name: _summary(of) for name, of in sides_of.items() if of},
        "notes": [MOVED.format(min(drifts), max(drifts))] if drifts else [],
    }


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in KEYS)


def _drift(peers: Sequence[tuple[Row, Row]], row: Row) -> float:
    """Return the factor that half of the peers' rows of a call moved by, up or down; where it has none, of the file's.

    Rows whose blocks do not agree move by themselves; they count where there are no others.
    """
    of_call = [pair for pair in peers if _call(pair[1]) == _call(row)] or peers
    return median(map(_factor, [pair for pair in of_call if all(map(steady, pair))] or of_call or [(row, row)]))


def _factor(pair: tuple[Row, Row]) -> float:
    ratio = median_us(pair[1]) / median_us(pair[0])
    return max(ratio, 1 / ratio)


def _call(row: Row) -> tuple[Any, ...]:
    return series_of(row), row["size"], row["root"]


def _judged(before: Row, after: Row, drift: float, threshold: float) -> Row:
    """Return a row of both runs; `changed`: beyond the threshold, and most blocks of one beyond those of the other."""
    ratio, a, b = median_us(after) / median_us(before), before["time_us"], after["time_us"]
    changed = max(ratio, 1 / ratio) > 1 + threshold and (b["p10"] > a["p90"] or a["p10"] > b["p90"])
    verdict = ("worse" if ratio > 1 else "better") if changed else "same"
    if after["ours"] and drift > 1 + threshold:
        verdict = NOT_JUDGED
    if (after["wrong"] or 0) > (before["wrong"] or 0):
        verdict = "wrong"
    figures = {"a_us": median_us(before), "b_us": median_us(after), "ratio": round(ratio, 4), "drift": drift}
    return {**after, **figures, "verdict": verdict, "changed": changed}


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    verdicts = [row["verdict"] for row in rows]
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    return {"rows": len(rows), "verdicts": counts, "mean_ratio": geometric_mean(row["ratio"] for row in rows)}


def _content(document: Document) -> str:
    rows = measured(document["rows"])
    return f"{counted(len(rows), 'row')} of {', '.join(sorted({row['op'] for row in rows}))}" if rows else "no rows"


def _warnings(a: Document, b: Document) -> Iterator[str]:
    for what, part, keys in SAME:
        names = keys or sorted({*a[part], *b[part]})
        pairs = ((key, a[part].get(key), b[part].get(key)) for key in names)
        if changed := [f"{key} {of_a} / {of_b}" for key, of_a, of_b in pairs if of_a != of_b]:
            yield f"{what}: {', '.join(changed)}"
    if a["plan"]["digest"] != b["plan"]["digest"]:
        sides = (f"{plan['digest']} from {plan['source']}" for plan in (a["plan"], b["plan"]))
        yield f"plans differ: {' / '.join(sides)}"
    for name, document in (("A", a), ("B", b)):
        if not document["complete"]:
            yield f"{name} is not complete: {document['ended'] or 'ended early'}"
