"""A rank of SGLang's own group of ranks, with the hooks that it loads: torchrun sglang_ranks.py [cuda]."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from sglang.srt import layers
from sglang.srt.distributed.parallel_state import GroupCoordinator
from sglang.srt.layers import flashinfer_comm_fusion
from sglang.srt.plugins import load_plugins

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if device == "cuda":
    torch.cuda.set_device(rank)
dist.init_process_group("nccl" if device == "cuda" else "gloo")
flashinfer_comm_fusion.can_use_flashinfer_allreduce = lambda *_, **__: True
load_plugins()
add_norm = "layer_boundary/residual/add_norm.py"  # stands for that module, which imports torchvision
assert "and _is_flashinfer_available\n" in (Path(layers.__path__[0]) / add_norm).read_text()
joins = SimpleNamespace(_is_flashinfer_available=False)
sys.modules["sglang.srt.layers.layer_boundary.residual"] = SimpleNamespace(add_norm=joins)  # type: ignore[assignment]
others = ("pynccl", "mscclpp", "torch_symm_mem_all_reduce", "hpu_communicator", "xpu_communicator")
uses = {f"use_{name}": name == "custom_allreduce" for name in (*others, "custom_allreduce")}
tp = GroupCoordinator([list(range(size))], rank, dist.get_backend(), group_name="tp", **uses)
sys.stdout.write(f"class {type(tp.ca_comm).__module__}\n")  # at once: ranks share it
ours = type(tp.ca_comm).__module__.startswith("commlib")
assert joins._is_flashinfer_available == ours
tp._fi_workspace_hint = "attn_tp"
assert tp._can_use_flashinfer_allreduce(torch.ones(2, 2)) != ours
flashinfer_comm_fusion.resolve_fusion_group = lambda *, use_attn_tp_group: (size, rank, tp)
for dtype in (torch.float32, torch.bfloat16):
    parts = [torch.randn(6, 256, generator=torch.Generator().manual_seed(k)).to(dtype).to(device) for k in range(size)]
    x, total = parts[rank], parts[0].clone()
    for part in parts[1:]:
        total += part
    assert torch.equal(tp.all_reduce(x.clone()), total)
    assert tp.ca_comm.should_custom_ar(x)
    assert torch.equal(tp.ca_comm.custom_all_reduce(x), total) and torch.equal(x, parts[rank])
    residual, weight = torch.ones_like(x), torch.full((256,), 2.0, dtype=dtype, device=device)
    y, summed = flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm(x, residual, weight, 1e-5)
    assert torch.equal(summed, total + residual)
    wanted = torch.nn.functional.rms_norm(summed.double(), (256,), weight.double(), 1e-5)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-2, atol=1e-2)
    if device == "cuda":
        with tp.graph_capture() as context:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=context.stream):
                out = tp.all_reduce(x)
        for scale in (1, 3):
            x.copy_(parts[rank] * scale)
            graph.replay()
            torch.cuda.synchronize()
            torch.testing.assert_close(out, total * scale)
        del graph
sys.stdout.write("values right\n")
tp.ca_comm.close()
