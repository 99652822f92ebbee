"""DTensor, tensor parallelism and checkpoints on `DTensorTestBase`, each result beside that of one process."""

import copy
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorTestBase,
    MLPModule,
    ModelArgs,
    Transformer,
    with_comms,
)

from tests.torch_suite.forked_ranks import ForkedRanks, take_device
from tests.torch_suite.setting import BACKEND, DEVICE, RANKS, even

# Of the kernels of the CPU only the plain one can be sharded.
ATTENTION = [SDPBackend.MATH] if DEVICE == "cpu" else [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
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
    def test_a_sharded_tensor_comes_back_whole(self):
        mesh = self.build_device_mesh()
        for shape in SHAPES:
            for dim in range(2):
                x = self.whole(shape)
                self.assertEqual(distribute_tensor(x, mesh, [Shard(dim)]).full_tensor(), x)

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

    @with_comms
    def test_gradients_flow_through_redistribute(self):
        mesh = self.build_device_mesh()
        x = distribute_tensor(self.whole((8, 8)), mesh, [Shard(0)]).requires_grad_()
        (x.redistribute(placements=[Shard(1)]).redistribute(placements=[Replicate()]) ** 2).sum().backward()
        self.assertEqual(x.grad.full_tensor(), 2 * self.whole((8, 8)))

    @with_comms
    def test_operators_agree_with_plain_tensors_for_every_sharding(self):
        mesh = self.build_device_mesh()
        x, y = self.whole((4 * RANKS, 2 * RANKS)), self.whole((2 * RANKS, 4 * RANKS))
        self._test_op(mesh, torch.mm, x, y)
        self._test_op(mesh, torch.add, x, x)
        self._test_op(mesh, lambda a: torch.softmax(a, -1), x)
        self._test_op(mesh, lambda a: a.sum(0), x)
        self._test_op(mesh, lambda a: a.amax(1), x)
        self._test_op(mesh, lambda a: F.layer_norm(a, a.shape[-1:]), x)

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

    @unittest.skipIf(4 % RANKS, "the ranks do not divide the heads")
    @unittest.skipIf(DEVICE == "cpu" and torch.__version__ < (2, 13), "torch cannot shard the CPU's attention yet")
    @with_comms
    def test_a_tensor_parallel_transformer_trains_as_in_one_process(self):
        for sequence in (False, True):
            torch.manual_seed(5)
            args = ModelArgs(n_layers=2, vocab_size=16, max_seq_len=16, dim=32, n_heads=4, dropout_p=0.0)
            alone = Transformer(args).to(DEVICE)
            parallel = Transformer.parallelize(copy.deepcopy(alone), self.build_device_mesh(), sequence)
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (alone, parallel)]
            tokens = torch.randint(16, (4, 16), generator=torch.Generator().manual_seed(1)).to(DEVICE)
            for _ in range(3):
                with sdpa_kernel(ATTENTION), implicit_replication():
                    logits = [model(tokens) for model in (alone, parallel)]
                self.assertEqual(logits[1], logits[0], rtol=1e-5, atol=1e-5)
                for optimizer, out in zip(optimizers, logits, strict=True):
                    optimizer.zero_grad()
                    F.cross_entropy(out.flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
                    optimizer.step()

    @with_comms
    def test_the_loss_of_sharded_logits_is_that_of_whole_ones(self):
        mesh = self.build_device_mesh()
        x, target = self.whole((8, 4 * RANKS)), torch.arange(8, device=DEVICE) % (4 * RANKS)
        alone, sharded = x.clone().requires_grad_(), distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
        expected = F.cross_entropy(alone, target)
        expected.backward()
        with loss_parallel():
            loss = F.cross_entropy(sharded, target)
            loss.backward()
        self.assertEqual(loss.full_tensor(), expected)
        self.assertEqual(sharded.grad.full_tensor(), alone.grad)

    @even
    @with_comms
    def test_two_dimensions_of_a_mesh_shard_one_tensor(self):
        mesh = init_device_mesh(DEVICE, (2, RANKS // 2), mesh_dim_names=("dp", "tp"))
        x = self.whole((8, 8))
        both = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
        self.assertEqual(both.full_tensor(), x)
        self.assertEqual(both.redistribute(placements=[Replicate(), Shard(0)]).full_tensor(), x)
        self.assertEqual(mesh["tp"].size(), RANKS // 2)
        self.assertEqual(distribute_tensor(x, mesh["tp"], [Shard(0)]).full_tensor(), x)

    @with_comms
    def test_a_checkpoint_is_loaded_into_other_placements(self):
        mesh = self.build_device_mesh()
        folder = [tempfile.mkdtemp()] if self.rank == 0 else [None]
        dist.broadcast_object_list(folder, src=0, device=torch.device(DEVICE))
        x = self.whole((9, 5))
        checkpoint.save({"x": distribute_tensor(x, mesh, [Shard(0)]), "step": 3}, checkpoint_id=folder[0])
        for placement in (Shard(1), Replicate()):
            state = {"x": distribute_tensor(torch.zeros_like(x), mesh, [placement]), "step": 0}
            checkpoint.load(state, checkpoint_id=folder[0])
            self.assertEqual(state["x"].full_tensor(), x)
            self.assertEqual(state["step"], 3)
        self.assertTrue((Path(folder[0]) / ".metadata").exists())
