"""FSDP2 and FSDP on `FSDPTest`, beside a plain model that sees every rank's data."""

import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import DEVICEInitMode, FSDPInitMode, FSDPTest, TransformerWithSharedParams

from tests.torch_suite.forked_ranks import ForkedRanks, take_device
from tests.torch_suite.setting import BACKEND, DEVICE, RANKS, even


def model():
    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 16)) for _ in range(3)]
    return nn.Sequential(*layers, nn.LayerNorm(16)).to(DEVICE)


def sharded(whole, **options):
    for layer in whole[:3]:
        fully_shard(layer, **options)
    return fully_shard(whole, **options)


def batch(step, rank):
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * step + rank)).to(DEVICE)


class Fsdp(ForkedRanks, FSDPTest):
    world_size = RANKS

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **_):
        """As the base does, which skips on the CPU."""
        test = cls(test_name)
        test.rank, test.file_name = rank, file_name
        take_device(rank)
        dist.init_process_group(BACKEND, init_method=test.init_method, rank=rank, world_size=RANKS)
        dist.barrier()
        test.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()

    def train(self, trained, steps, optimizer, ranks):
        """Train on what `ranks` hold; return the loss of each step."""
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            loss = trained(torch.cat([batch(step, rank) for rank in ranks])).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    def both(self, steps=4, **options):
        """Train a plain model on all data, and a sharded one on each rank's; return both, after comparing losses."""
        alone, shared = model(), sharded(model(), **options)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (alone, shared)]
        expected = self.train(alone, steps, optimizers[0], range(RANKS))
        losses = torch.stack(self.train(shared, steps, optimizers[1], [self.rank]))
        dist.all_reduce(losses)
        self.assertEqual(losses / RANKS, torch.stack(expected), rtol=1e-5, atol=1e-6)
        return alone, shared

    def same(self, alone, shared, **tolerance):
        for (name, p), q in zip(alone.named_parameters(), shared.parameters(), strict=True):
            self.assertEqual(q.full_tensor(), p, name, **tolerance)

    def test_fully_shard_trains_as_one_process_does(self):
        self.same(*self.both(), rtol=1e-4, atol=1e-5)

    def test_parameters_may_stay_whole_between_forward_and_backward(self):
        self.same(*self.both(reshard_after_forward=False), rtol=1e-4, atol=1e-5)

    @even
    def test_two_dimensions_shard_and_replicate(self):
        mesh = init_device_mesh(DEVICE, (RANKS // 2, 2), mesh_dim_names=("replicate", "shard"))
        self.same(*self.both(mesh=mesh), rtol=1e-4, atol=1e-5)

    def test_a_checkpoint_of_shards_resumes_in_a_new_model(self):
        folder = [tempfile.mkdtemp()] if self.rank == 0 else [None]
        dist.broadcast_object_list(folder, src=0, device=torch.device(DEVICE))
        alone, shared = self.both(steps=2)
        checkpoint.save(get_model_state_dict(shared), checkpoint_id=folder[0])
        torch.manual_seed(self.rank)
        fresh = sharded(copy.deepcopy(model()).apply(lambda m: [nn.init.ones_(p) for p in m.parameters(False)]))
        state = get_model_state_dict(fresh)
        checkpoint.load(state, checkpoint_id=folder[0])
        set_model_state_dict(fresh, state)
        self.same(alone, fresh, rtol=1e-4, atol=1e-5)

    @skip_if_lt_x_gpu(2)
    def test_fsdp_of_the_first_kind_trains_as_ddp_does(self):
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
            self._test_fsdp_parity(
                TransformerWithSharedParams,
                FSDPInitMode.RECURSIVE,
                DEVICEInitMode.DEVICE_BEFORE,
                sharding_strategy=strategy,
            )
