"""From the options of `commlib profile` to a job; what is wrong with them is said before anything is measured."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from commlib.cli.options import check_files, read_dtypes
from commlib.env import parse_bytes
from commlib.peers.kernels import KERNELS, load
from commlib.peers.kernels.case import Case, Kernel
from commlib.peers.kernels.measure import Settings
from commlib.peers.kernels.memory import MOST_SETS, cold_bytes

LARGEST = 1 << 40


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    kernel: Kernel
    cases: tuple[Case, ...]
    settings: Settings
    seconds: float
    compiles: bool
    peers: tuple[Path, ...]
    compares: bool  # patterns side by side

    @property
    def on_gpu(self) -> bool:
        """Whether graphs are replayed on a GPU; else calls are made on the CPU."""
        return self.settings.device.type == "cuda"

    def config(self) -> dict[str, Any]:
        """Return what the document says of it."""
        return {
            "kernel": self.kernel.name,
            "device": self.settings.device.type,
            "threads": torch.get_num_threads(),
            "cases": len(self.cases),
            "seconds": self.seconds,
            "seed": self.settings.seed,
            "flush": self.settings.flush,
            "cold_bytes": cold_bytes(self.settings.device),
            "most_sets": MOST_SETS,
            "compile": self.compiles,
            "peers": [path.stem for path in self.peers],
            "compare_patterns": self.compares,
        }


def read_job(name: str, options: dict[str, Any]) -> Job:
    """Turn options into a job, or raise what is wrong with them."""
    kernel = load(name)
    device = read_device(options["device"])
    check_files(options["output"], options["plot"], "--json")
    on_gpu = device.type == "cuda"
    if options["flush"] and not on_gpu:
        raise click.UsageError("--flush is of graphs, which need a GPU; leave it out")
    return Job(
        kernel=kernel,
        cases=tuple(_cases(kernel, options)),
        settings=Settings(device, options["seed"], options["flush"]),
        seconds=options["seconds"],
        compiles=on_gpu if options["compile_"] is None else options["compile_"],
        peers=options["peer"],
        compares=options["compare_patterns"],
    )


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


def _cases(kernel: Kernel, options: dict[str, Any]) -> list[Case]:
    sweeps = options["sweep"]
    dims = _numbers("--dim", options["dims"]) or (kernel.sweep_dims if sweeps else kernel.dims)
    rows = _numbers("-n", options["rows"]) or (kernel.sweep_rows if sweeps else kernel.rows)
    patterns = KERNELS[kernel.name].patterns
    if not options["compare_patterns"]:
        patterns = (options["pattern"] or "random",)
    heats = {None: (False, True) if sweeps else (False,), "hot": (True,), "cold": (False,)}[options["heat"]]
    every = itertools.product(_dtypes(kernel, options["dtype"]), dims, heats, patterns, rows)
    variant = options["variant"] or ""
    return [Case(kernel.name, n, dim, dtype, pattern, variant, hot) for dtype, dim, hot, pattern, n in every]


def _dtypes(kernel: Kernel, text: str | None) -> tuple[torch.dtype, ...]:
    if text is None:
        return kernel.dtypes[:1]
    found = read_dtypes(text)
    for dtype in found:
        if dtype not in kernel.dtypes:
            known = ", ".join(str(each).removeprefix("torch.") for each in kernel.dtypes)
            raise click.UsageError(f"{kernel.name} is profiled for {known}, not {str(dtype).removeprefix('torch.')}")
    return found


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
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
