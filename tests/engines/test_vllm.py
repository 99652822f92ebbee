"""vLLM on commlib, where vLLM is installed (`make test-engines`): the same tokens, and a fused norm in its graphs."""

import operator
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import fx

from tests.engines import vllm_model

pytest.importorskip("vllm", reason="vLLM is not installed: make test-engines")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


def test_its_calls_of_tensor_parallelism_give_what_its_own_tests_ask_for() -> None:
    script = Path(__file__).with_name("vllm_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    environment = os.environ | vllm_model.variables(2, "vllm") | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert text.count("class commlib.engines.vllm_communicators") == 2
    assert text.count("refused: commlib cannot give its memory back") == text.count("values right") == 2


def norm_graph(has_residual: bool) -> fx.Graph:
    """Return a graph as vLLM hands it to its passes: an all_reduce, then a norm of its sum."""
    from vllm.distributed import parallel_state  # noqa: F401 - defines torch.ops.vllm.all_reduce

    graph = fx.Graph()
    x, residual, weight = (graph.placeholder(name) for name in ("x", "residual", "weight"))
    total = graph.call_function(torch.ops.vllm.all_reduce.default, (x, "tp:0"))
    if has_residual:
        norm = graph.call_function(torch.ops.vllm_ir.fused_add_rms_norm.default, (total, residual, weight, 1e-5))
        both = [graph.call_function(operator.getitem, (norm, index)) for index in range(2)]
        result = tuple(graph.call_function(torch.ops.aten.clone.default, (item,)) for item in both)
    else:
        norm = graph.call_function(torch.ops.vllm_ir.rms_norm.default, (total, weight, 1e-5))
        result = (norm, graph.call_function(torch.ops.aten.add.Tensor, (total, residual)))
    rows, columns = torch.empty(4, 16, device="meta"), torch.empty(16, device="meta")
    for node in graph.nodes:
        node.meta["val"] = columns if node is weight else rows
    norm.meta["val"] = (rows, rows) if has_residual else rows
    graph.output(result)
    return graph


@pytest.mark.parametrize("has_residual", [True, False])
def test_an_all_reduce_and_the_norm_after_it_become_one_call(has_residual: bool) -> None:
    import vllm.ir.ops  # noqa: F401 - defines torch.ops.vllm_ir

    from commlib.engines import vllm_fusion

    graph = norm_graph(has_residual)
    norms = [node for node in graph.nodes if "norm" in str(node.target)]
    assert vllm_fusion._fuse(graph, norms[0], has_residual=has_residual)
    graph.lint()
    calls = [node.target for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    assert all(isinstance(target, torch._ops.OpOverload) for target in calls)  # the compiler takes no others
    targets = [str(target) for target in calls]
    assert sum("vllm_all_reduce_rms_norm" in target for target in targets) == 1
    assert not any("vllm.all_reduce" in target or "vllm_ir" in target for target in targets)


def test_norms_are_fused_without_flashinfer_where_ranks_share_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.compilation.passes import pass_manager
    from vllm.config import vllm as config

    from commlib.engines import vllm, vllm_fusion

    passes = config.OPTIMIZATION_LEVEL_02["compilation_config"]["pass_config"]
    monkeypatch.setitem(passes, "fuse_allreduce_rms", config.enable_allreduce_rms_fusion)
    monkeypatch.setattr(pass_manager, "AllReduceFusionPass", object, raising=False)
    vllm._replace_custom_all_reduce()
    made = [SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=ranks)) for ranks in (1, 2)]
    assert [passes["fuse_allreduce_rms"](each) for each in made] == [False, True]
    assert pass_manager.AllReduceFusionPass is vllm_fusion.AllReduceNormPass
