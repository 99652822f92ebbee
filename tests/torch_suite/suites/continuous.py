"""What `distributed` leaves out, types and batches, on `MultiProcContinuousTest`, whose ranks live across tests."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

from tests.torch_suite.forked_ranks import LiveRanks
from tests.torch_suite.setting import DEVICE, RANKS

SIZES = (1, 7, 1023, 65536)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


class Continuous(LiveRanks, MultiProcContinuousTest):
    def data(self, rank, size=7, dtype=torch.float32):
        return (torch.arange(size, device=DEVICE) % 5 + rank + 1).to(dtype)

    def all(self, size=7, dtype=torch.float32):
        return [self.data(rank, size, dtype) for rank in range(RANKS)]

    def test_all_reduce_sums_every_type_and_size(self):
        for dtype in TYPES:
            for size in SIZES:
                x = self.data(self.rank, size, dtype)
                dist.all_reduce(x)
                self.assertEqual(x, torch.stack(self.all(size, dtype)).sum(0).to(dtype))

    def test_broadcast_comes_from_each_root(self):
        for root in range(RANKS):
            for dtype in (*TYPES, torch.bool):
                x = self.data(self.rank, dtype=dtype)
                dist.broadcast(x, root)
                self.assertEqual(x, self.data(root, dtype=dtype))

    def test_coalesced_gathers_and_scatters_are_one_call(self):
        device = torch.device("cuda", self.rank) if DEVICE == "cuda" else None
        wholes = [torch.empty(RANKS * size, device=DEVICE) for size in SIZES]
        with dist._coalescing_manager(device=device, async_ops=True) as calls:
            for size, whole in zip(SIZES, wholes, strict=True):
                dist.all_gather_into_tensor(whole, self.data(self.rank, size))
        calls.wait()
        self.assertEqual(wholes, [torch.cat(self.all(size)) for size in SIZES])
        parts = [torch.empty(size, device=DEVICE) for size in SIZES]
        with dist._coalescing_manager(device=device, async_ops=True) as calls:
            for part, whole in zip(parts, wholes, strict=True):
                dist.reduce_scatter_tensor(part, whole)
        calls.wait()
        self.assertEqual(parts, [self.data(self.rank, size) * RANKS for size in SIZES])

    def test_the_group_counts_its_calls(self):
        before = dist.group.WORLD._get_sequence_number_for_group()
        dist.all_reduce(self.data(self.rank))
        self.assertGreater(dist.group.WORLD._get_sequence_number_for_group(), before)
