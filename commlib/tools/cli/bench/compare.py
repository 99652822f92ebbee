"""`commlib bench compare`: two runs side by side; what became slower fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from commlib.tools.bench.difference import KEYS, NOT_JUDGED, difference
from commlib.tools.bench.rows import KIND, label, title
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, size_text
from commlib.tools.report.formats import json_text
from commlib.tools.report.table import Column
from commlib.tools.report.view import View

DEFAULT = "5%"
TIME = 8  # characters
JSON = (*KEYS, "a_us", "b_us", "ratio", "drift", "verdict")


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
    """A line for each call that differs."""

    forms = ("table", "md", "json")

    def columns(self) -> list[Column]:
        """Return the columns of a row."""
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
        """Name operation, type and reduction."""
        return title(rows[0])

    def opening(self) -> list[str]:
        """Name the files, and say what speaks against comparing them."""
        names = [f"# {side.upper()}: {name}" for side, name in self.document["files"].items()]
        return [*names, *(f"# warning: {warning}" for warning in self.document["warnings"])]

    def closing(self) -> list[str]:
        """Say what to remember."""
        lines = [f"rows by a threshold of {self.document['threshold'] * 100:.3g} %; B/A is the geometric mean"]
        lines += [_summed(name, part) for name, part in self.document["summary"].items()]
        lines += self.document["notes"]
        for side, rows in self.document["only_in"].items():
            counts = Counter(f"{row['op']} {row['algorithm']}" for row in rows)
            if counts:
                lines += [f"only in {side.upper()}: " + ", ".join(f"{name} ({n})" for name, n in counts.items())]
        return ["#", *(f"# {line}" for line in lines)]

    def json(self) -> str:
        """Return what programs need of it."""
        rows = [{**row, "ratio": round(row["ratio"], 4)} for row in self.rows()]
        return json_text({**self.document, "rows": [{key: row[key] for key in JSON} for row in rows]})


def _summed(name: str, part: dict[str, Any]) -> str:
    counts = [f"{part['verdicts'][verdict]} {verdict}" for verdict in ("worse", "better", "same")]
    counts += [f"{part['verdicts'][NOT_JUDGED]} {NOT_JUDGED}"] if part["verdicts"][NOT_JUDGED] else []
    counts += [f"{part['verdicts']['wrong']} with wrong values"] if part["verdicts"]["wrong"] else []
    beyond = f" ({part['within_spread']} beyond the threshold, but within their spread)"
    shown = ", ".join(counts) + (beyond if part["within_spread"] else "")
    return f"{name}: {part['rows']} in both, B/A {part['mean_ratio']:.3f}: {shown}"
