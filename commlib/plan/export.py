"""Export: a plan's sizes in the words of NCCL's example tuner and of Open MPI, as far as those have such words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commlib.counts import counted
from commlib.plan.plan import Plan
from commlib.plan.rules import Query, Range, Rule, span_text

_UNLIMITED = (1 << 63) - 1
_NCCL_OPS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
# The first prefix that fits; what moves data in the same way, since NCCL cannot be told to run our kernels.
_NCCL_PROTOCOLS = {"lsa_ll128_": "ll128", "lsa_lamport_": "ll128", "lsa_ll_": "ll", "lsa_": "simple", "nccl_": "simple"}


class _Peer(NamedTuple):
    """An algorithm of Open MPI's: its number there, its name, and whether it cuts messages into segments."""

    number: int
    name: str
    segments: bool = False


class _MpiOp(NamedTuple):
    """A collective of Open MPI's: its number, and what stands for our small, chunked and two-phase algorithms."""

    number: int
    name: str
    small: _Peer
    chunked: _Peer
    twoshot: _Peer | None = None


_LINEAR, _DOUBLING = _Peer(1, "linear"), _Peer(3, "recursive_doubling")
_PIPELINE = _Peer(3, "pipeline", segments=True)
_MPI_OPS = {
    "all_gather": _MpiOp(0, "allgather", _DOUBLING, _Peer(4, "ring")),
    "all_gatherv": _MpiOp(1, "allgatherv", _Peer(2, "bruck"), _Peer(3, "ring")),
    "all_reduce": _MpiOp(2, "allreduce", _DOUBLING, _DOUBLING, _Peer(5, "segmented_ring", segments=True)),
    "all_to_all": _MpiOp(3, "alltoall", _LINEAR, _Peer(2, "pairwise")),
    "all_to_allv": _MpiOp(4, "alltoallv", _LINEAR, _Peer(2, "pairwise")),
    "barrier": _MpiOp(6, "barrier", _DOUBLING, _DOUBLING),
    "broadcast": _MpiOp(7, "bcast", _LINEAR, _PIPELINE),
    "gather": _MpiOp(9, "gather", _LINEAR, _LINEAR),
    "reduce": _MpiOp(11, "reduce", _LINEAR, _PIPELINE),
    "reduce_scatterv": _MpiOp(12, "reduce_scatter", _Peer(2, "recursive_halving"), _Peer(3, "ring")),
    "reduce_scatter": _MpiOp(13, "reduce_scatter_block", _Peer(2, "recursive_doubling"), _Peer(3, "recursive_halving")),
    "scatter": _MpiOp(15, "scatter", _LINEAR, _LINEAR),
}


class Exported(NamedTuple):
    """The text of the file, and what could not be said in it."""

    text: str
    left_out: list[str]


def export(plan: Plan, form: str, world: int) -> Exported:
    """Return a plan as `nccl-tuner` or `ompi` for one number of ranks: plain float32 tensors, sums, eager calls."""
    rules: dict[str, Rule] = {}
    for rule in plan.rules:
        if rule.covers(Query(rule.op, 0, "float32", "sum", world)):
            rules.setdefault(rule.op, rule)
    made = (_nccl if form == "nccl-tuner" else _ompi)(rules, world)
    if not made.text:
        names = sorted({entry.algorithm for rule in rules.values() for entry in rule.ranges})
        wanted = "nccl" if form == "nccl-tuner" else "shm"
        raise ValueError(
            f"{form} can express none of the algorithms in plan {plan.source}: {', '.join(names) or 'none'}; "
            f"export a plan of the {wanted} backend"
        )
    return Exported(
        f"# {form} rules from commlib's plan {plan.digest} for {counted(world, 'rank')}\n{made.text}", made.left_out
    )


def _nccl(rules: Mapping[str, Rule], world: int) -> Exported:
    """Write the CSV of NCCL's example tuner; its first line that fits decides, -1 stands for any."""
    rows: list[str] = []
    left_out: list[str] = []
    for op, rule in rules.items():
        for above, entry in rule.spans():
            protocol = next((word for stem, word in _NCCL_PROTOCOLS.items() if entry.algorithm.startswith(stem)), None)
            span = span_text(above, entry.max_bytes)
            if op not in _NCCL_OPS or protocol is None:
                left_out.append(f"{op} {span} by {entry.algorithm}")
                continue
            high = _UNLIMITED if entry.max_bytes is None else entry.max_bytes
            rows.append(f"# {op} {span}: {entry.algorithm}")
            rows.append(f"{_NCCL_OPS[op]},{_first(above)},{high},ring,{protocol},-1,1,{world},-1,-1")
    head = [
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
        "# NCCL has no lsa_ kernels and can only choose among its own: each line takes the protocol",
        "# that moves data in the same way (small packets: ll, whole ones and lines: ll128, tiles and NCCL's: simple).",
    ]
    return Exported(_text(head, rows), left_out)


def _ompi(rules: Mapping[str, Rule], world: int) -> Exported:
    """Write the rules of Open MPI's coll/tuned in the classic form, which every version reads."""
    rows: list[str] = []
    left_out: list[str] = []
    count = 0
    for op, rule in rules.items():
        lacking = [(above, entry) for above, entry in rule.spans() if _peer(op, entry) is None]
        left_out += [f"{op} {span_text(above, entry.max_bytes)} by {entry.algorithm}" for above, entry in lacking]
        if lacking:
            continue
        # Between fewer and more ranks, which are Open MPI's to choose.
        count += 1
        rows += [f"{_MPI_OPS[op].number}  # {_MPI_OPS[op].name}", "3  # sizes of communicators", "0 1", "0 0 0 0"]
        rows.append(f"{world} {len(rule.ranges)}  # ranks, rules")
        for above, entry in rule.spans():
            peer = _peer(op, entry)
            assert peer is not None
            segment = entry.params.get("chunk_bytes", 0) if peer.segments else 0
            rows.append(f"{_first(above)} {peer.number} 0 {segment}  # {peer.name} for {entry.choice}")
        rows += [f"{world + 1} 1", "0 0 0 0"]
    head = [
        "# for --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE",
        "# a rule: from so many bytes on, algorithm, fan-out, bytes of a segment; 0 0 0 0 leaves it to Open MPI",
        f"{count}  # collectives",
    ]
    return Exported(_text(head, rows), left_out)


def _peer(op: str, entry: Range) -> _Peer | None:
    """Return what stands for one of shm's algorithms: a single hot chunk is a matter of latency, chunks of rate."""
    known = _MPI_OPS.get(op)
    if known is None or entry.algorithm not in ("shm_oneshot", "shm_twoshot"):
        return None
    if entry.algorithm == "shm_twoshot":
        return known.twoshot
    return known.small if entry.params.get("hot") else known.chunked


def _first(above: int | None) -> int:
    return 0 if above is None else above + 1


def _text(head: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([*head, *rows, ""]) if rows else ""
