"""The # lines of `commlib bench`: what was measured and where above the table, what follows from it below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from commlib.counts import counted
from commlib.tools.bench.result import FASTER, PLACES, averages, measured, median_us, series_of, steady, title
from commlib.tools.report.document import Row
from commlib.tools.report.figures import about, fitted, size_text
from commlib.tools.report.view import grouped, unfinished

WORST_FIT = 0.3  # a line with a larger error tells nothing of what it goes through
GPU_SOFTWARE = {"driver": "driver", "nccl": "NCCL", "cuda": "CUDA"}


def opening(document: dict[str, Any]) -> list[str]:
    """Return the lines above the table; the document may have no rows yet, and before the start no limit and peers."""
    config, plan, machine = document["config"], document["plan"], document["fingerprint"]
    lines = [
        f"commlib {machine['commlib']} bench: {_ranks(config)}",
        *_machine(machine),
        f"{_duration(config)}; values are {'' if config['check'] else 'not '}checked",
        _protocol(config),
        f"plan {plan['digest']} from {plan['source']}; * marks its choice",
        *_limit(document["limit"]),
    ]
    if config["baseline"]:
        interval = config.get("interval", "its 95 % interval")
        over = f"speed-up: the time of {config['baseline']} over this time, with {interval}"
        agree = f"; none where its blocks differ by more than {config['agree']:.0%} (~)" if "agree" in config else ""
        lines.append(over + agree)
    notes = document["notes"] if document["limit"]["what"] else []  # they come after the limit
    return [f"# {line}" for line in (*lines, *notes)]


def _ranks(config: dict[str, Any]) -> str:
    if config["ranks"] == 1:
        return f"1 rank on {config['backend']}; -n N starts more"
    bound = "each on a core of its own" if config["cores_per_rank"] == 1 else "not bound to cores"
    return f"{config['ranks']} ranks on {config['backend']}, {bound}"


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    yield f"{machine['cpu']}, {counted(machine['cores'], 'core')}, Linux {machine['kernel']}"
    if machine.get("gpu"):
        versions = [f"{name} {machine[key]}" for key, name in GPU_SOFTWARE.items() if machine.get(key)]
        yield ", ".join([f"{machine.get('gpus') or 1} x {machine['gpu']}", *versions])
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    yield ", ".join(filter(None, [f"torch {machine['torch']}", f"Python {machine['python']}", settings]))


def _duration(config: dict[str, Any]) -> str:
    seconds, start_s = config["seconds"], config.get("start_s")
    if start_s is None:
        return f"about {seconds:g} s"
    return f"about {seconds + start_s:.0f} s: {start_s:.0f} to start, {seconds:g} to measure"


def _protocol(config: dict[str, Any]) -> str:
    block = counted(config["iterations"], "iteration") if config["iterations"] else f"{config['block_us']:.0f} us"
    least, most = config["blocks"]
    graph = " of replayed CUDA graphs" if config["mode"] == "graph" else ""
    return f"time: median of {least} to {most} interleaved blocks of {block}{graph}, slowest rank, per call"


def _limit(limit: dict[str, Any]) -> Iterator[str]:
    units = (("busbw", "GB/s"), ("latency_us", "us"))
    figures = [f"{limit[key]:.2f} {unit}" for key, unit in units if limit[key] is not None]
    if limit["what"]:
        yield f"limit: {', '.join([*figures, limit['what']])}"
    if figures:
        yield "%lim: busbw's share of the limit; above 100 where caches hold more than in the copies that measured it"


def closing(document: dict[str, Any]) -> list[str]:
    """Return the lines below the table: the plan's choices, fits and what was skipped; nccl-tests' last two lines."""
    lines = []
    series = list(grouped(document["rows"], series_of))
    for rows in series:
        texts = [*_chosen(rows), *_faster(rows), *_fits(rows, document["fits"]), *_skipped(rows)]
        if texts and len(series) > 1:
            lines += ["#", f"# {title(rows[0])}", *_average("# avg busbw: ", vars(averages(rows)))]
        lines += [f"# {line}" for line in texts]
    bounds = document["out_of_bounds"]
    lines += ["#", f"# Out of bounds values : {bounds['count']} {'OK' if bounds['okay'] else 'FAILED'}"]
    if len({row["op"] for row in document["rows"]}) == 1:  # of different collectives a mean says nothing
        lines += _average("# Avg bus bandwidth    : ", document["average_bus_bandwidth"])
    return lines + unfinished(document)


def _average(head: str, average: Mapping[str, Any]) -> Iterator[str]:
    peers = ", ".join(f"{name} {busbw:.3f}" for name, busbw in average["peers"].items() if busbw is not None)
    if peers or average["plan"] is not None:
        ours = "N/A" if average["plan"] is None else f"{average['plan']:.3f}"
        yield f"{head}{ours}" + (f" ({peers})" if peers else "")


def _chosen(rows: Sequence[Row]) -> Iterator[str]:
    chosen = sorted((row for row in rows if row["chosen"]), key=lambda row: int(row["size"]))
    for placement in sorted({row["placement"] for row in chosen}):
        here = (row for row in chosen if row["placement"] == placement)
        runs = (list(run) for _, run in groupby(here, lambda row: (row["algorithm"], row["rule"])))
        yield f"plan, {placement} tensors: " + "; ".join(map(_choice, runs))


def _choice(run: Sequence[Row]) -> str:
    rule = f" ({run[0]['rule']})" if run[0]["rule"] else ""
    ends = dict.fromkeys(size_text(row["size"]) for row in (run[0], run[-1]))
    return f"{run[0]['algorithm']} at {'–'.join(ends)}{rule}"


def _faster(rows: Sequence[Row]) -> Iterator[str]:
    """Name what is faster than the plan's choice by more than noise."""
    places: dict[tuple[str, str], list[str]] = {}
    for call in grouped(measured(rows), lambda row: (row["size"], row["placement"])):
        chosen = min((row for row in call if row["chosen"]), key=lambda row: bool(row["in_place"]), default=None)
        if chosen is None or not median_us(chosen):
            continue
        here = (row for row in call if row["in_place"] == chosen["in_place"] and (row["ours"] or steady(row)))
        best = min(filter(median_us, here), key=median_us)
        if (ratio := median_us(chosen) / median_us(best)) > FASTER:
            of_pair = places.setdefault((best["algorithm"], chosen["algorithm"]), [])
            of_pair.append(f"{ratio:.2f}x at {size_text(chosen['size'])}")
    for (winner, loser), where in places.items():
        yield f"faster here than the plan's {loser}: {winner}, {', '.join(where)}"


def _fits(rows: Sequence[Row], fits: Sequence[Row]) -> Iterator[str]:
    shown = {(row["algorithm"], row["placement"]) for row in rows if row["chosen"] or not row["ours"]}
    here = [fit for fit in fits if series_of(fit) == series_of(rows[0]) and (fit["error"] or 0) <= WORST_FIT]
    form = min((bool(fit["in_place"]) for fit in here), default=False)
    here = [fit for fit in here if fit["in_place"] == form and (fit["algorithm"], fit["placement"]) in shown]
    if here:
        yield f"fit {PLACES[form]}: latency, busbw of long calls, size that reaches half of it, error"
    yield from map(_fit, here)


def _fit(fit: Row) -> str:
    units = (("latency_us", "us"), ("gbps", "GB/s"))
    latency, rate = ("-" if fit[key] is None else f"{fitted(fit[key], 6)} {unit}" for key, unit in units)
    half = "-" if fit["half_bytes"] is None else about(fit["half_bytes"])
    error = "-" if fit["error"] is None else f"{fit['error']:.0%}"
    return f"  {fit['algorithm']:<19} {latency:>10} {rate:>12} {half:>7} {error:>6}"


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    skipped = (row for row in rows if "skipped" in row)
    yield from {f"skipped {row['algorithm']} {PLACES[row['in_place']]}: {row['skipped']}": row for row in skipped}
