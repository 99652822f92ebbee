"""From the words of `commlib bench` to a job; what is wrong with them is said before any rank starts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import torch

from commlib.collectives import COLLECTIVES, REDOPS
from commlib.env import parse_bytes
from commlib.plan import Plan
from commlib.tools.baselines import AUTO, PEERS, load
from commlib.tools.baselines.peer import Peer
from commlib.tools.bench.job import BEST, Job, left_out, read_shapes, series, sweep
from commlib.tools.bench.messages import LARGEST, window_asked
from commlib.tools.cli.bench.foreign import check_output
from commlib.tools.cli.options import check_files, known_name, python_file, read_dtypes, read_names
from commlib.tools.timing import Protocol

FIRST = 8  # bytes
BRIEF = (8 << 20, 32.0)  # largest size and step factor for all collectives at once: five sizes each
SHORT_S = 10.0  # up to here the largest size is that, too
FULL = (64 << 20, 8.0)
BLOCKS, MORE_BLOCKS = (5, 41), (5, 401)  # the 99th percentile is of more than a hundred, where there is time


def read_job(ops: tuple[str, ...], ranks: int | None, options: dict[str, Any]) -> Job:
    """Turn options into a job, or raise what is wrong with them."""
    wanted = read_names(",".join(ops), COLLECTIVES, "collective") if ops else tuple(COLLECTIVES)
    peers = _peers(options["peers"], options["peer"])
    _check_world(ranks, options)
    check_output(str(options["output"]))
    check_files(options["output"], options["plot"], endings=(".json", ".csv", ".md", ".osu", ".html"))
    options["check"] &= options["checks"] != 0
    dtypes = read_dtypes(options["dtype"])
    sizes = _sizes(options, dtypes, brief=not ops)
    values = {
        "ops": wanted,
        **sizes,
        "dtypes": tuple(dict.fromkeys(shape.dtype for shape in sizes["shapes"])) if "shapes" in sizes else dtypes,
        "redops": REDOPS if options["redop"] == "all" else read_names(options["redop"], REDOPS, "reduction"),
        "algorithms": _algorithms(options["algorithms"], wanted, options["backend"]),
        "params": _params(options["params"], wanted),
        "peers": peers,
        "auto": options["peers"] == "auto",
        "baseline": _baseline(options["baseline"], wanted, (*peers, *map(load, _auto(options["peers"])))),
        "places": {"both": (False, True), "out": (False,), "in": (True,)}[options["places"]],
        "window": window_asked(wanted, options, ranks),
    }
    blocks = MORE_BLOCKS if options["percentiles"] else BLOCKS
    protocol = Protocol(blocks=blocks, iterations=options["iters"], **_named(Protocol, options))
    job = Job(**{**_named(Job, options), **values}, protocol=protocol)
    if not any(series(job)):
        raise click.UsageError(f"nothing to measure: {'; '.join(left_out(job))}")
    return job


def _named(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a dataclass has a field for."""
    return {field.name: options[field.name] for field in fields(kind) if field.name in options}


def _sizes(options: dict[str, Any], dtypes: tuple[torch.dtype, ...], brief: bool) -> dict[str, Any]:
    swept = {name: options[name] for name in ("min_bytes", "max_bytes", "factor") if options[name] is not None}
    if options["sizes"] is None:
        low = swept.get("min_bytes", FIRST)
        largest, factor = BRIEF if brief else FULL
        largest = BRIEF[0] if options["seconds"] < SHORT_S else largest  # a call of 64 MiB alone takes seconds
        largest = min(largest, LARGEST) if options["window"] else largest
        return {"sizes": sweep(low, swept.get("max_bytes", max(largest, low)), swept.get("factor", factor))}
    if swept:
        raise click.UsageError("--sizes names every size; leave -b, -e and -f out")
    shapes = read_shapes(options["sizes"], dtypes)
    return {"sizes": tuple(sorted({shape.num_bytes for shape in shapes})), "shapes": shapes}


def _algorithms(text: str, ops: tuple[str, ...], backend: str) -> tuple[str, ...]:
    algorithms = [algorithm for op in ops for algorithm in COLLECTIVES[op].algorithms]
    here = [algorithm.name for algorithm in algorithms if backend in ("auto", algorithm.backend)]
    return read_names(text, dict.fromkeys(["all", "auto", *here]), "algorithm")


def _peers(names: str, files: tuple[Path, ...]) -> tuple[Peer, ...]:
    named = () if names in ("none", "auto") else read_names(names, PEERS, "peer")
    peers = (*map(load, named), *(python_file(path, "make").make() for path in files))
    for peer, path in zip(peers[len(named) :], files, strict=True):
        if not isinstance(peer, Peer):
            raise click.UsageError(
                f"--peer {path}: make() returns a {type(peer).__name__}, not a commlib.tools.baselines.peer.Peer"
            )
    labels = [label for peer in (*peers, *map(load, _auto(names))) for label in peer.labels]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise click.UsageError(f"two peers have the label {', '.join(sorted(twice))}; give one another")
    return peers


def _auto(names: str) -> list[str]:
    return [name for of_device in AUTO.values() for name in of_device] if names == "auto" else []


def _params(texts: tuple[str, ...], ops: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return the values of each name of texts such as blocks=8,16, within the bounds of an algorithm that has it."""
    params = [param for op in ops for algorithm in COLLECTIVES[op].algorithms for param in algorithm.params]
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        known_name(name, sorted({param.name for param in params}), "parameter")
        try:
            found[name] = tuple(dict.fromkeys(parse_bytes(value) for value in values.split(",")))
        except ValueError:
            raise click.UsageError(f"--params {text!r} is no name with whole numbers; write blocks=8,16") from None
        for value in found[name]:
            faults = [param.fault(value) for param in params if param.name == name]
            if all(faults):
                raise click.UsageError(f"--params: {faults[0]}")
    return found


def _baseline(label: str | None, ops: tuple[str, ...], peers: tuple[Peer, ...]) -> str | None:
    if label is None:
        return None
    ours = dict.fromkeys(algorithm.name for op in ops for algorithm in COLLECTIVES[op].algorithms)
    here = [label for peer in peers for label in peer.labels]
    known = {each: name for name in PEERS for each in load(name).labels}
    known_name(label, dict.fromkeys([*ours, BEST, *here, *known]), "baseline")
    if label in known and label not in here:
        words = ",".join([*(peer.name for peer in peers if peer.name in PEERS), known[label]])
        raise click.UsageError(f"--baseline {label} is not measured; add it: --peers {words}")
    return label


def _check_world(ranks: int | None, options: dict[str, Any]) -> None:
    if ranks is not None and options["root"] >= ranks:
        raise click.UsageError(f"--root {options['root']} is no rank; the last one is {ranks - 1}")
    if options["graph"] and (options["backend"] == "shm" or not torch.cuda.is_available()):
        here = "--backend shm is on the CPU" if torch.cuda.is_available() else "there are none here"
        raise click.UsageError(f"--graph needs GPUs: {here}")
    if options["plan"] is not None:
        Plan.load(options["plan"])
