"""Ranks that are threads of one process, on `MultiThreadedTestCase`."""

import sys
import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.common_distributed import MultiThreadedTestCase

from tests.torch_suite.setting import BACKEND, DEVICE, RANKS


@unittest.skipIf(DEVICE == "cuda", "ranks that are threads share a process, and NCCL's barrier deadlocks there")
class Threads(MultiThreadedTestCase):
    world_size = RANKS

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def run_test_with_threaded_pg(self, test_name, rank, world_size):
        """As the base does, but with the backend under test."""
        try:
            dist.init_process_group(BACKEND, rank=rank, world_size=world_size, store=self.global_store)
            getattr(self, test_name)()
            dist.barrier()
        except BaseException:
            self.exception_queue.put((rank, sys.exc_info()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    def test_collectives_between_threads(self):
        x = torch.full((1023,), self.rank + 1.0, device=DEVICE)
        dist.all_reduce(x)
        self.assertEqual(x, torch.full_like(x, sum(range(1, RANKS + 1))))
        whole = torch.empty(RANKS, device=DEVICE)
        dist.all_gather_into_tensor(whole, torch.full((1,), float(self.rank), device=DEVICE))
        self.assertEqual(whole.tolist(), list(range(RANKS)))

    def test_tensors_are_sharded_between_threads(self):
        mesh = init_device_mesh(DEVICE, (RANKS,))
        x = torch.arange(12.0, device=DEVICE).reshape(4, 3)
        for before, after in ((Shard(0), Shard(1)), (Shard(1), Replicate())):
            self.assertEqual(distribute_tensor(x, mesh, [before]).redistribute(placements=[after]).full_tensor(), x)
