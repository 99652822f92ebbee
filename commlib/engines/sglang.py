"""SGLang: its custom all-reduce and the norm after it on commlib; `sglang.srt.plugins` calls register()."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from commlib.engines.custom_all_reduce import CustomAllReduce

_LOG = logging.getLogger("commlib")
TESTED = ("0.5.23",)
DISPATCH = "sglang.srt.distributed.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
FLASHINFER = "sglang.srt.distributed.parallel_state.GroupCoordinator._can_use_flashinfer_allreduce"
NORM = "sglang.srt.layers.flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm"


def register() -> None:
    """Hook the functions of SGLang that commlib replaces; SGLang calls this once in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.version import __version__

    if not __version__.startswith(TESTED):
        _LOG.warning("SGLang %s was not tested with commlib, only %s", __version__, ", ".join(TESTED))
    os.environ.setdefault("NCCL_CUMEM_ENABLE", "1")  # SGLang would set 0, which turns NCCL's symmetric memory off
    HookRegistry.register(DISPATCH, choose_class, HookType.AROUND)
    HookRegistry.register(FLASHINFER, flashinfer_reduces, HookType.AROUND)
    HookRegistry.register(NORM, all_reduce_norm, HookType.AROUND)


def choose_class(original: Callable[..., Any], group: Any, device: torch.device) -> Any:
    """Return what makes the custom all-reduce of a group: ours, or where we cannot serve it, SGLang's own."""
    calls = CustomAllReduce(group, device, name="SGLang")
    if calls.disabled:
        return original(group=group, device=device)
    try:
        from sglang.srt.layers.layer_boundary.residual import add_norm

        add_norm._is_flashinfer_available = True  # by which it would join norms to sums, were it installed
    except ImportError as error:
        _LOG.warning("SGLang: norms are joined to an all_reduce only where FlashInfer is installed: %s", error)
    return lambda group, device: calls


def flashinfer_reduces(original: Callable[..., bool], coordinator: Any, input_: Tensor) -> bool:
    """Whether FlashInfer takes an all_reduce, which it would before the custom one: not where that is ours."""
    return not isinstance(coordinator.ca_comm, CustomAllReduce) and original(coordinator, input_)


def all_reduce_norm(
    original: Callable[..., Any],
    input_tensor: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    **options: Any,
) -> tuple[Tensor | None, Tensor | None]:
    """Return (norm, residual) by our kernel; a call that it does not serve goes SGLang's way."""
    from sglang.srt.layers import flashinfer_comm_fusion

    across_attention = options.get("use_attn_tp_group", True)
    _, _, coordinator = flashinfer_comm_fusion.resolve_fusion_group(use_attn_tp_group=across_attention)
    calls = getattr(coordinator, "ca_comm", None)
    if isinstance(calls, CustomAllReduce):
        fused = calls.fused_allreduce_rmsnorm(input_tensor, residual, weight, eps)
        if fused is not None:
            return fused
    both: tuple[Tensor | None, Tensor | None] = original(input_tensor, residual, weight, eps, **options)
    return both
