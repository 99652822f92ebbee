"""The # lines of `commlib bench`: what was measured and where above the table, what follows from it below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from commlib.bench.rows import PLACES, by_call, measured, median_us, series_of, title
from commlib.report.document import Row
from commlib.report.figures import about, fitted, size_text, sizes_text
from commlib.report.view import grouped, unfinished

FASTER = 1.1  # what is not the plan's choice is named if it wins by this much: less is noise


def opening(document: dict[str, Any]) -> list[str]:
    """Return the lines above the table; the document may have no rows yet."""
    config, plan = document["config"], document["plan"]
    machine = document["fingerprint"]
    lines = [
        f"commlib {machine['commlib']} bench: {_ranks(config)}",
        *_machine(machine),
        f"about {config['seconds']:g} s; values are {'' if config['check'] else 'not '}checked",
        _protocol(config),
        f"plan {plan['digest']} from {plan['source']}; * marks what it picks",
        *_limit(document.get("limit")),
    ]
    if config["baseline"]:
        lines.append(f"speed-up: how many times as long {config['baseline']} takes, with its 95 % interval")
    return [f"# {line}" for line in (*lines, *document.get("notes", ()))]


def _ranks(config: dict[str, Any]) -> str:
    if config["ranks"] == 1:
        return f"1 rank on {config['backend']}; -n N starts more"
    bound = "each on a core of its own" if config["cores_per_rank"] == 1 else "not bound to cores"
    return f"{config['ranks']} ranks on {config['backend']}, {bound}"


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    yield f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"
    if machine.get("gpu"):
        versions = [f"{name} {machine[key]}" for key, name in _GPU_SOFTWARE.items() if machine.get(key)]
        yield ", ".join([f"{machine.get('gpus') or 1} x {machine['gpu']}", *versions])
    settings = [" ".join(f"{name}={value}" for name, value in machine["settings"].items())]
    yield ", ".join([f"torch {machine['torch']}", f"Python {machine['python']}", *filter(None, settings)])


_GPU_SOFTWARE = {"driver": "driver", "nccl": "NCCL", "cuda": "CUDA"}


def _protocol(config: dict[str, Any]) -> str:
    block = f"{config['iterations']} iterations" if config["iterations"] else f"{config['block_us']:.0f} us"
    least, most = config["blocks"]
    graph = " of replayed CUDA graphs" if config["mode"] == "graph" else ""
    return f"time: median of {least} to {most} interleaved blocks of {block}{graph}, slowest rank, per call"


def _limit(limit: dict[str, Any] | None) -> Iterator[str]:
    if not limit:
        return
    figures = [f"{limit['busbw']:.2f} GB/s"] if limit["busbw"] is not None else []
    figures += [f"{limit['latency_us']:.2f} us"] if limit["latency_us"] is not None else []
    yield f"limit: {', '.join([*figures, limit['what']])}" + ("; %lim: busbw's share of it" if figures else "")


def closing(document: dict[str, Any]) -> list[str]:
    """Return the lines below the table: the plan's choices, fits and what was skipped; nccl-tests' last two lines."""
    lines = []
    series = list(grouped(document["rows"], series_of))
    for rows in series:
        said = [*_chosen(rows), *_faster(rows), *_fits(rows, document["fits"]), *_skipped(rows)]
        if said and len(series) > 1:
            lines += ["#", f"# {title(rows[0])}"]
        lines += [f"# {line}" for line in said]
    found = document["out_of_bounds"]
    lines += ["#", f"# Out of bounds values : {found['count']} {'OK' if found['okay'] else 'FAILED'}"]
    lines += _average(document["average_bus_bandwidth"])
    return lines + unfinished(document)


def _average(average: dict[str, Any]) -> list[str]:
    peers = [f"{name} {busbw:.3f}" for name, busbw in average["peers"].items() if busbw is not None]
    if average["plan"] is None and not peers:
        return []
    ours = "N/A" if average["plan"] is None else f"{average['plan']:.3f}"
    return [f"# Avg bus bandwidth    : {ours}" + (f" ({', '.join(peers)})" if peers else "")]


def _chosen(rows: Sequence[Row]) -> Iterator[str]:
    for placement in sorted({row["placement"] for row in rows if row["chosen"]}):
        runs: list[tuple[Row, int, int]] = []
        for call in by_call(row for row in rows if row["placement"] == placement):
            row = next((row for row in call if row["chosen"]), None)
            if row is None:
                continue
            same = runs and (runs[-1][0]["algorithm"], runs[-1][0]["rule"]) == (row["algorithm"], row["rule"])
            low = runs.pop()[1] if same else row["size"]
            runs.append((row, low, row["size"]))
        yield f"plan, {placement} tensors: " + "; ".join(_choice(*run) for run in runs)


def _choice(row: Row, low: int, high: int) -> str:
    return f"{row['algorithm']} at {sizes_text(low, high)}" + (f" ({row['rule']})" if row["rule"] else "")


def _faster(rows: Sequence[Row]) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for call in by_call(measured(rows)):
        for placement in sorted({row["placement"] for row in call}):
            pair = _pair([row for row in call if row["placement"] == placement])
            if pair and (ratio := median_us(pair[1]) / median_us(pair[0])) > FASTER:
                names = pair[0]["algorithm"], pair[1]["algorithm"]
                found.setdefault(names, []).append(f"{ratio:.2f}x at {size_text(call[0]['size'])}")
    for (best, chosen), where in found.items():
        yield f"here {best} beat the plan's {chosen} by {', '.join(where)}"


def _pair(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """Return the fastest row and the plan's choice in the same form."""
    chosen = min((row for row in rows if row["chosen"]), key=lambda row: bool(row["in_place"]), default=None)
    if chosen is None or not median_us(chosen):
        return None
    rivals = [row for row in rows if row["in_place"] == chosen["in_place"] and median_us(row)]
    return min(rivals, key=median_us), chosen


def _fits(rows: Sequence[Row], fits: Sequence[Row]) -> Iterator[str]:
    shown = {(row["algorithm"], row["placement"]) for row in rows if row["chosen"] or not row["ours"]}
    own = [fit for fit in fits if series_of(fit) == series_of(rows[0])]
    form = min((bool(fit["in_place"]) for fit in own), default=False)
    lines = [fit for fit in own if fit["in_place"] == form and (fit["algorithm"], fit["placement"]) in shown]
    if lines:
        yield f"fit {PLACES[form]}: latency, busbw of long calls, size with half of it, error"
    yield from (f"  {_fit(fit)}" for fit in lines)


def _fit(fit: Row) -> str:
    figures = [("latency_us", " us"), ("gbps", " GB/s")]
    cells = [fitted(fit[key], 6) + (unit if fit[key] is not None else "") for key, unit in figures]
    cells += [about(fit["half_bytes"]) if fit["half_bytes"] is not None else "-"]
    cells += [f"{fit['error']:.0%}" if fit["error"] is not None else "-"]
    return f"{fit['algorithm']:<19} {cells[0]:>10} {cells[1]:>12} {cells[2]:>7} {cells[3]:>6}"


def _skipped(rows: Sequence[Row]) -> Iterator[str]:
    reasons = {
        f"skipped {row['algorithm']} {PLACES[row['in_place']]}: {row['skipped']}": None
        for row in rows
        if "skipped" in row
    }
    yield from reasons
