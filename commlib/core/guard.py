"""COMMLIB_GUARD: the first call whose tensors hold NaN, or whose result differs between ranks, is an error.

Every call is looked at, made, and looked at again; then the ranks exchange what they saw. That costs a wait
for the GPU and an exchange each time: it is for finding a fault, not for work.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast
from weakref import proxy

import torch
from torch import Tensor

from commlib import env
from commlib.backends.base import Backend
from commlib.collectives.signatures import SIGNATURES, Signature
from commlib.core.dispatch import Dispatcher
from commlib.errors import CommError
from commlib.worker import call_site

_LOG = logging.getLogger("commlib")
_NOTHING, _INPUT, _RESULT = range(3)
_WITHOUT_NAN = (torch.float4_e2m1fn_x2,)  # torch has no isnan for it


class Report(NamedTuple):
    """What a rank reports of a call: where NaN is, and the checksum of its result."""

    kind: int = _NOTHING
    argument: int = 0
    element: int = 0
    checksum: int = 0


def observer(backend: Backend, dispatcher: Dispatcher, explain: object) -> Guard | None:
    mode = env.GUARD.get()
    return None if mode == "off" else Guard(backend, dispatcher, mode)


class Guard:
    def __init__(self, backend: Backend, dispatcher: Dispatcher, mode: str) -> None:
        self._backend, self._mode = backend, mode
        self._dispatcher = cast("Dispatcher", proxy(dispatcher))  # which keeps its observers
        self._number, self._warned = 0, False

    def observe(self, name: str, run: Callable[..., Any], *arguments: Any) -> Any:
        signature = SIGNATURES[name]
        if not signature.parameters or self._in_capture():
            return run(*arguments)
        self._number += 1
        looks, rank = self._mode == "nan", self._backend.rank
        report = _nan(_INPUT, signature.tensors("reads", arguments, rank)) if looks else None
        result = run(*arguments)
        written = signature.tensors("writes", arguments, rank)
        if looks:
            report = report or _nan(_RESULT, written)
        elif signature.equal:
            report = Report(checksum=_checksum(tensor for _, tensor in written))
        called = f"{name} #{self._number} at {call_site()}"
        if signature.pair:
            _raise_nan(called, signature, {rank: report} if report and looks else {})
        else:
            self._compare(called, signature, report or Report())
        return result

    def _in_capture(self) -> bool:
        if self._backend.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return False
        if not self._warned:
            _LOG.warning("%s does not look at calls that a CUDA graph captures", env.GUARD.name)
        self._warned = True
        return True

    def _compare(self, called: str, signature: Signature, mine: Report) -> None:
        everyone = torch.empty(self._backend.size, len(mine), dtype=torch.int64, device=self._backend.device)
        row = torch.tensor([mine], dtype=torch.int64, device=self._backend.device)
        with self._backend.inner():
            self._dispatcher.calls.all_gather(everyone, row)
        reports = dict(enumerate(Report(*row) for row in everyone.tolist()))
        _raise_nan(called, signature, {rank: each for rank, each in reports.items() if each.kind != _NOTHING})
        sums = {rank: each.checksum for rank, each in reports.items()}
        if len(set(sums.values())) > 1:
            checksums = ", ".join(f"rank {rank} {checksum:08x}" for rank, checksum in sums.items())
            raise CommError(f"{called}: the ranks' results differ; their checksums: {checksums} ({env.GUARD.name}=crc)")


def _raise_nan(called: str, signature: Signature, reports: Mapping[int, Report]) -> None:
    """Name the first rank that has NaN, inputs before results."""
    for rank, each in sorted(reports.items(), key=lambda pair: pair[1].kind):
        name = signature.parameters[each.argument].name
        what = f"{name} of rank {rank} holds NaN at element {each.element}"
        if each.kind == _RESULT:
            what = f"the result {what}" if signature.pair else f"the result {what}, and no rank's input did"
        raise CommError(f"{called}: {what} ({env.GUARD.name}=nan)")


def _nan(kind: int, tensors: list[tuple[int, Tensor]]) -> Report | None:
    for place, tensor in tensors:
        if tensor.dtype in _WITHOUT_NAN or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor
        bad = wide.isnan().reshape(-1)
        if bad.any():
            return Report(kind, place, int(bad.int().argmax()))
    return None


def _checksum(tensors: Iterable[Tensor]) -> int:
    value = 0
    for tensor in tensors:
        x = tensor.detach().contiguous()
        flat = x.as_strided((x.numel(),), (1,))  # of one element the stride may be any
        value = zlib.crc32(flat.view(torch.uint8).cpu().numpy().data, value)
    return value
