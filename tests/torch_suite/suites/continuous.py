"""Collectives, messages, groups and objects on `MultiProcContinuousTest`, whose ranks live across tests."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.common_distributed import MultiProcContinuousTest

from tests.torch_suite.forked_ranks import LiveRanks
from tests.torch_suite.setting import BACKEND, DEVICE, RANKS, even

SIZES = (1, 7, 1023, 65536)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


class Continuous(LiveRanks, MultiProcContinuousTest):
    def data(self, rank, size=7, dtype=torch.float32):
        return (torch.arange(size, device=DEVICE) % 5 + rank + 1).to(dtype)

    def all(self, size=7, dtype=torch.float32):
        return [self.data(rank, size, dtype) for rank in range(RANKS)]

    def coalescing(self):
        return dist._coalescing_manager(
            device=torch.device("cuda", self.rank) if DEVICE == "cuda" else None, async_ops=True
        )

    def test_all_reduce_sums_every_type_and_size(self):
        for dtype in TYPES:
            for size in SIZES:
                x = self.data(self.rank, size, dtype)
                dist.all_reduce(x)
                self.assertEqual(x, torch.stack(self.all(size, dtype)).sum(0).to(dtype))

    def test_all_reduce_knows_min_max_and_product(self):
        ops = {dist.ReduceOp.MIN: torch.amin, dist.ReduceOp.MAX: torch.amax, dist.ReduceOp.PRODUCT: torch.prod}
        for op, reference in ops.items():
            x = self.data(self.rank)
            dist.all_reduce(x, op=op)
            self.assertEqual(x, reference(torch.stack(self.all()), 0))

    def test_all_reduce_averages(self):
        x = self.data(self.rank)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        self.assertEqual(x, torch.stack(self.all()).mean(0))

    def test_reduce_reaches_each_root(self):
        for root in range(RANKS):
            x = self.data(self.rank)
            dist.reduce(x, root)
            if self.rank == root:
                self.assertEqual(x, sum(self.all()))

    def test_broadcast_comes_from_each_root(self):
        for root in range(RANKS):
            for dtype in (*TYPES, torch.bool):
                x = self.data(self.rank, dtype=dtype)
                dist.broadcast(x, root)
                self.assertEqual(x, self.data(root, dtype=dtype))

    def test_all_gather_fills_lists_and_tensors(self):
        for size in SIZES:
            x = self.data(self.rank, size)
            parts = [torch.empty_like(x) for _ in range(RANKS)]
            whole = x.new_empty(RANKS * size)
            dist.all_gather(parts, x)
            dist.all_gather_into_tensor(whole, x)
            self.assertEqual(parts, self.all(size))
            self.assertEqual(whole, torch.cat(self.all(size)))

    def test_reduce_scatter_takes_lists_and_tensors(self):
        for size in SIZES:
            mine = [self.data(self.rank + part, size) for part in range(RANKS)]
            expected = sum(self.data(rank + self.rank, size) for rank in range(RANKS))
            from_list, from_tensor = mine[0].new_empty(size), mine[0].new_empty(size)
            dist.reduce_scatter(from_list, mine)
            dist.reduce_scatter_tensor(from_tensor, torch.cat(mine))
            self.assertEqual(from_list, expected)
            self.assertEqual(from_tensor, expected)

    def test_gather_and_scatter_reach_each_root(self):
        for root in range(RANKS):
            here = self.rank == root
            parts = [torch.empty(7, device=DEVICE) for _ in range(RANKS)] if here else None
            dist.gather(self.data(self.rank), parts, dst=root)
            if here:
                self.assertEqual(parts, self.all())
            x = torch.empty(7, device=DEVICE)
            dist.scatter(x, self.all() if here else None, src=root)
            self.assertEqual(x, self.data(self.rank))

    def test_all_to_all_single_splits_evenly_and_unevenly(self):
        x = torch.cat([self.data(10 * self.rank + to) for to in range(RANKS)])
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        self.assertEqual(out, torch.cat([self.data(10 * rank + self.rank) for rank in range(RANKS)]))
        theirs = [rank + self.rank for rank in range(RANKS)]  # rank r sends r + s elements to rank s
        x = torch.cat([self.data(10 * self.rank + to, size) for to, size in enumerate(theirs)])
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, theirs, theirs)
        self.assertEqual(out, torch.cat([self.data(10 * rank + self.rank, n) for rank, n in enumerate(theirs)]))

    def test_messages_go_around_a_ring(self):
        after, before = (self.rank + 1) % RANKS, (self.rank - 1) % RANKS
        for size in SIZES:
            x = torch.empty(size, device=DEVICE)
            ops = [dist.P2POp(dist.isend, self.data(self.rank, size), after), dist.P2POp(dist.irecv, x, before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            self.assertEqual(x, self.data(before, size))

    def test_send_and_recv_pair_up(self):
        if self.rank == 0:
            for to in range(1, RANKS):
                dist.send(self.data(to), to)
        else:
            x = torch.empty(7, device=DEVICE)
            self.assertEqual(dist.recv(x, 0), 0)
            self.assertEqual(x, self.data(self.rank))

    def test_asynchronous_calls_complete_in_any_order_of_waiting(self):
        tensors = [self.data(self.rank + step) for step in range(8)]
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        for work in reversed(works):
            work.wait()
        for step, x in enumerate(tensors):
            self.assertEqual(x, sum(self.data(rank + step) for rank in range(RANKS)))  # which waits for a GPU
        self.assertTrue(all(work.is_completed() for work in works))

    def test_a_future_carries_the_result_on(self):
        work = dist.all_reduce(self.data(self.rank), async_op=True)
        self.assertEqual(work.get_future().then(lambda done: done.value()[0] * 2).wait(), sum(self.all()) * 2)

    def test_coalesced_all_reduces_are_one_call(self):
        tensors = [self.data(self.rank, size) for size in SIZES]
        with self.coalescing() as calls:
            for x in tensors:
                dist.all_reduce(x)
        calls.wait()
        self.assertEqual(tensors, [sum(self.all(size)) for size in SIZES])

    def test_coalesced_gathers_and_scatters_are_one_call(self):
        wholes = [torch.empty(RANKS * size, device=DEVICE) for size in SIZES]
        with self.coalescing() as calls:
            for size, whole in zip(SIZES, wholes, strict=True):
                dist.all_gather_into_tensor(whole, self.data(self.rank, size))
        calls.wait()
        self.assertEqual(wholes, [torch.cat(self.all(size)) for size in SIZES])
        parts = [torch.empty(size, device=DEVICE) for size in SIZES]
        with self.coalescing() as calls:
            for part, whole in zip(parts, wholes, strict=True):
                dist.reduce_scatter_tensor(part, whole)
        calls.wait()
        self.assertEqual(parts, [self.data(self.rank, size) * RANKS for size in SIZES])

    def test_groups_of_some_ranks_live_side_by_side(self):
        groups = [dist.new_group(list(range(first, RANKS))) for first in range(RANKS)]
        for first, group in enumerate(groups):
            if self.rank >= first:
                x = self.data(self.rank)
                dist.all_reduce(x, group=group)
                self.assertEqual(x, sum(self.data(rank) for rank in range(first, RANKS)))
        for first, group in enumerate(groups):
            if self.rank >= first:
                dist.destroy_process_group(group)

    def test_objects_are_exchanged(self):
        mine = {"rank": self.rank, "x": torch.arange(self.rank + 1)}
        every = [None] * RANKS
        dist.all_gather_object(every, mine)
        self.assertEqual([one["x"].tolist() for one in every], [list(range(rank + 1)) for rank in range(RANKS)])
        told = ["from 0", 7] if self.rank == 0 else [None, None]
        dist.broadcast_object_list(told, src=0)
        self.assertEqual(told, ["from 0", 7])
        got = [None]
        dist.scatter_object_list(got, [f"to {rank}" for rank in range(RANKS)] if self.rank == 0 else None, src=0)
        self.assertEqual(got, [f"to {self.rank}"])

    def test_functional_collectives_return_new_tensors(self):
        group = dist.group.WORLD
        x = self.data(self.rank)
        self.assertEqual(functional.all_reduce(x, "sum", group), sum(self.all()))
        self.assertEqual(functional.all_gather_tensor(x, 0, group), torch.cat(self.all()))
        whole = x.repeat(RANKS)
        self.assertEqual(functional.reduce_scatter_tensor(whole, "sum", 0, group), sum(self.all()))
        self.assertEqual(functional.broadcast(x, 0, group), self.data(0))
        swapped = functional.all_to_all_single(whole, None, None, group)
        self.assertEqual(swapped, torch.cat(self.all()))
        self.assertEqual(x, self.data(self.rank))

    def test_functional_collectives_compile_as_one_graph(self):
        def step(x):
            total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
            return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD)

        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            self.assertEqual(compiled(self.data(self.rank)), (sum(self.all()) * 2 + 1).repeat(RANKS))

    @even
    def test_a_mesh_has_a_group_in_each_dimension(self):
        mesh = init_device_mesh(DEVICE, (2, RANKS // 2), mesh_dim_names=("dp", "tp"))
        for name, ranks in {"dp": [self.rank % (RANKS // 2) + i * (RANKS // 2) for i in range(2)]}.items():
            self.assertEqual(dist.get_process_group_ranks(mesh[name].get_group()), ranks)
            x = self.data(self.rank)
            dist.all_reduce(x, group=mesh[name].get_group())
            self.assertEqual(x, sum(self.data(rank) for rank in ranks))
        self.assertEqual(mesh["dp", "tp"]._flatten().size(), RANKS)

    def test_the_group_says_who_it_is(self):
        self.assertEqual(dist.get_backend(), BACKEND)
        self.assertEqual((dist.get_rank(), dist.get_world_size()), (self.rank, RANKS))
        before = dist.group.WORLD._get_sequence_number_for_group()
        dist.all_reduce(self.data(self.rank))
        self.assertGreater(dist.group.WORLD._get_sequence_number_for_group(), before)

    def test_a_barrier_waits_for_the_last(self):
        store = dist.distributed_c10d._get_default_store()
        if self.rank == RANKS - 1:
            store.set("last", "came")
        dist.barrier()
        self.assertTrue(store.check(["last"]))
