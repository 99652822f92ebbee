"""`commlib bench compare`: two runs side by side, whether they compare at all, and what became slower, which fails."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click

from commlib.counts import counted
from commlib.tools.bench.result import KIND, label, measured, median_us, series_of, steady, title
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, size_text
from commlib.tools.report.formats import json_text
from commlib.tools.report.table import Column
from commlib.tools.report.view import View

KEYS = ("op", "size", "type", "redop", "root", "algorithm", "placement", "in_place", "mode")
SIDES = (("ours", True), ("others", False))
NOT_JUDGED = "not judged"
ALWAYS = ("worse", "better", "same")  # named also where there are none
VERDICTS = (*ALWAYS, NOT_JUDGED, "wrong")
FAR = 3  # times as far as the peers, in powers: what moved by so much is judged though the machine changed
BLIND = 4  # times the threshold that ours must differ by where no peer shows what the machine did
NO_PEERS = (
    "no row of another library is in both, so whether the machine drifted cannot be seen; a call differs only beyond "
    f"{BLIND} times the threshold, and if the fastest block of one run is above nine tenths of the other's"
)
MOVED = (
    "not judged: half of the peers' rows moved by a factor of {:.2f} to {:.2f}: the machine changed between A and B; "
    "measure both again, for longer (--time), or compare with a --threshold above that"
)
# What makes times of two runs different things, and what may.
SAME = (
    ("machines differ: {}: times are not comparable", "fingerprint", ("cpu", "cores", "machine", "gpu", "gpus")),
    (
        "runs differ: {}: times are not comparable",
        "config",
        ("ranks", "backend", "mode", "cores_per_rank", "check", "window", "pairs", "overlap"),
    ),
    (
        "software differs: {}",
        "fingerprint",
        ("kernel", "python", "torch", "commlib", "settings", "driver", "nccl", "cuda"),
    ),
)
DEFAULT = "5%"
TIME = 8  # characters
JSON = (*KEYS, "a_us", "b_us", "ratio", "drift", "verdict")
Document = dict[str, Any]


def _percent(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        percent = float(value.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < float("inf"):
        raise click.BadParameter(f"{value!r} is not a percentage; write 5% or 2.5%", ctx, param)
    if 0 < percent < 1 and not value.endswith("%"):
        raise click.BadParameter(f"{value!r} may be a share; write {percent * 100:g}% or {percent:g}%", ctx, param)
    return percent / 100


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option("--threshold", default=DEFAULT, callback=_percent, help="Smaller differences do not count: 5 or 5%.")
@click.option("--format", "form", type=click.Choice(["table", "md", "json"]), default="table")
@click.option("--json", "form", flag_value="json", help="Print the document of the comparison.")
@click.option("--all", "every", is_flag=True, help="List every row, not only what differs.")
@click.pass_context
def compare(ctx: click.Context, before: Path, after: Path, threshold: float, form: str, every: bool) -> None:
    """Compare the run in file B with that in A; exit with 1 if something of ours became slower or wrong.

    Slower: the median by more than the threshold, and nine tenths of the blocks apart from those of A. A call is not
    judged where half of the other libraries' rows moved beyond the threshold, too, unless it moved much farther.
    """
    found = difference((before.name, KIND.read(before)), (after.name, KIND.read(after)), threshold)
    found["rows"] = [row for row in found["rows"] if every or row["changed"] or row["verdict"] == "wrong"]
    click.echo(Comparison(found).render(form))
    ctx.exit(int(found["regressions"] > 0))


def _verdict(row: Row) -> str:
    words = {"wrong": f"{row['wrong']} wrong", "same": ""}
    return words.get(row["verdict"], str(row["verdict"]))


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
            Column("", _verdict, 10, left=True),
        ]

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def opening(self) -> list[str]:
        """Name the files, and say what speaks against comparing them."""
        names = [f"# {side.upper()}: {name}" for side, name in self.document["files"].items()]
        return [*names, *(f"# warning: {warning}" for warning in self.document["warnings"])]

    def closing(self) -> list[str]:
        lines = [f"rows by a threshold of {self.document['threshold'] * 100:.3g} %; B/A is the geometric mean"]
        lines += [_summary_text(name, part) for name, part in self.document["summary"].items()]
        lines += self.document["notes"]
        for side, rows in self.document["only_in"].items():
            counts = Counter(f"{row['op']} {row['algorithm']}" for row in rows)
            if counts:
                lines += [f"only in {side.upper()}: " + ", ".join(f"{name} ({n})" for name, n in counts.items())]
        return ["#", *(f"# {line}" for line in lines)]

    def json(self) -> str:
        rows = [{**row, "ratio": round(row["ratio"], 4)} for row in self.rows()]
        return json_text({**self.document, "rows": [{key: row[key] for key in JSON} for row in rows]})


def _summary_text(name: str, part: dict[str, Any]) -> str:
    shown = [f"{count} {verdict}" for verdict, count in part["verdicts"].items() if count or verdict in ALWAYS]
    beyond = f" ({part['within_spread']} beyond the threshold, but within their spread)" * bool(part["within_spread"])
    return f"{name}: {part['rows']} in both, B/A {part['mean_ratio']:.3f}: {', '.join(shown)}{beyond}"


# --- what differs


def difference(before: tuple[str, Document], after: tuple[str, Document], threshold: float) -> Document:
    """Match the rows of two named documents; two that share none cannot be compared.

    A row is that of the second run, with the times of both and a verdict: more than the JSON of a comparison has.
    """
    (name_a, a), (name_b, b) = before, after
    rows_a, rows_b = ({_key(row): row for row in measured(of["rows"]) if median_us(row)} for of in (a, b))
    pairs = [(rows_a[key], row) for key, row in rows_b.items() if key in rows_a]
    if not pairs:
        sides = f"{name_a} ({_content(a)}) and {name_b} ({_content(b)})"
        raise ValueError(f"{sides} share no row: measure the same in both")
    moves = [_move(*pair) for pair in pairs if not pair[1]["ours"]]
    rows = [_judged(*pair, _drift(moves, pair[1]), threshold) for pair in pairs]
    drifts = [row["drift"] for row in rows if row["verdict"] == NOT_JUDGED]
    of_side = {name: [row for row in rows if row["ours"] == ours] for name, ours in SIDES}
    only = {"a": [key for key in rows_a if key not in rows_b], "b": [key for key in rows_b if key not in rows_a]}
    return {
        "schema": "commlib.bench.compare",
        "version": 1,
        "files": {"a": name_a, "b": name_b},
        "threshold": threshold,
        "warnings": [*_warnings(a, b), *([] if moves else [NO_PEERS])],
        "rows": rows,
        "only_in": {side: [dict(zip(KEYS, key, strict=True)) for key in of] for side, of in only.items()},
        # What other libraries do is none of our failures.
        "regressions": sum(row["ours"] and row["verdict"] in ("wrong", "worse") for row in rows),
        "summary": {name: _summary(of) for name, of in of_side.items() if of},
        "notes": [MOVED.format(min(drifts), max(drifts))] if drifts else [],
    }


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in KEYS)


class _Move(NamedTuple):
    call: tuple[Any, ...]
    factor: float
    steady: bool


def _move(before: Row, after: Row) -> _Move:
    """Return how far a peer's row moved, up or down alike."""
    ratio = median_us(after) / median_us(before)
    return _Move(_call(after), max(ratio, 1 / ratio), steady(before) and steady(after))


def _call(row: Row) -> tuple[Any, ...]:
    return series_of(row), row["size"], row["root"]


def _drift(moves: Sequence[_Move], row: Row) -> float | None:
    """Return the factor that half of the peers' rows moved by: of the call or of the file, the larger.

    Rows whose blocks do not agree move by themselves; they count where there are no others.
    """
    of_call = [move for move in moves if move.call == _call(row)]
    scopes = [[move for move in of if move.steady] or of for of in (of_call, moves) if of]
    return max((median(move.factor for move in of) for of in scopes), default=None)


def _judged(before: Row, after: Row, drift: float | None, threshold: float) -> Row:
    """Return a row of both runs; `changed`: beyond the threshold, and most blocks of one beyond those of the other."""
    ratio, a, b = median_us(after) / median_us(before), before["time_us"], after["time_us"]
    margin = 1 + threshold * BLIND if drift is None else (1 + threshold) * (drift if after["ours"] else 1)
    beyond, low = not 1 / margin <= ratio <= margin, "p0" if drift is None else "p10"
    changed = beyond and (b[low] > a["p90"] or a[low] > b["p90"])
    verdict = ("worse" if ratio > 1 else "better") if changed else "same"
    if after["ours"] and drift is not None and drift > 1 + threshold and max(ratio, 1 / ratio) <= drift**FAR:
        verdict = NOT_JUDGED
    if (after["wrong"] or 0) > (before["wrong"] or 0):
        verdict = "wrong"
    figures = {"a_us": median_us(before), "b_us": median_us(after), "ratio": ratio, "drift": drift}
    return {**after, **figures, "verdict": verdict, "changed": changed, "within_spread": beyond and not changed}


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    verdicts = [row["verdict"] for row in rows]
    return {
        "rows": len(rows),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in VERDICTS},
        "within_spread": sum(row["within_spread"] for row in rows),
        "mean_ratio": math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows)),
    }


def _content(document: Document) -> str:
    rows = measured(document["rows"])
    return f"{counted(len(rows), 'row')} of {', '.join(sorted({row['op'] for row in rows}))}" if rows else "no rows"


def _warnings(a: Document, b: Document) -> Iterator[str]:
    variables = sorted({*a["environment"], *b["environment"]})
    for what, part, keys in (*SAME, ("environment differs: {}", "environment", variables)):
        pairs = ((key, a[part].get(key), b[part].get(key)) for key in keys)
        if changed := [f"{key} {_side(of_a)} / {_side(of_b)}" for key, of_a, of_b in pairs if of_a != of_b]:
            yield what.format(", ".join(changed))
    if a["plan"]["digest"] != b["plan"]["digest"]:
        sides = (f"{plan['digest']} from {plan['source']}" for plan in (a["plan"], b["plan"]))
        yield f"plans differ: {' / '.join(sides)}"
    for name, document in (("A", a), ("B", b)):
        if not document["complete"]:
            yield f"{name} is not complete: {document['ended'] or 'ended early'}"


def _side(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return "none" if value is None else str(value)
