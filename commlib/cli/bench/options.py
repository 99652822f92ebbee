"""From the words of `commlib bench` to a job; what is wrong with them is said before any rank starts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import torch

from commlib.cli.bench.job import Job, left_out, series
from commlib.cli.bench.peers import LABELS, PEERS
from commlib.collectives import COLLECTIVES, REDOPS
from commlib.plan import Plan
from commlib.redops import DTYPES
from commlib.timing import Protocol

BLOCKS = (5, 41)
MOST_SIZES = 1000
PICTURES = (".png", ".svg")
SHORT = {
    **{"double": "float64", "float": "float32", "half": "float16", "fp8": "float8_e4m3fn"},
    **{f"{letter}{bits}": f"float{bits}" for letter in ("f", "fp") for bits in (16, 32, 64)},
    **{"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def read_job(ops: tuple[str, ...], ranks: int | None, options: dict[str, Any]) -> Job:
    """Turn options into a job, or raise what is wrong with them."""
    wanted = read_names(",".join(ops), COLLECTIVES, "collective") if ops else tuple(COLLECTIVES)
    peers = () if options["peers"] == "none" else read_names(options["peers"], PEERS, "peer")
    _check_world(ranks, options)
    _check_files(options)
    job = Job(
        ops=wanted,
        sizes=_sizes(options["min_bytes"], options["max_bytes"], options["factor"]),
        dtypes=read_dtypes(options["dtype"]),
        redops=REDOPS if options["redop"] == "all" else read_names(options["redop"], REDOPS, "reduction"),
        root=options["root"],
        algorithms=_algorithms(options["algorithms"], wanted, options["backend"]),
        peers=peers,
        baseline=_baseline(options["baseline"], wanted, peers),
        places={"both": (False, True), "out": (False,), "in": (True,)}[options["places"]],
        backend=options["backend"],
        plan=options["plan"],
        seconds=options["seconds"],
        protocol=Protocol(
            blocks=BLOCKS,
            iterations=options["iters"],
            warmup=options["warmup"],
            check=options["check"],
            seed=options["seed"],
            graph=options["graph"],
        ),
    )
    if not any(series(job)):
        raise click.UsageError(f"nothing to measure: {'; '.join(left_out(job))}")
    return job


def read_names(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the comma-separated names, each once; one that is not known is answered with those that are."""
    return tuple(dict.fromkeys(_known(name.strip(), known, what) for name in text.split(",")))


def read_dtypes(text: str) -> tuple[torch.dtype, ...]:
    """Return the element types of comma-separated names, torch's or short ones."""
    if text == "all":
        return tuple(getattr(torch, name) for name in DTYPES)
    names = [SHORT.get(name.strip(), name.strip()) for name in text.split(",")]
    valid = [*DTYPES, *SHORT]
    return tuple(dict.fromkeys(getattr(torch, _known(name, valid, "element type")) for name in names))


def _known(name: str, known: Iterable[str], what: str) -> str:
    if name not in known:
        raise click.UsageError(f"no {what} {name!r}; there are {', '.join(known)}")
    return name


def _sizes(low: int, high: int, factor: float) -> tuple[int, ...]:
    """Return the sizes from low to high, each `factor` times the last: distinct whole bytes."""
    if high < low:
        raise click.UsageError(f"-e is {high} bytes, less than -b with {low}")
    sizes, exact = [low], float(low)
    while 0 < exact * factor <= high * (1 + 1e-9):
        exact *= factor
        sizes.append(round(exact))
        if len(sizes) > MOST_SIZES:
            raise click.UsageError(f"-f {factor:g} makes more than {MOST_SIZES} sizes up to {high} bytes; use a larger")
    return tuple(dict.fromkeys(sizes))


def _algorithms(text: str, ops: tuple[str, ...], backend: str) -> tuple[str, ...]:
    here = [
        algorithm.name
        for op in ops
        for algorithm in COLLECTIVES[op].algorithms
        if backend in ("auto", algorithm.backend)
    ]
    return read_names(text, dict.fromkeys(["all", "auto", *here]), "algorithm")


def _baseline(label: str | None, ops: tuple[str, ...], peers: tuple[str, ...]) -> str | None:
    if label is None:
        return None
    ours = dict.fromkeys(algorithm.name for op in ops for algorithm in COLLECTIVES[op].algorithms)
    _known(label, [*ours, *LABELS], "baseline")
    if label in LABELS and LABELS[label] not in peers:
        raise click.UsageError(
            f"--baseline {label} is not measured; add it: --peers {','.join([*peers, LABELS[label]])}"
        )
    return label


def _check_world(ranks: int | None, options: dict[str, Any]) -> None:
    if ranks is not None and options["root"] >= ranks:
        raise click.UsageError(f"--root {options['root']} is not one of {ranks} ranks")
    if options["graph"] and (options["backend"] == "shm" or not torch.cuda.is_available()):
        here = "--backend shm is on the CPU" if torch.cuda.is_available() else "there are none here"
        raise click.UsageError(f"--graph needs GPUs: {here}")
    if options["plan"] is not None:
        Plan.load(options["plan"])


def _check_files(options: dict[str, Any]) -> None:
    """Refuse what could not be written in the end."""
    picture: Path | None = options["plot"]
    if picture is not None and picture.suffix not in PICTURES:
        raise click.UsageError(f"--plot {picture.name} is no {' or '.join(PICTURES)} file; give it such a name")
    for option, path in (("-o", options["output"]), ("--plot", picture)):
        if path is not None and not os.access(path.parent, os.W_OK):
            raise click.UsageError(f"{option} {path}: there is no folder {path.parent} to write to; make it first")


def missing_for(picture: Path | None) -> str:
    """Say why no picture can be drawn here, "" if it can."""
    finds: Callable[[str], object] = importlib.util.find_spec
    if picture is None or finds("matplotlib") is not None:
        return ""
    return f"no {picture.name}: drawing needs matplotlib; `pip install matplotlib`"
