"""`commlib report`: the whole profile of a machine; STAGES is the table of what is measured, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SCOPES = ("quick", "usual", "all")
_ON_GPUS = ("--graph", "--dtype", "bfloat16")
_PATHS = ("--analyze 1K,64K,1M", "--analyze 8,1K,64K,1M,16M", "--analyze 8,1K,16K,64K,256K,1M,4M,16M,64M")


@dataclass(frozen=True)
class Settings:
    """What was asked for: how much, on how many ranks, and whether these are on GPUs."""

    scope: str
    ranks: int
    on_gpus: bool

    def pick(self, *texts: str) -> list[str]:
        """Return the words for this scope, out of those for quick, usual and all."""
        return texts[SCOPES.index(self.scope)].split()


@dataclass(frozen=True)
class Stage:
    """One command, whose document is kept; `seconds` is about what it takes, quick, usual and all."""

    title: str
    words: Callable[[Settings], list[str]]
    seconds: tuple[int, int, int]
    results_of: str = ""  # a stage whose document, if there is one, is given to it as --results


def _doctor(settings: Settings) -> list[str]:
    return ["doctor", "--json"]


def _test(settings: Settings) -> list[str]:
    return ["test", "-n", str(settings.ranks), *settings.pick("--quick", "", ""), "--json"]


def _kernel(name: str, quick: str = "") -> Callable[[Settings], list[str]]:
    """Return the words of a kernel's profile; a quick one compiles nothing with torch."""
    scopes = f"{quick} --no-compile --time 3", "", "--sweep"
    return lambda settings: ["profile", name, *settings.pick(*scopes), "--json"]


def _attention(phase: str) -> Callable[[Settings], list[str]]:
    scopes = "--no-compile --time 4", "", "--sweep"
    return lambda settings: ["profile", "attention", f"--phase={phase}", "--compare", *settings.pick(*scopes), "--json"]


def _radix(settings: Settings) -> list[str]:
    return ["profile", "radix", *settings.pick("--time 3 --leaves 10000", "", "--time 30"), "--json"]


def _bench(settings: Settings) -> list[str]:
    on_gpus = _ON_GPUS if settings.on_gpus else ()
    much = settings.pick("--time 20", "--time 60", "--max-bytes 64M --factor 4 --time 300")
    return ["bench", "-n", str(settings.ranks), *on_gpus, *much, "--format", "json"]


def _comm(*scopes: str) -> Callable[[Settings], list[str]]:
    return lambda settings: [
        *("profile", "comm", "all_reduce", "-n", str(settings.ranks)),
        *(_ON_GPUS if settings.on_gpus else ()),
        *settings.pick(*scopes),
        "--json",
    ]


def _plan(settings: Settings) -> list[str]:
    return ["plan", "show", "-n", str(settings.ranks), "--json"]


STAGES = {
    "environment": Stage("Environment", _doctor, (15, 15, 15)),
    "correctness": Stage("Correctness", _test, (10, 60, 60)),
    "index": Stage("Kernel: index", _kernel("index", "--dim 4096 -n 1,64,1024,16384"), (12, 40, 120)),
    "store": Stage("Kernel: store", _kernel("store", "--dim 1024 -n 1,64,512,4096"), (10, 40, 120)),
    "metadata": Stage("Kernel: metadata", _kernel("metadata"), (6, 20, 80)),
    "radix": Stage("Radix cache", _radix, (6, 15, 40)),
    "attention": Stage("Attention: decoding", _attention("decode"), (8, 30, 100)),
    "prefill": Stage("Attention: prompts", _attention("prefill"), (8, 30, 100)),
    "collectives": Stage("Collectives", _bench, (45, 90, 330)),
    "comm": Stage("One all_reduce", _comm("--time 3", "", "--time 20"), (8, 10, 25)),
    "paths": Stage("Paths of all_reduce", _comm(*_PATHS), (5, 5, 5), results_of="collectives"),
    "plan": Stage("Plan", _plan, (5, 5, 5)),
}
