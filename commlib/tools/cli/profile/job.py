"""From the options of `commlib profile` to a job; what is wrong with them is said before anything is measured."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import click
import torch

from commlib.env import parse_bytes
from commlib.tools.baselines.kernels import KERNELS
from commlib.tools.baselines.kernels.case import Case
from commlib.tools.baselines.kernels.compiled import Compiler
from commlib.tools.baselines.kernels.measure import Settings
from commlib.tools.baselines.kernels.sets import MOST_SETS, cold_bytes
from commlib.tools.cli.options import check_files, read_dtypes
from commlib.tools.cli.profile.external import External

LARGEST = 1 << 40


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    cases: tuple[Case, ...]  # of one kernel
    settings: Settings
    seconds: float
    compares: bool  # patterns side by side

    def config(self) -> dict[str, Any]:
        """Return what the document says of it."""
        settings = self.settings
        return {
            "kernel": self.cases[0].kernel,
            "device": settings.device.type,
            "threads": torch.get_num_threads(),
            "cases": len(self.cases),
            "seconds": self.seconds,
            "seed": settings.seed,
            "flush": settings.flush,
            "cold_bytes": cold_bytes(settings.device),
            "most_sets": MOST_SETS,
            "compile": not settings.compiler.off,
            "peers": [other.name for other in settings.others],
            "compare_patterns": self.compares,
        }


def read_job(name: str, options: dict[str, Any]) -> Job:
    """Turn options into a job, or raise what is wrong with them."""
    device = read_device(options["device"])
    check_files(options["output"], options["plot"], "--json")
    on_gpu = device.type == "cuda"
    if options["flush"] and not on_gpu:
        raise click.UsageError("--flush is of graphs, which need a GPU; leave it out")
    compiles = on_gpu if options["compile_"] is None else options["compile_"]
    off = "" if compiles else "not asked for" if on_gpu else "takes long on the CPU; --compile"
    others = [External(path) for path in options["peer"]]
    settings = Settings(device, options["seed"], options["flush"], Compiler(off), others)
    return Job(tuple(_cases(name, options)), settings, options["seconds"], options["compare_patterns"])


def read_device(text: str) -> torch.device:
    """Return the device of a name; auto is the current GPU if there is one."""
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise click.UsageError(f"--device {text!r} is none; write auto, cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise click.UsageError(f"--device {text} is not supported; write cpu or cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise click.UsageError(f"--device {text}: torch finds no GPU here")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device


def _cases(name: str, options: dict[str, Any]) -> list[Case]:
    listed, sweeps = KERNELS[name], options["sweep"]
    dims = numbers("--dim", options["dims"]) or (listed.sweep_dims if sweeps else listed.dims)
    rows = numbers("-n", options["rows"]) or (listed.sweep_rows if sweeps else listed.rows)
    patterns = listed.patterns if options["compare_patterns"] else (options["pattern"] or "random",)
    heats = {None: (False, True) if sweeps else (False,), "hot": (True,), "cold": (False,)}[options["heat"]]
    every = itertools.product(_dtypes(name, options["dtype"]), dims, heats, patterns, rows)
    variant = options["variant"] or ""
    return [Case(name, n, dim, dtype, pattern, variant, hot) for dtype, dim, hot, pattern, n in every]


def _dtypes(name: str, text: str | None) -> tuple[torch.dtype, ...]:
    names = KERNELS[name].dtypes
    found = read_dtypes(names[0] if text is None else text)
    for other in (str(dtype).removeprefix("torch.") for dtype in found):
        if other not in names:
            raise click.UsageError(f"{name} is profiled for {', '.join(names)}, not {other}")
    return found


def numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Return the whole numbers of a list such as 1,64,16K, each once."""
    if text is None:
        return ()
    try:
        found = tuple(dict.fromkeys(parse_bytes(item.strip()) for item in text.split(",")))
    except ValueError:
        raise click.UsageError(f"{option} {text!r} is no list of numbers; write 1,64,16K") from None
    if not all(0 < number < LARGEST for number in found):
        raise click.UsageError(f"{option} {text!r} has a number that is not above 0")
    return found
