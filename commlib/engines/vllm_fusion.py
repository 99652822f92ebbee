"""AllReduceNormPass: an all_reduce and the norm after it become one call in the graphs that vLLM compiles."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from vllm.compilation.passes.vllm_inductor_pass import VllmInductorPass

from commlib.collectives.all_reduce_rms_norm import TYPES
from commlib.compile import operators
from commlib.engines.custom_all_reduce import CustomAllReduce

_SCHEMA = "(Tensor x, Tensor? residual, Tensor weight, float eps, str group) -> (Tensor, Tensor)"


def _run(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str) -> Any:
    """Make the call of a group; a call that our communicator does not serve goes the engine's way, unfused."""
    from vllm import ir
    from vllm.distributed import parallel_state

    coordinator = parallel_state._groups[group]()
    calls = getattr(coordinator.device_communicator, "ca_comm", None)  # vLLM's own where we cannot serve the group
    fused = calls.fused_allreduce_rmsnorm(x, residual, weight, eps) if isinstance(calls, CustomAllReduce) else None
    if fused:
        return fused
    total = coordinator._all_reduce_out_place(x)
    if residual is None:
        return ir.ops.rms_norm(total, weight, eps), total
    return ir.ops.fused_add_rms_norm(total, residual, weight, eps)


_NORM = operators.define(
    "vllm_all_reduce_rms_norm",
    _SCHEMA,
    _run,
    lambda x, residual, weight, eps, group: (torch.empty_like(x), torch.empty_like(x)),
)


class AllReduceNormPass(VllmInductorPass):
    """Stands in for vLLM's AllReduceFusionPass, which needs FlashInfer and knows two values of epsilon."""

    matched_count = 0

    def is_applicable_for_range(self, compile_range: Any) -> bool:
        """Accept any number of tokens: the plan chooses the kernel."""
        return True

    @VllmInductorPass.time_and_log
    def __call__(self, graph: fx.Graph) -> None:
        """Replace what can be replaced; graphs of all ranks are alike, so all do alike."""
        norms = {torch.ops.vllm_ir.rms_norm.default: False, torch.ops.vllm_ir.fused_add_rms_norm.default: True}
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in norms:
                self.matched_count += _fuse(graph, node, has_residual=norms[node.target])
        graph.lint()


def _fuse(graph: fx.Graph, norm: Any, *, has_residual: bool) -> bool:
    total, *rest = norm.args
    residual = rest.pop(0) if has_residual else None
    weight, eps, *sizes = rest
    is_sum = isinstance(total, fx.Node) and total.target is torch.ops.vllm.all_reduce.default
    if norm.kwargs or any(size is not None for size in sizes) or not is_sum:
        return False
    others = [user for user in total.users if user is not norm]
    if not _have_types(total, residual, weight) or any(user < norm for user in others) or (has_residual and others):
        return False
    x, group = total.args[0], total.args[1] if len(total.args) > 1 else total.kwargs["group_name"]
    with graph.inserting_before(norm):
        both = graph.call_function(_NORM.default, (x, residual, weight, eps, group))
        y = both if has_residual else graph.call_function(operator.getitem, (both, 0))
        summed = total if has_residual else graph.call_function(operator.getitem, (both, 1))
    both.meta["val"] = norm.meta["val"] if has_residual else (norm.meta["val"], total.meta["val"])
    if not has_residual:
        y.meta["val"], summed.meta["val"] = both.meta["val"]
        total.replace_all_uses_with(summed, delete_user_cb=lambda user: user is not norm)
    norm.replace_all_uses_with(y)
    graph.erase_node(norm)
    graph.erase_node(total)
    return True


def _have_types(total: Any, residual: Any, weight: Any) -> bool:
    """Whether our kernel takes these: rows of one type of float, and a weight of that type or float32."""
    if not isinstance(weight, fx.Node):
        return False
    dtype = total.meta["val"].dtype
    same = residual is None or residual.meta["val"].dtype == dtype
    return same and dtype in TYPES and weight.meta["val"].dtype in (dtype, torch.float32)
