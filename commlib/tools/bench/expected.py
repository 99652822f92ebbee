"""What a call is expected to take, without making it: from the samples beside a plan, or results of `commlib bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from commlib.collectives import COLLECTIVES
from commlib.plan import Explanation, Query
from commlib.tools.bench.result import Limit, measured, median_us
from commlib.tools.timing import fit_latency_and_rate
from commlib.tools.tune import beside
from commlib.tools.tune.case import PLAIN, Case, Option

FIGURES = "expected_us", "latency_us", "gbps", "error", "sizes"
Times = tuple[str, Mapping[int, float]]  # where they come from, and microseconds of calls by their size


class Results(NamedTuple):
    documents: Sequence[dict[str, Any]] = ()
    name: str = ""  # of the file


def expected(why: Explanation, query: Query, backend: str, results: Results) -> dict[str, Any]:
    """Return what a row has of times: by results if they have enough sizes, else by the samples beside the plan."""
    row = COLLECTIVES[query.op].algorithm(why.algorithm)
    # What is for plain tensors is measured on those, also where symmetric ones get it.
    queries = dict.fromkeys([query, replace(query, placement=row.placement)])
    configs = [(each["config"]["ranks"], each["config"]["backend"]) for each in results.documents]
    documents = [of for of, config in zip(results.documents, configs, strict=True) if config == (query.world, backend)]
    sources = [(f"{results.name}, {each.dtype}", _of_results(of, why, each)) for each in queries for of in documents]
    sources += [_of_samples(why, each) for each in queries]
    fits = ((source, fit) for source, times in sources if (fit := _fit(times, query.num_bytes, why)) is not None)
    source, fit = next(fits, ("", dict.fromkeys(FIGURES)))
    limits = ((limit_us(document, query), document["limit"]["what"]) for document in documents)
    limit, what = next(((us, what) for us, what in limits if us is not None), (None, ""))
    return {
        **fit,
        "times_from": source,
        "measured_us": _rounded(next((us for _, times in sources if (us := times.get(query.num_bytes))), None)),
        "limit_us": _rounded(limit),
        "limit_is": what,
    }


def _fit(times: Mapping[int, float], num_bytes: int, why: Explanation) -> dict[str, Any] | None:
    """Return what the line latency + size / rate gives, through the sizes of the plan's range if they are enough."""
    high = float("inf") if why.high_bytes is None else why.high_bytes
    inside = {size: us for size, us in times.items() if why.low_bytes <= size <= high}
    for used in (inside, times):
        line = fit_latency_and_rate(list(used), [us * 1e-6 for us in used.values()])
        if line is not None:
            us, byte_us = line.latency_s * 1e6, line.byte_s * 1e6
            gbps = 1e-3 / byte_us if byte_us else None
            figures = us + num_bytes * byte_us, us, gbps, line.error, len(used)
            return dict(zip(FIGURES, map(_rounded, figures), strict=True))
    return None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _of_samples(why: Explanation, query: Query) -> Times:
    """Return what `commlib tune` measured of the choice: samples beside the plan, of another type if need be."""
    shipped = Path(str(resources.files("commlib").joinpath(why.source)))  # named without the package's folder
    inside = why.source.startswith("plans/") and shipped.is_file()
    path = beside.beside(shipped if inside else Path(why.source))
    cases = beside.measured(beside.read(path)).get(query.world, {}) if path.is_file() else {}
    option = Option.of(why.algorithm, why.params)
    for case, (samples, serves_all) in sorted(cases.items(), key=lambda of: _type(of[0]) != query.dtype):
        if (case.op, case.placement) == (query.op, query.placement) and (case.mode == query.mode or serves_all):
            plain = {size: PLAIN for size, of in samples.plain.items() if of == option}
            every = {size: samples.times[size] for size in samples.sizes}
            blocks = {size: of.get(option) or of.get(plain.get(size, option)) for size, of in every.items()}
            if times := {size: of[0] * 1e6 for size, of in blocks.items() if of}:
                return f"{path.name}, {_type(case)}", times
    return "", {}


def _type(case: Case) -> str:
    return str(case.dtype).removeprefix("torch.")


def _of_results(document: dict[str, Any], why: Explanation, query: Query) -> Mapping[int, float]:
    """Return what `commlib bench` measured of an algorithm, out of place if it has that form."""
    wanted = query.op, query.dtype, why.algorithm, query.placement, query.mode
    keys = ("op", "type", "algorithm", "placement", "mode")
    rows = [row for row in measured(document["rows"]) if tuple(row[key] for key in keys) == wanted]
    rows = [row for row in rows if row["redop"] in (query.redop, None)]
    form = min((row["in_place"] for row in rows), default=False)
    return {row["size"]: median_us(row) for row in rows if row["in_place"] == form}


def limit_us(document: dict[str, Any], query: Query) -> float | None:
    """Return the least that a call can take: its bytes over the bandwidth that was measured in the same run."""
    limit = Limit(**document["limit"])
    rate, factor = limit.at(query.num_bytes), COLLECTIVES[query.op].bus_factor(query.world)
    least = query.num_bytes * factor / rate * 1e-3 if rate else None
    return max((us for us in (least, limit.latency_us) if us is not None), default=None)
