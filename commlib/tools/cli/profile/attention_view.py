"""How a document of `commlib profile attention` is shown: a line for each candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commlib.counts import counted
from commlib.tools.baselines.kernels.case import OURS
from commlib.tools.report.document import Row
from commlib.tools.report.figures import fitted, interval_text, percent_text, ratio_text
from commlib.tools.report.table import Column
from commlib.tools.report.view import View, grouped, unfinished

LARGE = 256 << 10  # tokens: from here on, reading them is all that counts


class AttentionView(View):
    """A line for each candidate that has a figure."""

    def columns(self) -> Sequence[Column]:
        """Return the columns of a row: the rate that bounds the phase first."""
        gbps = Column("rate", lambda row: fitted(row["gbps"], 7), 7, "GB/s", spare=7)
        tflops = Column("rate", lambda row: fitted(row["tflops"], 7), 7, "TFLOP/s", spare=7)
        decodes = self.document["config"]["phase"] == "decode"
        first, second = (gbps, tflops) if decodes else (tflops, gbps)
        return [
            Column("batch", lambda row: str(row["batch"]), 6),
            Column("tokens", lambda row: str(row["length"]), 6),
            Column("candidate", _label, 18, left=True),
            Column("time", lambda row: fitted(row["time_us"]["p50"], 7), 7, "(us)"),
            Column(first.name, first.read, first.width, first.unit),
            Column("%ceil", lambda row: percent_text(row["of_ceiling"]), 5),
            Column("error", _error, 7),
            Column("ratio", _ratio, 17, "to ours", spare=4),
            Column("host", lambda row: fitted(row["host_us"], 6), 6, "(us)", spare=6),
            second,
        ]

    def opening(self) -> list[str]:
        """Say what is measured, and where."""
        config, machine = self.document["config"], self.document["fingerprint"]
        on_gpu = config["device"] == "cuda"
        where = machine["device"] if on_gpu else f"{machine['cpu']}, {config['threads']} thread"
        ceiling = "a read of K and V" if config["phase"] == "decode" else "a matrix product of as many operations"
        compares = config["phase"] == "decode" and config["beside"] == "compare"
        calls = "a call in a replayed CUDA graph" if on_gpu else "calls back to back"
        lines = [
            f"commlib {machine['commlib']} profile attention, {config['phase']}: {where}",
            f"torch {machine['torch']}, Python {machine['python']}, Linux {machine['kernel']}",
            f"time: {calls}, median of interleaved blocks; tensors in rotation, {counted(config['cases'], 'case')}",
            f"%ceil: 100 is {ceiling}, the fastest of this case; error: largest, of the largest value in float32",
            *(["torch, FlexAttention and flash-attn read a dense copy, which is not timed"] if compares else []),
            "ratio: time of a call over ours, with its 95 % interval; the line of ours (*) has the best peer's",
        ]
        return [f"# {line}" for line in lines]

    def closing(self) -> list[str]:
        """Say who was not measured and why, and whether values are wrong."""
        rows = self.document["rows"]
        lines = [*self.document["notes"], *_ours(rows), *_skipped(rows)]
        wrong = sum(row["wrong"] or 0 for row in rows)
        lines += [f"Values too far off : {wrong} {'FAILED' if wrong else 'OK'}"]
        return ["#", *(f"# {line}" for line in lines), *unfinished(self.document)]

    def title(self, rows: Sequence[Row]) -> str:
        """Name what the cases share."""
        row = rows[0]
        words = [f"attention {row['phase']}{' ragged' if row['ragged'] else ''}"]
        words += [f"{row['heads']}/{row['kv_heads']} heads of {row['dim']}", row["type"]]
        words += [f"pages of {row['page_size']}"] if row["phase"] == "decode" else []
        return ", ".join([*words, *([f"cache {row['cache']}"] if row["cache"] != row["type"] else [])])

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return whoever has a figure."""
        return [row for row in rows if row["time_us"]]


def _ours(rows: Sequence[Row]) -> Iterator[str]:
    """Say where ours is farthest from the ceiling, where there is enough to read, and who is faster beyond doubt."""
    timed = [row for row in rows if row["role"] == OURS and row["time_us"]]
    measured = [row for row in timed if row["of_ceiling"] is not None]
    large = [row for row in measured if row["batch"] * row["length"] >= LARGE]
    if measured:
        least = min(large or measured, key=lambda row: float(row["of_ceiling"]))
        where = f", of {LARGE >> 10}K tokens or more" if large else ""
        share = f"{percent_text(least['of_ceiling'])} % of the ceiling"
        yield f"{least['candidate']} reaches at least {share} ({_size(least)}{where})"
    for row in timed:
        versus = row["versus"]
        if versus and versus["of"] != row["candidate"] and versus["high"] < 1:
            yield f"{versus['of']} takes {ratio_text(versus['ratio'])} of the time of {row['candidate']} ({_size(row)})"


def _size(row: Row) -> str:
    return f"{row['batch']} x {counted(row['length'], 'token')}"


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    left_out = [row for row in rows if row["skipped"]]
    for same in grouped(left_out, lambda row: (row["candidate"], row["skipped"])):
        times = f" ({len(same)} cases)" if len(same) > 1 else ""
        yield f"skipped {same[0]['candidate']}: {same[0]['skipped']}{times}"


def _label(row: Row) -> str:
    return str(row["candidate"]) + ("*" if row["role"] == OURS else "")


def _error(row: Row) -> str:
    if row["wrong"] is None:
        return "-"
    return "NaN" if row["error"] is None else f"{row['error']:.1e}"


def _ratio(row: Row) -> str:
    return "WRONG" if row["wrong"] else interval_text(row["versus"])
