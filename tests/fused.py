"""What tests of compiled programs share: inputs, a norm, and programs compiled with and without `commlib.fuse`."""

from collections.abc import Callable
from typing import Any

import torch

import commlib

EPS, WIDTH = 1e-5, 64
OURS = "commlib::all_reduce_rms_norm"


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def huggingface(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = h.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(h.dtype)


def fused(program: Callable[..., Any], *args: Any) -> tuple[Any, int, list[str], set[str]]:
    """Run it; return its values, how many calls became one, the operators that are ordered, and all functions."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    counts: list[int] = []
    graphs: list[Any] = []

    def compile_with_pass(graph: Any, inputs: Any) -> Any:
        counts.append(commlib.fuse(graph))
        graph.graph.lint()
        graphs.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=compile_with_pass, bw_compiler=lambda graph, _: make_boxed_func(graph))
    values = torch.compile(program, fullgraph=True, backend=backend)(*args)
    calls = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    ordered = [node.args[1].name() for node in calls if "with_effects" in str(node.target)]
    return values, counts[0], ordered, {str(node.target) for node in calls}


def compiled_agrees(
    comm: Any, program: Callable[..., Any], draw: Callable[[int], torch.Tensor], backend: str = "aot_eager"
) -> tuple[bool, int]:
    """Call program(comm, x) three times, eagerly and compiled; return whether all values agree, and how many graphs."""
    torch._dynamo.reset()
    graphs: list[Any] = []
    inner = torch._dynamo.lookup_backend(backend)

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return inner(graph, inputs)

    compiled, agree = torch.compile(program, fullgraph=True, backend=count), []
    for step in range(3):
        x = draw(step)
        eager, mine = x.clone(), x.clone()
        expected, found = program(comm, eager), compiled(comm, mine)
        expected, found = (value if isinstance(value, tuple) else (value,) for value in (expected, found))
        agree += [torch.equal(a, b) for a, b in zip((*expected, eager), (*found, mine), strict=True)]
    return all(agree), len(graphs)
