"""Tensors that are not on a rank's GPU, and mistakes of asynchronous calls: refused, and nothing breaks.

What every backend refuses alike is in tests/test_arguments.py and tests/test_communicator.py.
"""

import pytest
import torch

from commlib.communicator import Communicator
from tests.gpu.on_ranks import on_every_rank


@on_every_rank
def test_bad_input_is_refused_with_both_sides_and_nothing_breaks(comm: Communicator) -> None:
    """Only the last rank makes bad calls; behind each, all make good ones in two sizes, and meet."""
    other = torch.device("cuda", (comm.device.index + 1) % torch.cuda.device_count())
    here, x = f"but rank {comm.rank}'s communicator is on {comm.device}", torch.ones(4, device=comm.device)
    for call, said in (
        (lambda: comm.all_reduce(torch.ones(4)), rf"x is on the CPU, {here} .*move it with \.to\(comm\.device\)"),
        (lambda: comm.all_reduce(x, out=torch.ones(4)), f"out is on the CPU, {here}"),
        (lambda: comm.all_reduce(torch.ones(4, device=other)), f"x is on {other}, {here}"),
        (lambda: comm.broadcast(x, 99, async_op=True).wait(), "src=99 is not a rank"),
        (lambda: comm.all_gather_into_tensor(x, x, async_op=True).wait(), "out has 4 elem"),
        (lambda: comm.all_reduce(x, "median", async_op=True).wait(), "unknown reduction"),
    ):
        if comm.rank == comm.size - 1:
            with pytest.raises((ValueError, TypeError), match=said):
                call()
        for count in (100, 70_001):
            good = torch.full((count,), comm.rank + 1.0, device=comm.device)
            for total in (comm.all_reduce(good.clone(), async_op=True).result(), comm.all_reduce(good)):
                assert (total == comm.size * (comm.size + 1) / 2).all()
        comm.barrier()
        comm.check()
