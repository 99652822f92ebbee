"""commlib's candidates: the shipped plan, NCCL's call through commlib, and every algorithm with its parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from candidate import Candidate, Memory, Run
from case import DTYPE, Case

from commlib.communicator import Communicator
from commlib.plan import Plan
from commlib.timing import public_call

KNOBS = ("blocks", "threads", "grain_bytes", "tile_bytes")
# What --sweep tries unless told: packets deal the work out by grain, streams step by tile.
PACKETS = {"blocks": (16, 32, 64, 96, 128), "threads": (64, 128, 256, 512), "grain_bytes": (8,)}
LL128 = {**PACKETS, "grain_bytes": (4, 7, 15)}
STREAMS = {"blocks": (32, 64, 96, 128, 132), "threads": (256, 352, 480), "tile_bytes": (4096, 8192, 16384)}
Grid = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Sweep:
    """Which algorithms to pin beside the plan, and with which parameters."""

    algorithms: tuple[str, ...] = ()  # ("all",): every one of this backend
    grid: Mapping[str, tuple[int, ...]] | None = None  # None: the defaults of a plan; {}: the grids above
    with_base: bool = False  # eager: between the calls run those of the shipped plan


class Ours:
    """The candidates that make commlib's public call on this communicator."""

    def __init__(self, comm: Communicator, plain: Memory) -> None:
        self._comm, self._plain, self.base = comm, plain, comm.plan

    def restore(self) -> None:
        """Put the shipped plan back."""
        self._comm.use(self.base)

    def candidates(self, case: Case, mode: str, sweep: Sweep) -> Iterator[Candidate]:
        """Yield the plan's choice, NCCL's call, and what the sweep names."""
        chosen = self.base.explain(
            case.op, case.num_bytes, str(DTYPE).removeprefix("torch."), world=case.size, mode=mode
        ).algorithm
        yield self._candidate("auto", case, self.restore, algorithm=chosen)
        if any(a.name == "nccl_direct" for a in self._algorithms(case)):
            yield self._pinned(case, "nccl_direct", {}, sweep.with_base, variant=False)
        for name in self._swept(case, sweep):
            for params in variants(name, case, sweep.grid):
                yield self._pinned(case, name, params, sweep.with_base)

    def _algorithms(self, case: Case) -> list:  # type: ignore[type-arg]
        return [a for a in case.collective.algorithms if a.backend == self._comm.backend and a.placement == "plain"]

    def _swept(self, case: Case, sweep: Sweep) -> list[str]:
        names = [a.name for a in self._algorithms(case)]
        if sweep.algorithms == ("all",):
            return [name for name in names if name != "nccl_direct"]
        return [name for name in names if name in sweep.algorithms]

    def _pinned(
        self, case: Case, name: str, params: Mapping[str, int], with_base: bool, variant: bool = True
    ) -> Candidate:
        plan = Plan.only({case.op: name}, base=self.base if with_base else None, params=params)
        refuses = case.collective.algorithm(name).refuses(DTYPE, "sum", case.size) or ""
        label = " ".join([name, *(f"{knob[0]}={value}" for knob, value in params.items())])
        made = self._candidate(
            label, case, lambda: self._comm.use(plan), algorithm=name, params=params, variant=variant
        )
        return made if not refuses else Candidate(label, ours=True, algorithm=name, reason=refuses)

    def _candidate(self, label: str, case: Case, enter: Callable[[], object], **more: object) -> Candidate:
        prepare = public_call(self._comm, case.collective)

        def make(x: torch.Tensor, out: torch.Tensor, case: Case) -> Run:
            return prepare(x, out, case.call)

        in_place = case.op == "all_reduce"
        return Candidate(label, make, self._plain, in_place, ours=True, enter=enter, **more)  # type: ignore[arg-type]


def variants(name: str, case: Case, grid: Grid | None) -> Iterator[dict[str, int]]:
    """Yield the parameters to try; those that launch the same kernel at this size only once."""
    if grid is None or not name.startswith("lsa_"):
        yield {}
        return
    known = LL128 if "ll128" in name else PACKETS if "_ll_" in name else STREAMS
    wanted = {knob: grid.get(knob, values) for knob, values in known.items()}
    wanted |= {knob: values for knob, values in grid.items() if knob in KNOBS and knob not in known}
    seen = set()
    for values in itertools.product(*wanted.values()):
        params = dict(zip(wanted, values, strict=True))
        key = _launch(params, case)
        if key not in seen:
            seen.add(key)
            yield params


def _launch(params: Mapping[str, int], case: Case) -> tuple[int, ...]:
    """Return what the kernel sees of the parameters: as many blocks as the work needs, up to `blocks`."""
    share = case.call.count * DTYPE.itemsize
    needed = share // (params["threads"] * params.get("grain_bytes", 16)) + 1
    return min(params["blocks"], needed), params["threads"], params.get("tile_bytes", 0)
