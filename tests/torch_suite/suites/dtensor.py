"""DTensor and tensor parallelism on `DTensorTestBase`, each result beside that of one process."""

import copy
import unittest

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, MLPModule, with_comms

from tests.torch_suite.forked_ranks import ForkedRanks, take_device
from tests.torch_suite.setting import BACKEND, DEVICE, RANKS

SHAPES = ((8, 8), (9, 5), (1, 3))  # even, uneven, fewer rows than ranks


class Tensors(ForkedRanks, DTensorTestBase):
    world_size = RANKS
    device_type = DEVICE

    def init_pg(self, eager_init, backend=None):
        """As the base does, which refuses names that are not on its list."""
        take_device(self.rank)
        dist.init_process_group(
            BACKEND, init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
        )

    def whole(self, shape):
        return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)

    @with_comms
    def test_every_placement_becomes_every_other(self):
        mesh = self.build_device_mesh()
        placements = [Replicate(), Shard(0), Shard(1)]
        for shape in SHAPES:
            x = self.whole(shape)
            for before in placements:
                for after in placements:
                    moved = distribute_tensor(x, mesh, [before]).redistribute(placements=[after])
                    self.assertEqual(moved.placements, (after,))
                    self.assertEqual(moved.full_tensor(), x)

    @with_comms
    def test_partial_sums_are_reduced_into_every_placement(self):
        mesh = self.build_device_mesh()
        for shape in SHAPES:
            x = self.whole(shape)
            for after in (Replicate(), Shard(0), Shard(1)):
                total = DTensor.from_local(x * (self.rank + 1), mesh, [Partial()]).redistribute(placements=[after])
                self.assertEqual(total.full_tensor(), x * sum(range(1, RANKS + 1)))

    @unittest.skipIf(16 % RANKS, "the ranks do not divide the MLP's columns")
    @with_comms
    def test_a_tensor_parallel_mlp_agrees_with_one_process(self):
        mesh = self.build_device_mesh()
        for sequence in (False, True):
            torch.manual_seed(5)
            alone = MLPModule(DEVICE)
            plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
            if sequence:
                plan = {
                    "net1": ColwiseParallel(input_layouts=Shard(0)),
                    "net2": RowwiseParallel(output_layouts=Shard(0)),
                }
            parallel = parallelize_module(copy.deepcopy(alone), mesh, plan)
            x = self.whole((4 * RANKS, 10))
            mine = x.chunk(RANKS)[self.rank] if sequence else x
            expected, y = alone(x), parallel(mine)
            self.assertEqual(y, expected.chunk(RANKS)[self.rank] if sequence else expected)
            expected.sum().backward()
            y.sum().backward()
            for (name, p), q in zip(alone.named_parameters(), parallel.parameters(), strict=True):
                grad = q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad
                self.assertEqual(grad, p.grad, f"{name}, sequence parallel: {sequence}")
