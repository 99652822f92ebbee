"""The steps of a report: the commands that it calls."""

from __future__ import annotations

from dataclasses import dataclass

SCOPES = ("quick", "usual", "all")


@dataclass(frozen=True)
class Settings:
    """What is measured: how much, on how many ranks, and whether these are on GPUs."""

    scope: str
    ranks: int
    on_gpus: bool


@dataclass(frozen=True)
class Step:
    """A command that writes a document, and its further options for each scope."""

    title: str
    command: str
    options: tuple[str, str, str] = ("", "", "")

    def arguments(self, settings: Settings) -> list[str]:
        gpu = "--graph --dtype bfloat16" if settings.on_gpus else ""
        text = f"{self.command} {self.options[SCOPES.index(settings.scope)]}"
        return text.format(ranks=settings.ranks, gpu=gpu).split()


def _kernel(title: str, arguments: str, quick: str) -> Step:
    return Step(title, f"bench {arguments}", (f"{quick} --time 3", "", "--sweep"))


BENCH = ("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300")
STEPS = {  # in the order of the page
    "collectives": Step("Collectives", "bench -n {ranks} {gpu} --format table", BENCH),
    "index": _kernel("Kernel: index", "index", "--dim 4096 --rows 1,64,1024,16384"),
    "store": _kernel("Kernel: store", "store", "--dim 1024 --rows 1,64,512,4096"),
    "metadata": _kernel("Kernel: metadata", "metadata", ""),
    "attention": _kernel("Attention", "attention", ""),
    "radix": Step("Radix cache", "bench radix", ("--leaves 10000 --time 3", "", "--time 30")),
    "plan": Step("Plan", "plan show -n {ranks}"),
    "correctness": Step("Correctness", "test -n {ranks}", ("--quick", "", "")),
    "environment": Step("Environment", "doctor"),
}
