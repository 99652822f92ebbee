"""Export: a plan's sizes in the words of NCCL's example tuner and of Open MPI, as far as those have such words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commlib.plan.plan import Plan
from commlib.plan.rules import Range, span_text

_UNLIMITED = (1 << 63) - 1
_NCCL_OPS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
# The first prefix that fits; what moves data in the same way, since NCCL cannot be told to run our kernels.
_NCCL_PROTOCOLS = {"lsa_ll128_": "ll128", "lsa_ll_": "ll", "lsa_": "simple", "nccl_": "simple"}


@dataclass(frozen=True)
class _Peer:
    """An algorithm of Open MPI's: its number there, its name, and whether it cuts messages into segments."""

    number: int
    name: str
    segments: bool = False


@dataclass(frozen=True)
class _MpiOp:
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


@dataclass(frozen=True)
class Exported:
    """The text of the file, and what could not be said in it."""

    text: str
    left_out: tuple[str, ...]


def export(plan: Plan, form: str, world: int) -> Exported:
    """Return a plan as `nccl-tuner` or `ompi` for one number of ranks: plain float32 tensors, sums, eager calls."""
    tables = {op: _ranges(plan, op, world) for op in dict.fromkeys(rule.op for rule in plan.rules_of(world))}
    made = _nccl(tables, world) if form == "nccl-tuner" else _ompi(tables, world)
    if not made.text:
        names = sorted({entry.algorithm for ranges in tables.values() for entry in ranges})
        wanted = "nccl" if form == "nccl-tuner" else "shm"
        raise ValueError(
            f"plan {plan.source} has nothing that {form} could say, it names {', '.join(names) or 'nothing'}; "
            f"export a plan of the {wanted} backend"
        )
    return Exported(f"# {form} rules from commlib's plan {plan.digest} for {world} ranks\n{made.text}", made.left_out)


def _ranges(plan: Plan, op: str, world: int) -> tuple[Range, ...]:
    rules = (rule for rule in plan.rules if rule.op == op)
    return next((rule.ranges for rule in rules if rule.covers("float32", "sum", "plain", "eager", world)), ())


def _spans(ranges: tuple[Range, ...]) -> Iterator[tuple[int | None, Range]]:
    """Yield each range with the largest size below it."""
    above = None
    for entry in ranges:
        yield above, entry
        above = entry.max_bytes


def _nccl(tables: Mapping[str, tuple[Range, ...]], world: int) -> Exported:
    """Write the CSV of NCCL's example tuner; its first line that fits decides, -1 stands for any."""
    rows: list[str] = []
    left_out: list[str] = []
    for op, ranges in tables.items():
        for above, entry in _spans(ranges):
            protocol = next((word for stem, word in _NCCL_PROTOCOLS.items() if entry.algorithm.startswith(stem)), None)
            span = span_text(above, entry.max_bytes)
            if op not in _NCCL_OPS or protocol is None:
                left_out.append(f"{op} {span} by {entry.algorithm}")
                continue
            low = 0 if above is None else above + 1
            high = _UNLIMITED if entry.max_bytes is None else entry.max_bytes
            rows.append(f"# {op} {span}: {entry.algorithm}")
            rows.append(f"{_NCCL_OPS[op]},{low},{high},ring,{protocol},-1,1,{world},-1,-1")
    head = [
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
        "# NCCL has no lsa_ kernels and can only choose among its own: each line takes the protocol",
        "# that moves data in the same way (packets: ll, lines: ll128, streams and NCCL's: simple).",
    ]
    return Exported("\n".join([*head, *rows, ""]) if rows else "", tuple(left_out))


def _ompi(tables: Mapping[str, tuple[Range, ...]], world: int) -> Exported:
    """Write the rules of Open MPI's coll/tuned in the classic form, which every version reads."""
    sections: list[list[str]] = []
    left_out: list[str] = []
    for op, ranges in tables.items():
        peers = [(above, entry, _peer(op, entry)) for above, entry in _spans(ranges)]
        lacking = [f"{op} {span_text(at, entry.max_bytes)} by {entry.algorithm}" for at, entry, p in peers if not p]
        if lacking or not peers:
            left_out += lacking
        else:
            sections.append(_section(_MPI_OPS[op], [(at, entry, p) for at, entry, p in peers if p], world))
    head = [
        "# for --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE",
        "# a rule: from so many bytes on, algorithm, fan-out, bytes of a segment; 0 0 0 0 leaves it to Open MPI",
        f"{len(sections)}  # collectives",
    ]
    text = "\n".join([*head, *(line for section in sections for line in section), ""])
    return Exported(text if sections else "", tuple(left_out))


def _section(op: _MpiOp, ranges: list[tuple[int | None, Range, _Peer]], world: int) -> list[str]:
    """Write one collective: the rules for `world` ranks, between fewer and more, which are Open MPI's to choose."""
    rows = [f"{op.number}  # {op.name}", "3  # sizes of communicators", "0 1", "0 0 0 0"]
    rows.append(f"{world} {len(ranges)}  # ranks, rules")
    for above, entry, peer in ranges:
        low = 0 if above is None else above + 1
        segment = entry.params.get("chunk_bytes", 0) if peer.segments else 0
        rows.append(f"{low} {peer.number} 0 {segment}  # {peer.name} for {entry.choice}")
    return [*rows, f"{world + 1} 1", "0 0 0 0"]


def _peer(op: str, entry: Range) -> _Peer | None:
    """Return what stands for one of shm's algorithms: a single hot chunk is a matter of latency, chunks of rate."""
    known = _MPI_OPS.get(op)
    if known is None or entry.algorithm not in ("shm_oneshot", "shm_twoshot"):
        return None
    if entry.algorithm == "shm_twoshot":
        return known.twoshot
    return known.small if entry.params.get("hot") else known.chunked
