"""A call in a CUDA graph, on two GPUs: `commlib run -n 2 examples/graph.py`."""

import torch

import commlib

with commlib.init() as comm:  # the backend is nccl where every rank has a GPU
    x = torch.full((1 << 20,), comm.rank + 1.0, dtype=torch.bfloat16, device=comm.device)
    comm.all_reduce(x)  # compiled once, then kept
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()
    comm.check()  # raises if a rank died, was late or did something else
    print(comm.rank, comm.explain("all_reduce", x.nbytes, x.dtype, mode="graph"))
    del graph
