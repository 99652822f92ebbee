"""Ways to add up every rank's rows, add the residual and take the RMSNorm of each row: commlib's and others'.

Each works in place: the sum with the residual replaces the residual, and where the way allows it the norm replaces x.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from peers.flashinfer import FlashInfer
from peers.sglang import SGLang
from torch import Tensor

import commlib
from commlib.collectives import COLLECTIVES
from commlib.collectives.all_reduce_rms_norm import normalised, quantised
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.plan import Plan
from commlib.tools.baselines import load
from commlib.tools.baselines.symm import DTYPES, Symm, group_name
from commlib.tools.timing import Empty, Measurement, Run, plain_on

OP, EPILOGUE = "all_reduce_rms_norm", "epilogue"
Norms = Callable[[Tensor, "Tensor | None", Tensor, float], "tuple[Tensor, ...]"]
"""Of x, the residual, the weight and eps: the norm, the sum with the residual, and scales if there are any."""
AddNorm = Callable[[Tensor, "Tensor | None", Tensor, float, Tensor], "tuple[Tensor, ...]"]
"""The same without the sum over ranks; the last tensor may take the norm."""
# Kernels of others that have the norm in them: of each way, what its peer's add_norm is told.
EARLY = {"flashinfer": False, "flashinfer_early": True}
SHOTS = {"sglang_oneshot": False, "sglang_twoshot": True}


@dataclass(frozen=True)
class Way:
    """One way: x must be a tensor of `empty`, and `enter` runs before its calls where another way's were made."""

    label: str
    run: Norms
    empty: Empty
    ours: bool = False
    enter: Run = lambda: None


class Ways:
    """All ways that there are on the ranks of a communicator.

    `missing` says why others are not there, and what could not be measured; `wrong` which values were wrong.
    """

    def __init__(
        self, comm: Communicator, algorithms: Sequence[str], norm: str, quant: str | None = None, alone: bool = False
    ) -> None:
        self.comm, self.missing, self.wrong = comm, dict[str, str](), dict[str, str]()
        self._gpu = comm.device.type == "cuda"
        self._plan, self._peers = comm.plan, [load("torch"), load("symm"), FlashInfer(), SGLang()]
        scale = torch.ones(1, device=comm.device) if quant == "fp8" else None
        self._fused = {"quant": quant, "scale": scale}
        self._add_norm, self.norm = _add_norm(norm, quant, scale)
        self.found = [*self._ours(algorithms), *(() if quant or alone else self._theirs())]
        if quant or alone:
            self.missing["others"] = "they are measured without quant" if quant else "left out"

    def __enter__(self) -> Ways:
        """Start nothing: that is done."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Go back to the communicator's plan, and leave torch's process group."""
        if kind is None:
            self.comm.use(self._plan)
            for peer in self._peers:
                peer.stop()

    def tried(self, label: str, attempt: Callable[[], float], far: float) -> float | None:
        """Return how far its values are from what they should be, on the worst rank; None if they are far or it fails.

        A call of commlib's that fails is an error at once.
        """
        try:
            apart, reason = attempt(), ""
        except Unsupported as error:
            apart, reason = 0.0, str(error)
        found = self.comm.all_gather_object((apart, reason))
        if reason := next((said for _, said in found if said), ""):
            self.missing[label] = reason
            return None
        apart = max((each for each, _ in found), key=lambda each: (isnan(each), each))
        if not apart <= far:
            self.wrong[label] = f"values are {apart:.2g} of their size away; {far:.2g} is the most"
            return None
        return apart

    def timed(self, found: Iterable[Measurement]) -> list[Measurement]:
        """Return those that could be timed."""
        found = list(found)
        self.missing |= {result.label: result.skipped for result in found if result.skipped}
        return [result for result in found if not result.skipped]

    def said(self) -> str:
        """Return what is missing and wrong, a line for each."""
        lines = [f"# not here: {label}: {reason}" for label, reason in self.missing.items()]
        return "\n".join([*lines, *(f"# WRONG: {label}: {how}" for label, how in self.wrong.items())])

    def _ours(self, algorithms: Sequence[str]) -> list[Way]:
        """Return the call by the plan, by each algorithm, and all_reduce with a norm behind it."""
        plain = plain_on(self.comm.device)
        plans = {"fused": self._plan} | {
            name: Plan.only({OP: name}, base=self._plan) for name in algorithms if name != EPILOGUE
        }
        fused = partial(self.comm.all_reduce_rms_norm, **self._fused)
        found = [Way(label, fused, plain, True, partial(self._use, plan)) for label, plan in plans.items()]
        if EPILOGUE in algorithms:
            found.append(Way(EPILOGUE, partial(_epilogue, self.comm), plain, True, partial(self._use, self._plan)))
        unfused = partial(_behind, self.comm.all_reduce, self._add_norm)
        return [*found, Way("unfused", unfused, plain, True, partial(self._use, self._plan))]

    def _theirs(self) -> list[Way]:
        """Return torch.distributed, and on GPUs torch's symmetric memory, FlashInfer and SGLang."""
        found = []
        for peer in self._peers:
            peer.start(self.comm, self._gpu)
            if peer.reason:
                self.missing[peer.name] = peer.reason
            else:
                found += self._of(peer)
        return found

    def _of(self, peer: Any) -> list[Way]:
        if isinstance(peer, (FlashInfer, SGLang)):
            told = EARLY if isinstance(peer, FlashInfer) else SHOTS
            plain = plain_on(self.comm.device)
            return [Way(label, partial(_fused, peer, flag), plain) for label, flag in told.items()]
        if isinstance(peer, Symm):
            shots = {"symm_oneshot": _one_shot, "symm_twoshot": _two_shot}
            return [Way(label, partial(_behind, add, self._add_norm), peer.empty) for label, add in shots.items()]
        label = "nccl" if self._gpu else "gloo"
        return [Way(label, partial(_behind, _all_reduce, self._add_norm), plain_on(self.comm.device))]

    def _use(self, plan: Plan) -> None:
        if self.comm.plan is not plan:
            self.comm.use(plan)


def _reference(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h = x if residual is None else x + residual
    return normalised(h, weight, eps, 0.0, None, False), h


RMS_NORM = commlib.epilogue(
    """
    const Row h = has(residual) ? round(x + load(residual)) : x;
    store(residual_out, h);
    store(out, h * load(weight) * (1.f / sqrtf(sum(h * h) / width + eps)));
    """,
    inputs={"residual": "row", "weight": "columns"},
    outputs={"out": ("row", None), "residual_out": ("row", None)},
    numbers=("eps",),
    reference=_reference,
    name="rms_norm",
)


def _epilogue(comm: Communicator, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = RMS_NORM(
        comm, x, residual=residual, weight=weight, eps=eps, out=x, residual_out=residual
    )
    return found


def fastest(found: Iterable[Measurement | None]) -> Measurement | None:
    """Return the shortest of the times that there are."""
    return min((result for result in found if result is not None), key=lambda result: result.median_s, default=None)


def algorithms_of(comm: Communicator) -> list[str]:
    """Return every algorithm of the fused call on this backend."""
    return [algorithm.name for algorithm in COLLECTIVES[OP].algorithms if algorithm.backend == comm.backend]


def _behind(
    add: Callable[[Tensor], Tensor],
    add_norm: AddNorm,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
) -> tuple[Tensor, ...]:
    return add_norm(add(x), residual, weight, eps, x)


def _all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def _one_shot(x: Tensor) -> Tensor:
    _check_type(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.ops.symm_mem.one_shot_all_reduce_out(x, "sum", group_name(), out)
    return out


def _check_type(x: Tensor) -> None:
    if x.dtype not in DTYPES:
        raise Unsupported("torch's symmetric memory adds float32 and bfloat16 only")


def _two_shot(x: Tensor) -> Tensor:
    _check_type(x)
    torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", group_name())
    return x


def _fused(
    peer: FlashInfer | SGLang, told: bool, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, ...]:
    residual = torch.zeros_like(x) if residual is None else residual  # the sum goes in its place
    peer.add_norm(told, x, residual, weight, eps)
    return x, residual


def _add_norm(norm: str, quant: str | None, scale: Tensor | None) -> tuple[AddNorm, str]:
    """Return what adds the residual and takes the norm behind an all-reduce, and its name."""
    if quant:
        return partial(_quantised, quant, scale), "torch's operations, with quant"
    if norm == "torch" or not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return _torch, "torch's addition and rms_norm"
    import triton_norm

    return partial(_triton, triton_norm), "one Triton kernel"


def _torch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> tuple[Tensor, ...]:
    residual = x.clone() if residual is None else residual.add_(x)
    return F.rms_norm(residual, weight.shape, weight, eps), residual


def _triton(
    code: Any, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> tuple[Tensor, ...]:
    residual = torch.zeros_like(x) if residual is None else residual
    width = x.shape[-1]
    block = 1 << (width - 1).bit_length()
    launch = code.add_norm[x.numel() // width,]
    launch(out, x, residual, weight, width, eps, BLOCK=block, num_warps=max(1, min(16, block // 512)))
    return out, residual


def _quantised(  # noqa: PLR0913, PLR0917 - the first two are bound
    quant: str, scale: Tensor | None, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> tuple[Tensor, ...]:
    residual = x.clone() if residual is None else residual.add_(x)
    narrow, scales = quantised(normalised(residual, weight, eps, 0.0, None, False), quant, scale)
    return narrow, residual, scales
