"""The steps of a report: the commands that it calls, and how their documents are read. Nothing else knows these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from commlib.collectives import COLLECTIVES
from commlib.tools.baselines.kernels.case import OURS, PEER
from commlib.tools.bench import kernels, which
from commlib.tools.bench.result import median_us, title
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
class Reader:
    """What reads and shows a document; names are module:name below commlib.tools, loaded when pages are written."""

    kind: str
    view: str = ""  # "": the rows are a table as they are
    order: tuple[str, ...] = ()  # of rows, as a packed file has them in another

    def read(self, path: Path) -> dict[str, Any]:
        document: dict[str, Any] = _load(self.kind).read(path)
        if self.order:
            document["rows"].sort(key=lambda row: [_rank_of(key, row.get(key, 0)) for key in self.order])
        return document

    @property
    def shown_by(self) -> type[View] | None:
        """The view of its command."""
        return _load(self.view) if self.view else None


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"commlib.tools.{module}"), name)


def _rank_of(key: str, value: Any) -> Any:
    return list(COLLECTIVES).index(value) if key == "op" else value


@dataclass(frozen=True)
class Step:
    """A command that prints a document, what reads that, and its further options for each scope."""

    title: str
    command: str
    reader: Reader
    options: tuple[str, str, str] = ("", "", "")

    def arguments(self, settings: Settings) -> list[str]:
        gpu = "--graph --dtype bfloat16" if settings.on_gpus else ""
        mode = "--mode graph --dtype bfloat16" if settings.on_gpus else ""
        text = f"{self.command} {self.options[SCOPES.index(settings.scope)]}"
        return text.format(ranks=settings.ranks, gpu=gpu, mode=mode).split()


BENCH, COMM = "bench -n {ranks} {gpu} --format json", "bench all_reduce --phases -n {ranks} {gpu} --format json"
EXPLAIN = "plan explain all_reduce -n {ranks} {mode} --placement both --json --bytes"
SIZES = "1K,64K,1M", "8,1K,64K,1M,16M", "8,1K,16K,64K,256K,1M,4M,16M,64M"
QUICK = "--no-compile --time 3"  # compiles nothing with torch
COLLECTIVE = Reader("bench.result:KIND", order=("op", "size"))
PHASES = Reader("bench.phases_report:KIND", "bench.phases_report:PhasesView")
KERNEL = Reader("bench.kernels:KIND", "bench.kernels:KernelView", ("variant", "n", "bytes", "detail"))
DECODE, PREFILL = (f"bench attention --phase={phase} --compare --json" for phase in ("decode", "prefill"))
STEPS = {
    "environment": Step("Environment", "doctor --json", Reader("cli.doctor.command:KIND")),
    "correctness": Step("Correctness", "test -n {ranks} --json", Reader("cli.test:KIND"), ("--quick", "", "")),
    "collectives": Step(
        "Collectives", BENCH, COLLECTIVE, ("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300")
    ),
    "comm": Step("Phases of one all_reduce", COMM, PHASES, ("--time 3", "", "--time 20")),
    "paths": Step("Other sizes of all_reduce", EXPLAIN, Reader("cli.plan_paths:KIND"), SIZES),
    "index": Step(
        "Kernel: index", "bench index --json", KERNEL, (f"--dim 4096 -n 1,64,1024,16384 {QUICK}", "", "--sweep")
    ),
    "store": Step(
        "Kernel: store", "bench store --json", KERNEL, (f"--dim 1024 -n 1,64,512,4096 {QUICK}", "", "--sweep")
    ),
    "metadata": Step("Kernel: metadata", "bench metadata --json", KERNEL, (QUICK, "", "--sweep")),
    "attention": Step("Attention: decoding", DECODE, KERNEL, ("--no-compile --time 4", "", "--sweep")),
    "prefill": Step("Attention: prompts", PREFILL, KERNEL, ("--no-compile --time 4", "", "--sweep")),
    "radix": Step("Radix cache", "bench radix --json", KERNEL, ("--time 3 --leaves 10000", "", "--time 30")),
    "plan": Step("Plan", "plan show -n {ranks} --json", Reader("cli.plan:KIND")),
}
LAST = ("plan", "correctness", "environment")  # on the page: what is measured comes first
ON_PAGE = [*(name for name in STEPS if name not in LAST), *LAST]


def with_results(name: str, path: Path) -> list[str]:
    return ["--results", str(path)] if name == "paths" and path.exists() else []


def calls(step: str, document: Mapping[str, Any]) -> Iterator[tuple[str, which.Call]]:
    """Yield the calls of commlib in the document of a step, each with its name."""
    if step == "collectives":
        yield from ((_bench_name(call.ours), call) for of in which.calls(document) for call in of)
        return
    rows = [row for row in document.get("rows", ()) if row.get("role") and row["time_us"]]
    for of in grouped(rows, _kernel_name):
        ours = [row for row in of if row["role"] == OURS]
        others = [{**row, "algorithm": row["candidate"]} for row in of if row["role"] == PEER and not row["wrong"]]
        if ours:
            best = min(others, key=median_us, default=None)
            yield _kernel_name(of[0]), which.Call(ours[0], best, interval=ours[0]["versus"] if best else None)


def _bench_name(row: Row) -> str:
    memory, place = "symmetric" * (row["placement"] != "plain"), "in place" * row["in_place"]
    return ", ".join(filter(None, (title(row), size_text(row["size"]), memory, place)))


def _kernel_name(row: Row) -> str:
    return f"{kernels.title(row)}, {kernels.place(row)}"
