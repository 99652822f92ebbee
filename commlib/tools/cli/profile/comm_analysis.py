"""`commlib profile comm --analyze`: which path calls of some sizes take, and why; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from commlib import backends
from commlib.collectives import COLLECTIVES, REDOPS
from commlib.env import parse_bytes
from commlib.plan import Plan, Query
from commlib.tools.bench.expected import Results, expected
from commlib.tools.bench.result import KIND as BENCH
from commlib.tools.cli.options import check_files, known_name, read_dtypes
from commlib.tools.cli.plan import read_plan
from commlib.tools.report.document import Kind, Report, Row

KIND = Kind(
    "commlib.comm_analysis", 1, "commlib profile comm", "commlib.tools.cli.profile", "comm_analysis_schema.json"
)
RANKS = 2

# How data gets to the peers, by what names of algorithms begin with; the longest that fits counts.
COPIES = {
    "shm_": "each rank copies what peers read into shared memory, and peers read it there",
    "shm_symmetric": "none: peers read and write the tensors where they lie",
    "nccl_": "NCCL's own",
    "nccl_staged": "one into symmetric memory, one out of it; NCCL's between",
    "nccl_symmetric": "none: NCCL reads and writes the tensors where they lie",
    "nccl_composed": "those of the all_reduce before; then rows are read and written once more",
    "engine_": "none: copy engines read the peers' tensors where they lie",
    "lsa_": "tiles are pushed into slots of the peers, and read there; one flag for each tile",
    "lsa_ll_": "packets are pushed into slots of the peers, and read there; 2 bytes on the link for each byte of data",
    "lsa_ll128_": "lines are pushed into slots of the peers, and read there; 16 bytes on the link for 15 of data",
    "lsa_lamport_": "packets are pushed into slots of the peers, and read there; nothing but data on the link",
    "torch_": "torch's own",
}
PULLED = "one: peers read the tensor in the memory of its process, through the kernel"


def copies_of(algorithm: str, params: dict[str, int]) -> str:
    """Say how often data is copied on its way."""
    if params.get("pull"):
        return PULLED
    family = max((name for name in COPIES if algorithm.startswith(name)), key=len, default="")
    return COPIES.get(family, "the plugin's own")


@dataclass(frozen=True)
class Analysis:
    """The calls to explain, by the plan that would decide."""

    plan: Plan
    backend: str
    queries: tuple[Query, ...]
    results: Results


def read_analysis(op: str, ranks: int | None, options: dict[str, Any]) -> Analysis:
    """Turn options into what is to be explained, or raise what is wrong with them."""
    known_name(op, COLLECTIVES, "collective")
    known_name(options["redop"], REDOPS, "reduction")
    check_files(options["output"], None, "--json")
    if options["plot"] or options["trace"] or options["algorithm"] != "auto":
        raise click.UsageError(
            "--analyze explains the plan's choice without a run; leave --plot, --trace, --algorithm out"
        )
    world = ranks or RANKS
    backend = backends.here(world) if options["backend"] == "auto" else options["backend"]
    dtype = str(read_dtypes(options["dtype"])[0]).removeprefix("torch.")
    try:
        sizes = [parse_bytes(word.strip()) for word in options["analyze"].split(",")]
    except ValueError as error:
        raise click.UsageError(f"--analyze {options['analyze']}: {error}") from None
    query = Query(op, 0, dtype, options["redop"], world, mode="graph" if options["graph"] else "eager")
    placements = ("symmetric",) if options["symmetric"] else ("plain", "symmetric")
    queries = [replace(query, num_bytes=size, placement=placement) for size in sizes for placement in placements]
    path: Path | None = options["results"]
    results = Results(BENCH.read_all(path), path.name) if path else Results()
    return Analysis(read_plan(options["plan"], backend, world), backend, tuple(queries), results)


class AnalysisReport(Report):
    """Explains each call in a row."""

    def __init__(self, analysis: Analysis, command: str) -> None:
        super().__init__(KIND, command, analysis.backend)
        self._analysis = analysis
        self.rows = [self._row(query) for query in analysis.queries]
        self.notes = list(self._missing())

    def _row(self, query: Query) -> Row:
        analysis = self._analysis
        why = analysis.plan.explain(
            query.op,
            query.num_bytes,
            query.dtype,
            query.redop,
            world=query.world,
            placement=query.placement,
            mode=query.mode,
        )
        row = COLLECTIVES[query.op].algorithm(why.algorithm)
        return {
            "size": query.num_bytes,
            "placement": query.placement,
            "algorithm": why.algorithm,
            "params": {**{param.name: param.default for param in row.params}, **why.params},
            "copies": copies_of(why.algorithm, dict(why.params)),
            "why": str(replace(why, source=Path(why.source).name)),
            **expected(why, query, analysis.backend, analysis.results),
        }

    def _missing(self) -> Iterator[str]:
        if any(row["expected_us"] is None for row in self.rows):
            yield "no times of some choices: measure them with `commlib tune`, or `commlib bench -o FILE` for --results"
        if any(row["limit_us"] is None for row in self.rows):
            yield "no limit: `commlib bench -o FILE` measures it; give that FILE to --results"

    def content(self) -> dict[str, Any]:
        """Return which calls they are, by which plan, and the rows."""
        query, plan = self._analysis.queries[0], self._analysis.plan
        return {
            "config": {
                "op": query.op,
                "type": query.dtype,
                "redop": query.redop if COLLECTIVES[query.op].reduces else None,
                "mode": query.mode,
                "ranks": query.world,
                "backend": self._analysis.backend,
            },
            "plan": {"digest": plan.digest, "source": Path(plan.source).name},
            "rows": self.rows,
            "notes": self.notes,
        }
