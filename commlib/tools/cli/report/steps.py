"""The steps of a report: the commands that it calls, and what reads their documents. Nothing else knows these."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SCOPES = ("quick", "usual", "all")


@dataclass(frozen=True)
class Settings:
    """What is measured: how much, on how many ranks, and whether these are on GPUs."""

    scope: str
    ranks: int
    on_gpus: bool


@dataclass(frozen=True)
class Step:
    """A command that writes a document, and its further options for each scope.

    Kind and view are module:name below commlib.tools, loaded when pages are written.
    """

    title: str
    command: str
    kind: str
    view: str = ""  # "": columns of its rows are a table
    columns: tuple[str, ...] = ()
    options: tuple[str, str, str] = ("", "", "")

    def arguments(self, settings: Settings) -> list[str]:
        gpu = "--graph --dtype bfloat16" if settings.on_gpus else ""
        text = f"{self.command} {self.options[SCOPES.index(settings.scope)]}"
        return text.format(ranks=settings.ranks, gpu=gpu).split()

    def read(self, path: Path) -> dict[str, Any]:
        document: dict[str, Any] = load(self.kind).read(path)
        return document


def load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"commlib.tools.{module}"), name)


def _kernel(title: str, arguments: str, quick: str) -> Step:
    view = "bench.kernels:KernelView"
    return Step(title, f"bench {arguments}", "bench.kernels:KIND", view, options=(f"{quick} --time 3", "", "--sweep"))


PLAN = ("op", "dtype", "redop", "placement", "mode", "up_to", "choice", "gain", "runner_up")
BENCH = ("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300")
BARE = "--no-compile"  # with nothing that torch compiles
STEPS = {  # in the order of the page
    "collectives": Step("Collectives", "bench -n {ranks} {gpu}", "bench.result:KIND", options=BENCH),
    "index": _kernel("Kernel: index", "index", f"{BARE} --dim 4096 --rows 1,64,1024,16384"),
    "store": _kernel("Kernel: store", "store", f"{BARE} --dim 1024 --rows 1,64,512,4096"),
    "metadata": _kernel("Kernel: metadata", "metadata", BARE),
    "attention": _kernel("Attention", "attention --compare", BARE),
    "plan": Step("Plan", "plan show -n {ranks}", "cli.plan:KIND", columns=PLAN),
    "correctness": Step(
        "Correctness",
        "test -n {ranks}",
        "cli.test:KIND",
        columns=("ranks", "op", "algorithm", "wrong"),
        options=("--quick", "", ""),
    ),
    "environment": Step(
        "Environment", "doctor", "cli.doctor.command:KIND", columns=("topic", "state", "detail", "remedy")
    ),
}
