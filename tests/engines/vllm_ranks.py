"""A rank of vLLM's group of tensor parallelism, with the plugins that it loads: torchrun vllm_ranks.py.

The checks are those of vLLM's own tests/distributed/test_comm_ops.py.
"""

import os
import sys

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import communication_op, parallel_state
from vllm.plugins import load_general_plugins

from commlib.engines import vllm_fusion

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
load_general_plugins()
with set_current_vllm_config(VllmConfig()):
    parallel_state.init_distributed_environment(size, rank, "env://", rank, backend="gloo")
    parallel_state.initialize_model_parallel(size)
tp = parallel_state.get_tp_group()
sys.stdout.write(f"class {type(tp.device_communicator).__module__}\n")  # at once: ranks share it
for dtype in (torch.float32, torch.bfloat16, torch.int32):
    parts = [(torch.arange(96) % 40 + r).to(dtype).view(2, 6, 8) for r in range(size)]
    x, total = parts[rank], sum(parts[1:], parts[0])
    assert torch.equal(communication_op.tensor_model_parallel_all_reduce(x.clone()), total)
    for dim in (0, 1, 2, -1, -3):
        gathered = communication_op.tensor_model_parallel_all_gather(x, dim)
        assert torch.equal(gathered, torch.cat(parts, dim)), dim
        on_one = communication_op.tensor_model_parallel_gather(x, 0, dim)
        assert torch.equal(on_one, gathered) if rank == 0 else on_one is None, dim
    for dim in (0, 1, -1):
        part = communication_op.tensor_model_parallel_reduce_scatter(x.clone(), dim)
        assert torch.equal(part, total.chunk(size, dim)[rank]), dim
sent = {"a": torch.arange(8.0), "b": torch.ones(0), "c": "text", "d": {"e": torch.eye(3).int(), "f": 1}}
got = communication_op.broadcast_tensor_dict(sent if rank == 0 else None, src=0)
assert got.keys() == sent.keys() and torch.equal(got["a"], sent["a"]) and torch.equal(got["d"]["e"], sent["d"]["e"])
assert got["b"].numel() == 0 and got["c"] == "text" and got["d"]["f"] == 1
if rank == 0:
    tp.send(torch.arange(64.0), dst=1)
    tp.send_tensor_dict(sent, dst=1)
else:
    assert torch.equal(tp.recv(torch.Size([64]), torch.float32, src=0), torch.arange(64.0))
    assert torch.equal(tp.recv_tensor_dict(src=0)["a"], sent["a"])
try:
    tp.device_communicator.suspend()
except NotImplementedError as error:
    sys.stdout.write(f"refused: {error}\n")
tp.device_communicator.ca_comm = object()  # vLLM's own, in a group that commlib refused: sum and norm apart
assert (vllm_fusion._run(torch.ones(2, 8), None, torch.ones(8), 1e-5, tp.unique_name)[1] == size).all()
sys.stdout.write("values right\n")
tp.barrier()
parallel_state.destroy_model_parallel()
parallel_state.destroy_distributed_environment()
