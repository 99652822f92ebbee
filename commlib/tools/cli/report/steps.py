"""The steps of a report: the commands that it calls, and how their documents are read. Nothing else knows these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from commlib.collectives import COLLECTIVES
from commlib.counts import counted
from commlib.tools.bench import which
from commlib.tools.bench.rows import measured, median_us, title
from commlib.tools.cli.profile import notes
from commlib.tools.report.document import Row
from commlib.tools.report.figures import size_text
from commlib.tools.report.view import View, grouped

Documents = Mapping[str, dict[str, Any]]  # by step
SCOPES = ("quick", "usual", "all")


@dataclass(frozen=True)
class Settings:
    """What is measured: how much, on how many ranks, and whether these are on GPUs."""

    scope: Literal["quick", "usual", "all"]
    ranks: int
    on_gpus: bool


@dataclass(frozen=True)
class Step:
    """A command that prints a document, its further options for each scope, and what reads and shows the document."""

    title: str
    command: str
    kind: str  # module:name below commlib.tools, loaded when pages are written
    options: tuple[str, str, str] = ("", "", "")
    view: str = ""  # as kind; "": the rows are a table as they are
    order: tuple[str, ...] = ()  # of rows, as a packed file has them in another

    def arguments(self, settings: Settings) -> list[str]:
        """Return those of `commlib`."""
        gpu = "--graph --dtype bfloat16" if settings.on_gpus else ""
        text = f"{self.command} {self.options[SCOPES.index(settings.scope)]}"
        return text.format(ranks=settings.ranks, gpu=gpu).split()

    def read(self, path: Path) -> dict[str, Any]:
        """Read its document."""
        document: dict[str, Any] = _load(self.kind).read(path)
        if self.order:
            document["rows"].sort(key=lambda row: [_rank_of(key, row.get(key, 0)) for key in self.order])
        return document

    @property
    def view_of(self) -> type[View] | None:
        """The view that its command shows it by."""
        return _load(self.view) if self.view else None


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"commlib.tools.{module}"), name)


def _rank_of(key: str, value: Any) -> Any:
    return list(COLLECTIVES).index(value) if key == "op" else value


COMM = "profile comm all_reduce -n {ranks} {gpu} --json"
SIZES = "1K,64K,1M", "8,1K,64K,1M,16M", "8,1K,16K,64K,256K,1M,4M,16M,64M"
KERNEL = ("--no-compile --time 3", "", "--sweep")  # a quick one compiles nothing with torch
OF_KERNEL: dict[str, Any] = {
    "kind": "cli.profile.report:KIND",
    "view": "cli.profile.view:ProfileView",
    "order": ("n", "bytes"),
}
OF_ATTENTION: dict[str, Any] = {
    "kind": "cli.profile.attention:KIND",
    "view": "cli.profile.attention_view:AttentionView",
    "order": ("n", "bytes"),
    "options": ("--no-compile --time 4", "", "--sweep"),
}
STEPS = {
    "environment": Step("Environment", "doctor --json", "cli.doctor.command:KIND"),
    "correctness": Step("Correctness", "test -n {ranks} --json", "cli.test:KIND", ("--quick", "", "")),
    "collectives": Step(
        "Collectives",
        "bench -n {ranks} {gpu} --format json",
        "bench.rows:KIND",
        ("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300"),
        order=("op", "size"),
    ),
    "comm": Step(
        "Phases of one all_reduce",
        COMM,
        "cli.profile.comm:KIND",
        ("--time 3", "", "--time 20"),
        "cli.profile.comm_view:CommView",
    ),
    "paths": Step(
        "Other sizes of all_reduce",
        f"{COMM} --analyze",
        "cli.profile.comm_analysis:KIND",
        SIZES,
        "cli.profile.comm_analysis_view:AnalysisView",
    ),
    "index": Step(
        "Kernel: index",
        "profile index --json",
        options=(f"--dim 4096 -n 1,64,1024,16384 {KERNEL[0]}", *KERNEL[1:]),
        **OF_KERNEL,
    ),
    "store": Step(
        "Kernel: store",
        "profile store --json",
        options=(f"--dim 1024 -n 1,64,512,4096 {KERNEL[0]}", *KERNEL[1:]),
        **OF_KERNEL,
    ),
    "metadata": Step("Kernel: metadata", "profile metadata --json", options=KERNEL, **OF_KERNEL),
    "attention": Step("Attention: decoding", "profile attention --phase=decode --compare --json", **OF_ATTENTION),
    "prefill": Step("Attention: prompts", "profile attention --phase=prefill --compare --json", **OF_ATTENTION),
    "radix": Step(
        "Radix cache",
        "profile radix --json",
        "cli.profile.radix:KIND",
        ("--time 3 --leaves 10000", "", "--time 30"),
        "cli.profile.radix:RadixView",
    ),
    "plan": Step("Plan", "plan show -n {ranks} --json", "cli.plan:KIND"),
}
LAST = ("plan", "correctness", "environment")  # on the page: what is measured comes first
ON_PAGE = [*(name for name in STEPS if name not in LAST), *LAST]


def with_results(name: str, path: Path) -> list[str]:
    """Return the arguments by which a step uses the document of `collectives`."""
    return ["--results", str(path)] if name == "paths" and path.exists() else []


def calls(step: str, document: Mapping[str, Any]) -> Iterator[tuple[str, which.Call]]:
    """Yield the calls of commlib in the document of a step, each with its name."""
    if step == "collectives":
        yield from ((_bench_name(call.ours), call) for of in which.calls(document) for call in of)
        return
    for of in grouped(timed(step, document), lambda row: row["call"]):
        ours = [row for row in of if row["ours"]]
        others = [row for row in of if not row["ours"] and not row["wrong"] and not row["floor"]]
        if ours:
            best = min(others, key=median_us, default=None)
            yield of[0]["call"], which.Call(ours[0], best, interval=ours[0]["versus"] if best else None)


def timed(step: str, document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a step that have a time as those of bench, each with the name of its call."""
    if step == "collectives":
        return [{**row, "call": _bench_name(row)} for row in measured(document["rows"])]
    rows = document.get("rows", ())
    return [_as_bench(row) for row in rows if "candidate" in row and row.get("time_us", row.get("median_us"))]


def _bench_name(row: Row) -> str:
    memory, place = "symmetric" * (row["placement"] != "plain"), "in place" * row["in_place"]
    return ", ".join(filter(None, (title(row), size_text(row["size"]), memory, place)))


def _as_bench(row: Row) -> Row:
    """Return a row of a kernel as one of bench; the blocks of a radix row are known by the fastest and the median."""
    low, middle, call = row.get("least_us"), row.get("median_us"), _kernel_name(row)
    return {
        **{"op": call, "size": row.get("bytes", 0), "type": row.get("type"), "redop": None, "root": None},
        **{"placement": "plain", "in_place": False, "mode": row.get("mode", "eager"), "call": call},
        **{"algorithm": row["candidate"], "floor": row.get("role") == "floor", "wrong": row.get("wrong") or 0},
        "versus": row.get("versus"),
        "ours": row["role"] == "ours" if "role" in row else row["candidate"].startswith("commlib"),
        "time_us": row.get("time_us") or {"p0": low, "p10": low, "p50": middle, "p90": middle},
    }


def _kernel_name(row: Row) -> str:
    if "operation" in row:
        return f"radix {row['operation']}: {counted(row['tokens'], 'token')}, {row['detail']}"
    if "heads" not in row:
        return f"{notes.title(row)}, n {row['n']}"
    heads = f"{row['heads']}/{row['kv_heads']} heads of {row['dim']}, {row['type']}, cache {row['cache']}"
    ragged = " ragged" if row["ragged"] else ""
    return f"attention {row['phase']}{ragged}, {heads}, {row['batch']} × {counted(row['length'], 'token')}"
