"""From the options of `commlib bench` to a job; what is wrong with them is an error before any rank starts."""

from __future__ import annotations

import re
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import click
import torch

from commlib.collectives import COLLECTIVES, REDOPS
from commlib.env import parse_bytes
from commlib.tools.baselines import PEERS, load
from commlib.tools.baselines.peer import Peer
from commlib.tools.bench.job import Job, left_out, series, sweep
from commlib.tools.cli.options import check_files, python_file, read_dtypes, read_names
from commlib.tools.timing import Protocol

FIRST = 8  # bytes
BRIEF = (8 << 20, 32.0)  # largest size and step factor for all collectives at once: five sizes each
SHORT_S = 10.0  # up to here the largest size is that, too
FULL = (64 << 20, 8.0)
BLOCKS = (5, 41)
LARGEST = 1 << 40
WRITE = "write bytes such as 64K, or 16x7168 (rows x hidden) of one element type"


def read_job(ops: tuple[str, ...], ranks: int | None, options: dict[str, Any]) -> Job:
    """Turn options into a job, or raise what is wrong with them."""
    wanted = read_names(",".join(ops), COLLECTIVES, "collective") if ops else tuple(COLLECTIVES)
    auto = options["peers"] == "auto"
    peers = _peers(options["peers"], options["peer"])
    _check_world(ranks, options)
    check_files(options["output"], options["plot"])
    dtypes = read_dtypes(options["dtype"])
    known = [algorithm for op in wanted for algorithm in COLLECTIVES[op].algorithms]
    here = [each.name for each in known if options["backend"] in ("auto", each.backend)]
    values = {
        **options,
        "ops": wanted,
        "sizes": _sizes(options, dtypes, brief=not ops),
        "dtypes": dtypes,
        "redops": REDOPS if options["redop"] == "all" else read_names(options["redop"], REDOPS, "reduction"),
        "algorithms": read_names(options["algorithms"], dict.fromkeys(["all", "auto", *here]), "algorithm"),
        "peers": peers,
        "auto": auto,
        "places": {"both": (False, True), "out": (False,), "in": (True,)}[options["places"]],
        "blocks": BLOCKS,
        "iterations": options["iters"],
    }
    job = Job(**_named(Job, values), protocol=Protocol(**_named(Protocol, values)))
    if not any(series(job)):
        raise click.UsageError(f"nothing to measure: {'; '.join(left_out(job))}")
    return job


def _named(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def _sizes(options: dict[str, Any], dtypes: tuple[torch.dtype, ...], brief: bool) -> tuple[int, ...]:
    swept = {name: options[name] for name in ("min_bytes", "max_bytes", "factor") if options[name] is not None}
    if options["sizes"] is None:
        low = swept.get("min_bytes", FIRST)
        largest, factor = BRIEF if brief else FULL
        largest = BRIEF[0] if options["seconds"] < SHORT_S else largest  # a call of 64 MiB alone takes seconds
        return sweep(low, swept.get("max_bytes", max(largest, low)), swept.get("factor", factor))
    if swept:
        raise click.UsageError("--sizes names every size; leave -b, -e and -f out")
    element_bytes = {dtype.itemsize for dtype in dtypes}
    return tuple(sorted({_size(item.strip().lower(), element_bytes) for item in options["sizes"].split(",")}))


def _size(item: str, element_bytes: set[int]) -> int:
    """Return the bytes of 64K, or of the elements of 16x7168."""
    try:
        if not re.fullmatch(r"\d+(x\d+)+", item):
            num_bytes = parse_bytes(item)
        else:
            (of_one,) = element_bytes
            num_bytes = prod(map(int, item.split("x"))) * of_one
    except ValueError:
        raise click.UsageError(f"--sizes: {item!r} is no size; {WRITE}") from None
    if not 0 < num_bytes <= LARGEST:
        raise click.UsageError(f"--sizes: {item!r} has {num_bytes} bytes; {WRITE}")
    return num_bytes


def _peers(names: str, files: tuple[Path, ...]) -> tuple[Peer, ...]:
    named = () if names in ("none", "auto") else read_names(names, PEERS, "peer")
    peers = (*map(load, named), *(python_file(path, "make").make() for path in files))
    for peer, path in zip(peers[len(named) :], files, strict=True):
        if not isinstance(peer, Peer):
            raise click.UsageError(
                f"--peer {path}: make() returns a {type(peer).__name__}, not a commlib.tools.baselines.peer.Peer"
            )
    labels = [label for peer in peers for label in peer.labels]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise click.UsageError(f"two peers have the label {', '.join(sorted(twice))}; give one another")
    return peers


def _check_world(ranks: int | None, options: dict[str, Any]) -> None:
    if str(options["output"]) in (*REDOPS, "all"):  # as nccl-tests has it
        raise click.UsageError(f"-o is the file to write here; the reduction is --redop {options['output']}")
    if ranks is not None and options["root"] >= ranks:
        raise click.UsageError(f"--root {options['root']} is no rank; the last one is {ranks - 1}")
    if options["graph"] and (options["backend"] == "shm" or not torch.cuda.is_available()):
        here = "--backend shm is on the CPU" if torch.cuda.is_available() else "there are none here"
        raise click.UsageError(f"--graph needs GPUs: {here}")
