"""Paths of calls, for `commlib plan explain`: parameters and copies; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from commlib.collectives import COLLECTIVES
from commlib.plan import Explanation, Plan, Query
from commlib.tools.report.document import Kind

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


@dataclass(frozen=True)
class Explained:
    """The calls of `commlib plan explain`, by one plan."""

    schema: str
    version: int
    op: str
    type: str
    ranks: int
    mode: Literal["eager", "graph"]
    digest: str
    source: str
    rows: list[dict[str, Any]]  # of each call: size, placement, algorithm, params, copies and why


KIND = Kind("commlib.plan.explained", 1, "commlib plan explain --json", of=Explained)


def copies_of(algorithm: str, params: Mapping[str, int]) -> str:
    """Say how often data is copied on its way."""
    if params.get("pull"):
        return PULLED
    family = max((name for name in COPIES if algorithm.startswith(name)), key=len, default="")
    return COPIES.get(family, "the plugin's own")


def path_of(why: Explanation, query: Query) -> dict[str, Any]:
    """Return the row of a call."""
    row = COLLECTIVES[query.op].algorithm(why.algorithm)
    return {
        "size": query.num_bytes,
        "placement": query.placement,
        "algorithm": why.algorithm,
        "params": {**{param.name: param.default for param in row.params}, **why.params},
        "copies": copies_of(why.algorithm, why.params),
        "why": str(replace(why, source=Path(why.source).name)),
    }


def lines_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is known of a call besides its rule."""
    if row["params"]:
        yield "  parameters: " + ", ".join(f"{name} {value}" for name, value in row["params"].items())
    yield f"  copies: {row['copies']}"


def document(plan: Plan, query: Query, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what --json prints."""
    facts = {"op": query.op, "type": query.dtype, "ranks": query.world, "mode": query.mode}
    shown = {"digest": plan.digest, "source": Path(plan.source).name}
    return {"schema": KIND.name, "version": KIND.version, **facts, **shown, "rows": rows}
