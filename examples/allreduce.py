"""Sum over all ranks, and say how: `commlib run -n 2 examples/allreduce.py`."""

import torch

import commlib

comm = commlib.init()  # torchrun, mpirun, srun, `commlib run`, or one process
x = torch.full((1 << 20,), comm.rank + 1.0, device=comm.device)
comm.all_reduce(x)  # in place, summed in rank order: the same bits on every rank
y = comm.empty((1 << 20,), torch.float32)  # in the symmetric arena: no copy in, no copy out
y.fill_(comm.rank)
comm.all_reduce(y, op="max")
print(comm.rank, comm.explain("all_reduce", 4 << 20, torch.float32))
comm.close()
