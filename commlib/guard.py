"""COMMLIB_GUARD: the first call whose tensors hold NaN, or whose result differs between ranks, is an error.

Every call is looked at, made, and looked at again; then the ranks tell each other what they found. That costs a wait
for the GPU and an exchange each time: it is for finding a fault, not for work.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import proxy

import torch
from torch import Tensor

from commlib import env
from commlib.errors import CommError
from commlib.lane import call_site

if TYPE_CHECKING:
    from commlib._native import Calls
    from commlib.communicator import Communicator

_LOG = logging.getLogger("commlib")
_NOTHING, _INPUT, _RESULT = range(3)
_WITHOUT_NAN = (torch.float4_e2m1fn_x2,)  # of which torch cannot ask, either


@dataclass(frozen=True)
class Arguments:
    """Where a call has its tensors: what it reads, by name, and what it writes; on the root alone where it says so."""

    reads: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    root: int | None = None
    reads_at_root: bool = False
    writes_at_root: bool = False
    replaces: bool = False  # it writes the last of what is given
    equal: bool = False  # what is written is the same on all ranks
    alone: bool = False  # not all ranks make it

    def given(self, places: Mapping[str, int], given: tuple[Any, ...], rank: int) -> list[tuple[int, Tensor]]:
        """Return those of `places` that this rank has: each place among the arguments, and the tensor."""
        at_root = self.reads_at_root if places is self.reads else self.writes_at_root
        if at_root and self.root is not None and given[self.root] != rank:
            return []
        found = [(place, given[place]) for place in places.values() if isinstance(given[place], Tensor)]
        return found[-1:] if self.replaces and places is self.writes else found


_X_TO_OUT = Arguments({"x": 1}, {"out": 0})
_GATHERED = Arguments({"x": 1}, {"out": 0}, equal=True)
CALLS = {
    "all_reduce": Arguments({"x": 0}, {"x": 0, "out": 2}, replaces=True, equal=True),
    "all_reduce_rms_norm": Arguments(
        {"x": 0, "residual": 1, "weight": 2, "bias": 3, "scale": 4},
        {"out": 5, "residual_out": 6, "scale_out": 7},
        equal=True,
    ),
    "all_reduce_epilogue": Arguments({"x": 1}, {"sums": 4}),
    "reduce": Arguments({"x": 1}, {"out": 0}, root=2, writes_at_root=True),
    "broadcast": Arguments({"x": 0}, {"x": 0}, root=1, reads_at_root=True, equal=True),
    "all_gather": _GATHERED,
    "all_gatherv": _GATHERED,
    "reduce_scatter": _X_TO_OUT,
    "reduce_scatterv": _X_TO_OUT,
    "all_to_all": _X_TO_OUT,
    "all_to_allv": _X_TO_OUT,
    "gather": Arguments({"x": 1}, {"out": 0}, root=2, writes_at_root=True),
    "scatter": Arguments({"x": 1}, {"out": 0}, root=2, reads_at_root=True),
    "send": Arguments({"x": 0}, alone=True),
    "recv": Arguments({}, {"x": 0}, alone=True),
    "send_recv": Arguments({"x": 0}, {"out": 2}, alone=True),
}


class Found(NamedTuple):
    """What a rank has found: where NaN is, and the checksum of its result."""

    kind: int = _NOTHING
    argument: int = 0
    element: int = 0
    checksum: int = 0


def watched(calls: Calls, comm: Communicator) -> Calls:
    """Return the calls of a communicator, looked at as COMMLIB_GUARD says."""
    mode = env.GUARD.get()
    return calls if mode == "off" else cast("Calls", _Guarded(calls, proxy(comm), mode))


class _Guarded:
    """Stands in for the calls."""

    def __init__(self, calls: Calls, comm: Communicator, mode: str) -> None:
        self._calls, self._comm, self._mode = calls, comm, mode
        self._number, self._told = 0, False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        run = getattr(self._calls, name)
        return partial(self._call, name, run, CALLS[name]) if name in CALLS else run

    def _call(self, name: str, run: Callable[..., Any], arguments: Arguments, *given: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or self._in_capture():
            return run(*given)
        self._number += 1
        looks, rank = self._mode == "nan", self._comm.rank
        found = _nan(_INPUT, arguments.given(arguments.reads, given, rank)) if looks else None
        result = run(*given)
        written = arguments.given(arguments.writes, given, rank)
        if looks:
            found = found or _nan(_RESULT, written)
        elif arguments.equal:
            found = Found(checksum=_checksum(tensor for _, tensor in written))
        called = f"{name} #{self._number} at {call_site()}"
        if arguments.alone:
            _raise_nan(called, arguments, {rank: found} if found and looks else {})
        else:
            self._compare(called, arguments, found or Found())
        return result

    def _in_capture(self) -> bool:
        if self._comm.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return False
        if not self._told:
            _LOG.warning("%s does not look at calls that a CUDA graph captures", env.GUARD.name)
        self._told = True
        return True

    def _compare(self, called: str, arguments: Arguments, mine: Found) -> None:
        """Tell the other ranks, and raise on all of them what any of them has found."""
        everyone = torch.empty(self._comm.size, len(mine), dtype=torch.int64, device=self._comm.device)
        with self._comm._backend.inner():
            self._calls.all_gather(everyone, torch.tensor([mine], dtype=torch.int64, device=self._comm.device))
        found = dict(enumerate(Found(*row) for row in everyone.tolist()))
        _raise_nan(called, arguments, {rank: each for rank, each in found.items() if each.kind != _NOTHING})
        sums = {rank: each.checksum for rank, each in found.items()}
        if len(set(sums.values())) > 1:
            told = ", ".join(f"rank {rank} {checksum:08x}" for rank, checksum in sums.items())
            raise CommError(f"{called}: the ranks' results differ; their checksums: {told} ({env.GUARD.name}=crc)")


def _raise_nan(called: str, arguments: Arguments, found: Mapping[int, Found]) -> None:
    """Name the first rank that found some, inputs before results."""
    for rank, each in sorted(found.items(), key=lambda pair: pair[1].kind):
        places = arguments.reads if each.kind == _INPUT else arguments.writes
        name = next(name for name, place in places.items() if place == each.argument)
        what = f"{name} of rank {rank} holds NaN at element {each.element}"
        if each.kind == _RESULT:
            what = f"the result {what}" if arguments.alone else f"the result {what}, and no rank's input did"
        raise CommError(f"{called}: {what} ({env.GUARD.name}=nan)")


def _nan(kind: int, tensors: list[tuple[int, Tensor]]) -> Found | None:
    """Return the first NaN."""
    for place, tensor in tensors:
        if tensor.dtype in _WITHOUT_NAN or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor
        bad = wide.isnan().reshape(-1)
        if bad.any():
            return Found(kind, place, int(bad.int().argmax()))
    return None


def _checksum(tensors: Iterable[Tensor]) -> int:
    value = 0
    for tensor in tensors:
        x = tensor.detach().contiguous()
        flat = x.as_strided((x.numel(),), (1,))  # of one element the stride may be any
        value = zlib.crc32(flat.view(torch.uint8).cpu().numpy().data, value)
    return value
