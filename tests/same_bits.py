"""A rank that sums by one algorithm and by another, and says so if all bits are the same: same_bits.py BACKEND A B."""

import sys

import torch

import commlib
from commlib.communicator import Communicator
from commlib.plan import Plan

COUNTS = {"shm": (1, 1003, 300_007), "nccl": (1, 8, 1003, 4096, 100_007, 1 << 20, 3_000_001)}


def compare(comm: Communicator, usual: Plan, other: Plan, x: torch.Tensor) -> None:
    """Make calls by `other` between those by `usual`: out of place, in place and, on GPUs, replayed."""
    comm.use(usual)
    wanted = comm.all_reduce(x, out=torch.empty_like(x))
    comm.use(other)
    for _ in range(3):
        assert torch.equal(comm.all_reduce(x, out=torch.empty_like(x)), wanted)
    if x.is_cuda:
        graph, out = torch.cuda.CUDAGraph(), torch.zeros_like(x)
        with torch.cuda.graph(graph):
            comm.all_reduce(x, out=out)
            comm.all_reduce(x, out=out)
        for _ in range(5):  # replays and calls continue each other
            out.zero_()
            graph.replay()
            assert torch.equal(out, wanted)
            assert torch.equal(comm.all_reduce(x, out=torch.empty_like(x)), wanted)
    assert torch.equal(comm.all_reduce(x), wanted)


def main(backend: str, *names: str) -> None:
    with commlib.init(backend=backend, timeout_s=60) as comm:
        usual, other = (Plan.only({"all_reduce": name}, base=comm.plan) for name in names)
        for dtype in (torch.float32, torch.bfloat16):
            for count in COUNTS[backend]:
                for turn, shift in enumerate((0, 1)):  # in elements: other ranks than 0 are not aligned
                    generator = torch.Generator().manual_seed(comm.rank + 9 * turn)
                    room = torch.zeros(count + comm.size, dtype=dtype, device=comm.device)
                    x = room[shift * comm.rank :][:count]
                    x.copy_(torch.randn(count, generator=generator))
                    compare(comm, usual, other, x)
        comm.check()
        print("same bits by", comm.explain("all_reduce", 4096).algorithm)


if __name__ == "__main__":
    main(*sys.argv[1:])
