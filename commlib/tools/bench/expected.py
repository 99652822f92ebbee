"""What a call is expected to take, without making it: from the samples beside a plan, or results of `commlib bench`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from commlib.collectives import COLLECTIVES
from commlib.plan import Explanation, Query
from commlib.tools.bench.result import measured, median_us
from commlib.tools.timing import Limit, fit_latency_and_rate
from commlib.tools.tune import beside
from commlib.tools.tune.case import PLAIN, Case, Option
from commlib.tools.tune.samples import Samples

FIGURES = "expected_us", "latency_us", "gbps", "error", "sizes"


@dataclass(frozen=True)
class Times:
    """Microseconds of calls by their size, and where they come from."""

    source: str = ""
    by_size: Mapping[int, float] = field(default_factory=dict)

    def fit(self, num_bytes: int, why: Explanation) -> dict[str, Any] | None:
        """Return what the line latency + size / rate says, through the sizes of the plan's range if they are enough."""
        most = float("inf") if why.high_bytes is None else why.high_bytes
        inside = {size: us for size, us in self.by_size.items() if why.low_bytes <= size <= most}
        for used in (inside, self.by_size):
            line = fit_latency_and_rate(list(used), [us * 1e-6 for us in used.values()])
            if line is not None:
                us, byte_us = line.latency_s * 1e6, line.byte_s * 1e6
                gbps = 1e-3 / byte_us if byte_us else None
                found = us + num_bytes * byte_us, us, gbps, line.error, len(used)
                return dict(zip(FIGURES, map(_rounded, found), strict=True))
        return None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class Results(NamedTuple):
    documents: Sequence[dict[str, Any]] = ()
    name: str = ""

    def of(self, query: Query, backend: str) -> Iterator[dict[str, Any]]:
        yield from (
            each
            for each in self.documents
            if (each["config"]["ranks"], each["config"]["backend"]) == (query.world, backend)
        )


def expected(why: Explanation, query: Query, backend: str, results: Results) -> dict[str, Any]:
    """Return what a row says of times: by results if they have enough sizes, else by the samples beside the plan."""
    row = COLLECTIVES[query.op].algorithm(why.algorithm)
    # What is for plain tensors is measured on those, also where symmetric ones get it.
    queries = dict.fromkeys([query, replace(query, placement=row.placement)])
    sources = [
        times_of_results(document, why, each, results.name)
        for each in queries
        for document in results.of(query, backend)
    ]
    sources = [times for times in (*sources, *(times_of_samples(why, each) for each in queries)) if times.by_size]
    fits = ((times, fit) for times in sources if (fit := times.fit(query.num_bytes, why)) is not None)
    source, fit = next(fits, (Times(), dict.fromkeys(FIGURES)))
    measured_us = next((found for times in sources if (found := times.by_size.get(query.num_bytes))), None)
    limits = ((limit_us(document, query), document["limit"]["what"]) for document in results.of(query, backend))
    limit, what = next(((us, what) for us, what in limits if us is not None), (None, ""))
    return {
        **fit,
        "times_from": source.source,
        "measured_us": _rounded(measured_us),
        "limit_us": _rounded(limit),
        "limit_is": what,
    }


def times_of_samples(why: Explanation, query: Query) -> Times:
    """Return what `commlib tune` measured of the choice: samples beside the plan, of another type if need be."""
    path = beside.beside(_place(why.source))
    if not path.is_file():
        return Times()
    cases = beside.measured(beside.read(path)).get(query.world, {})
    for case, (samples, serves_all) in sorted(cases.items(), key=lambda of: _type(of[0]) != query.dtype):
        if (case.op, case.placement) == (query.op, query.placement) and (case.mode == query.mode or serves_all):
            times = dict(_of_option(samples, Option.of(why.algorithm, why.params)))
            if times:
                return Times(f"{path.name}, {_type(case)}", times)
    return Times()


def _of_option(samples: Samples, option: Option) -> Iterator[tuple[int, float]]:
    for size in samples.sizes:
        of_size = samples.times[size]
        found = of_size.get(option) or (of_size.get(PLAIN) if samples.plain.get(size) == option else None)
        if found:
            yield size, found[0] * 1e6


def _type(case: Case) -> str:
    return str(case.dtype).removeprefix("torch.")


def _place(source: str) -> Path:
    """Return where a plan's file is; those that come with commlib are named without the package's folder."""
    shipped = Path(str(resources.files("commlib").joinpath(source)))
    return shipped if source.startswith("plans/") and shipped.is_file() else Path(source)


def times_of_results(document: dict[str, Any], why: Explanation, query: Query, name: str) -> Times:
    """Return what `commlib bench` measured of an algorithm, out of place if it has that form."""
    if document["config"]["mode"] != query.mode:
        return Times()
    rows = [
        row
        for row in measured(document["rows"])
        if (row["op"], row["type"], row["algorithm"], row["placement"])
        == (query.op, query.dtype, why.algorithm, query.placement)
        and row["redop"] in (query.redop, None)
    ]
    form = min((row["in_place"] for row in rows), default=False)
    times = {row["size"]: median_us(row) for row in rows if row["in_place"] == form}
    return Times(f"{name}, {query.dtype}", times) if times else Times()


def limit_us(document: dict[str, Any], query: Query) -> float | None:
    """Return the least that a call can take: its bytes over the bandwidth that was measured in the same run."""
    limit = Limit(**document["limit"])
    rate, factor = limit.at(query.num_bytes), COLLECTIVES[query.op].bus_factor(query.world)
    least = query.num_bytes * factor / rate * 1e-3 if rate else None
    return max((us for us in (least, limit.latency_us) if us is not None), default=None)
