"""How results of `commlib bench KERNEL` are shown: a line for each candidate, patterns side by side, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from commlib.counts import counted
from commlib.tools.baselines.kernels.case import FLOOR, OURS, PROBES
from commlib.tools.report import chart
from commlib.tools.report.chart import Panel, look
from commlib.tools.report.document import Row
from commlib.tools.report.figures import about, fitted, interval_text, percent_text, ratio_text
from commlib.tools.report.table import Column, Table
from commlib.tools.report.view import View, device, grouped, unfinished


def title(row: Row, pattern: str | None = None) -> str:
    """Name the series of a row, such as: store fp8, dim 128, bfloat16, random, cold, CUDA graph."""
    kernel, graph = f"{row['kernel']} {row['variant']}".strip(), "CUDA graph" * (row["mode"] == "graph")
    if row["kernel"] == "radix":
        return "radix"
    if row["kernel"] == "attention":
        parts = ["ragged" * row["ragged"], f"{row['heads']}/{row['kv_heads']} heads of {row['dim']}", row["type"]]
        parts += [f"pages of {row['page_size']}" * (row["variant"] != "prefill")]
    else:
        parts = [f"dim {row['dim']}", row["type"], row["pattern"] if pattern is None else pattern, row["heat"]]
    return ", ".join(filter(None, [kernel, *parts, graph]))


def place(row: Row) -> str:
    """Name the case of a row within its series."""
    if row["kernel"] == "radix":
        return f"{row['variant']} {row['n']} {row['detail']}"
    return f"{row['n']} x {counted(row['length'], 'token')}" if row["kernel"] == "attention" else f"n {row['n']}"


class KernelView(View):
    """A line for each candidate that has a figure, cases of one series below each other."""

    def columns(self) -> Sequence[Column]:
        config = self.document["config"]
        kernel, on_gpu = config["kernel"], config["device"] == "cuda"
        radix, attention, prefill = kernel == "radix", kernel == "attention", config["variant"] == "prefill"
        rate = _figure("rate", "gbps", "GB/s", spare=8 * prefill or 5 * radix)
        flops = [_figure("rate", "tflops", "TFLOP/s", spare=8 * (not prefill))] * attention
        return [
            *PLACES.get(kernel, ROWS),
            Column("candidate", _label, 14 if radix else 18, left=True),
            TIME,
            *([*flops, rate] if prefill else [rate, *flops]),
            *([BOUND] * (not radix)),
            *([Column("error", _error, 7, spare=4)] * attention),
            *([_figure("host", "host_us", width=6, spare=6), _figure("wall", "wall_us", width=6, spare=7)] * on_gpu),
            Column("ratio", _ratio, 17, "to ours", spare=2),
        ]

    def opening(self) -> list[str]:
        config, machine = self.document["config"], self.document["fingerprint"]
        on_gpu = config["device"] == "cuda"
        where = machine.get("gpu") if on_gpu else f"{machine['cpu']}, {config['threads']} thread"
        cuda = f"CUDA {machine['cuda']}, driver {machine['driver']}, " if on_gpu and machine.get("cuda") else ""
        lines = [
            f"commlib {machine['commlib']} bench {config['kernel']}: {where}",
            f"torch {machine['torch']}, {cuda}Python {machine['python']}, Linux {machine['kernel']}",
            f"cases: {config['cases']}, measured for about {config['seconds']:g} s; values are compared",
            *(_on_gpu(config) if on_gpu else ["time: calls back to back, median of interleaved blocks"]),
            *BOUNDS.get(config["kernel"], BOUNDS["copy"]),
            "ratio: time of a call over ours, with its 95 % interval; the line of ours (*) has the best peer's",
        ]
        return [f"# {line}" for line in lines]

    def closing(self) -> list[str]:
        rows, wrong = self.rows(), self.document["wrong"]
        lines = [*_slower(rows), *_small_sets(self.document), *self.document["notes"], *_skipped(rows)]
        lines += [f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
        return ["#", *(f"# {line}" for line in lines), *unfinished(self.document)]

    def ending(self) -> list[str]:
        """Put patterns side by side above that, if it was asked for."""
        patterns = self.by_pattern() if self.document["config"]["compare_patterns"] else []
        return [*patterns, *super().ending()]

    def title(self, rows: Sequence[Row]) -> str:
        return title(rows[0])

    def items(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that have a figure."""
        return [row for row in rows if row["time_us"] or row["wall_us"]]

    def by_pattern(self) -> Iterator[str]:
        """Yield time and share of each pattern side by side, for each candidate of each case."""
        timed = [row for row in self.rows() if row["time_us"]]
        for rows in grouped(timed, partial(title, pattern="")):
            columns = [
                Column("n", lambda line: str(next(iter(line.values()))["n"]), 6),
                Column("candidate", lambda line: _label(next(iter(line.values()))), 18, left=True),
            ]
            for pattern in dict.fromkeys(row["pattern"] for row in rows):
                columns += [_of_pattern(column, pattern) for column in (TIME, BOUND)]
            table = Table(columns, self.width)
            yield from table.head(title(rows[0], pattern=""))
            for line in grouped(rows, lambda row: (row["n"], row["candidate"])):
                yield table.line({row["pattern"]: row for row in line})

    def panels(self) -> list[list[Panel]]:
        """Return latency, and share of the bound, of each series of rows."""
        rows = [row for row in self.rows() if row["time_us"] and row["kernel"] not in PLACES]
        dashes, styles = {OURS: "-", FLOOR: ":"}, dict[str, Any]()
        for row in rows:
            new = look(len(styles), linestyle=dashes.get(row["role"], "--"))
            first = row["role"] == OURS and not any(style is chart.OURS for style in styles.values())
            styles.setdefault(row["candidate"], chart.OURS if first else new)
        return [_panels(of_series, styles) for of_series in grouped(rows, title)]

    def chart_title(self) -> str:
        return f"{self.document['config']['kernel']}, {device(self.document)}"


def _figure(name: str, key: str, unit: str = "(us)", width: int = 7, spare: int = 0) -> Column:
    """Return the column of a figure, or of the median of one with percentiles."""

    def read(row: Row) -> str:
        value = row[key]
        return fitted(value["p50"] if isinstance(value, dict) else value, width)

    return Column(name, read, width, unit, spare=spare)


def _fact(name: str, key: str, width: int, left: bool = False, spare: int = 0) -> Column:
    return Column(name, lambda row: f"{' ' * name.startswith(' ')}{row[key]}", width, left=left, spare=spare)


TIME = _figure("time", "time_us")
BOUND = Column("bound", lambda row: percent_text(row["of_bound"]), 5, "(%)", spare=3)
ROWS = (_fact("n", "n", 6), _fact("dim", "dim", 5, spare=9), _fact("pattern", "pattern", 10, left=True, spare=10))
PLACES = {  # what names a case
    "radix": (
        _fact(" operation", "variant", 14, left=True),
        _fact("tokens", "n", 6),
        _fact("detail", "detail", 16, left=True, spare=1),
    ),
    "attention": (_fact("batch", "n", 6), _fact("tokens", "length", 6)),
}
BOUNDS: Mapping[str, Sequence[str]] = {
    "copy": ["rate: bytes read and written; bound: 100 is torch's copy_ of as many bytes, which is no peer"],
    "radix": [],
    "attention": [
        "bound: 100 is a read of K and V, or a matrix product of as many operations, measured in the same case",
        "error: largest, as a share of the largest value in float32; torch, FlexAttention and flash-attn read a dense "
        "copy, which is not timed",
    ],
}


def _of_pattern(column: Column, pattern: str) -> Column:
    """Return the column for lines that have a row of each pattern, below the pattern's name."""

    def read(line: Mapping[str, Row]) -> str:
        return column.read(line[pattern]) if pattern in line else "-"

    return Column(column.name, read, column.width, column.unit, pattern)


def _on_gpu(config: Mapping[str, Any]) -> Iterator[str]:
    sets = f"{about(config['cold_bytes'])} in all, at most {counted(config['max_sets'], 'set')}"
    yield "time: a call in a replayed CUDA graph, median of interleaved replays; host, wall: eager calls back to back"
    yield f"cold: sets in rotation, {sets}" + ("; the cache is flushed before each replay" if config["flush"] else "")


def _slower(rows: Sequence[Row]) -> Iterator[str]:
    """Name the peers that beat ours, where the interval leaves no doubt."""
    ours = [row for row in rows if row["role"] == OURS and row["versus"]]
    # A second line of ours is compared with the first, which is no peer.
    sure = [row for row in ours if row["versus"]["high"] < 1 and row["versus"]["of"] != row["candidate"]]
    for lost in grouped(sure, lambda row: row["versus"]["of"]):
        ratios = [f"{ratio_text(row['versus']['ratio'])} at {', '.join([place(row), *_rest(row)])}" for row in lost]
        yield f"{lost[0]['versus']['of']} is faster than ours: {'; '.join(ratios)}"


def _rest(row: Row) -> list[str]:
    return [f"dim {row['dim']}", row["pattern"], row["heat"]] if row["kernel"] not in PLACES else []


def _small_sets(document: Mapping[str, Any]) -> Iterator[str]:
    """Name the cold cases that were not: their sets are too small to fill the cache."""
    config = document["config"]
    cold = [row for row in document["rows"] if row.get("heat") == "cold"]
    small = sorted({row["n"] for row in cold if row["sets"] * row["bytes"] < config["cold_bytes"]})
    if small and config["device"] == "cuda" and not config["flush"]:
        numbers = ", ".join(map(str, small))
        yield f"n {numbers}: with short rows, all sets together fit into the cache; --flush empties it"


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    for same in grouped([row for row in rows if row["skipped"]], lambda row: (row["candidate"], row["skipped"])):
        times = f" ({len(same)} cases)" if len(same) > 1 else ""
        yield f"skipped {same[0]['candidate']}: {same[0]['skipped']}{times}"


def _panels(rows: list[Row], styles: Mapping[str, Any]) -> list[Panel]:
    rows = sorted(rows, key=lambda row: int(row["n"]))
    of_bound = [row for row in rows if row["of_bound"] is not None and not row["candidate"].startswith(PROBES)]

    def lines(rows: Sequence[Row], figure: Callable[[Row], float]) -> list[chart.Line]:
        of_name = {of[0]["candidate"]: of for of in grouped(rows, lambda row: row["candidate"])}
        return [chart.Line(name, {row["n"]: figure(row) for row in of}, styles[name]) for name, of in of_name.items()]

    times = lines(rows, lambda row: float(row["time_us"]["p50"]))
    shares = lines(of_bound, lambda row: 100 * float(row["of_bound"]))
    return [
        Panel(title(rows[0]), "latency, µs", times, xlabel="n", log_y=True),
        Panel("bandwidth next to that of a copy", "% of copy", shares, xlabel="n", bottom=0, level=100),
    ]


def _label(row: Row) -> str:
    return str(row["candidate"]) + ("*" if row["role"] == OURS else "")


def _error(row: Row) -> str:
    if row["wrong"] is None:
        return "-"
    return "NaN" if row["error"] is None else f"{row['error']:.1e}"


def _ratio(row: Row) -> str:
    return "WRONG" if row["wrong"] else interval_text(row["versus"])
