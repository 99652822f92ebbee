"""A user's program, for the type checkers: what calls return; what is ignored is an error to them."""

import torch
import torch.distributed as dist
from typing_extensions import assert_type

import commlib
from commlib import Communicator, Plan, RadixCache, Work

comm = commlib.init(backend="shm", bootstrap="single", timeout_s=30, max_bytes="1M", plan="auto")
assert_type(comm, Communicator)
assert_type(comm.rank, int)
assert_type(comm.device, torch.device)
assert_type(comm.plan, Plan)

x, out = torch.ones(4), torch.empty(4)
assert_type(comm.all_reduce(x), torch.Tensor)
assert_type(comm.all_reduce(x, "max", out), torch.Tensor)
assert_type(comm.all_reduce(x, dist.ReduceOp.SUM, async_op=False), torch.Tensor)
assert_type(comm.all_reduce(x, async_op=True), Work)
assert_type(comm.all_reduce(x, async_op=True).wait(), bool)
assert_type(comm.all_reduce(x, max_sms=8), torch.Tensor)
assert_type(comm.all_reduce(x, async_op=True, max_sms=8), Work)
assert_type(comm.reduce(x, 0, "avg"), torch.Tensor)
assert_type(comm.reduce(x, 0, async_op=True), Work)
assert_type(comm.reduce_scatter_tensor(out, x), torch.Tensor)
assert_type(comm.reduce_scatterv(out, x, [4], async_op=True), Work)
assert_type(comm.all_gather_into_tensor(out, x), torch.Tensor)
assert_type(comm.all_gatherv(out, x, (4,), async_op=True), Work)
assert_type(comm.all_to_all_single(out, x, [4], [4]), torch.Tensor)
assert_type(comm.all_to_all_single(out, x, async_op=True), Work)
assert_type(comm.broadcast(x, 0), torch.Tensor)
assert_type(comm.gather(x, 0), torch.Tensor | None)
assert_type(comm.gather(x, 0, async_op=True), Work)
assert_type(comm.scatter(None, 0, out), torch.Tensor)
assert_type(comm.send(x, 0), None)
assert_type(comm.recv(x, 0, async_op=True), Work)
assert_type(comm.barrier(), None)
assert_type(comm.all_gather_object({"rank": comm.rank}), list[dict[str, int]])
assert_type(comm.broadcast_object("hello", 0), str)
assert_type(comm.empty((2, 3), torch.bfloat16), torch.Tensor)
assert_type(comm.empty(2, 3, dtype=torch.bfloat16), torch.Tensor)
assert_type(comm.explain("all_reduce", 8, torch.float32).algorithm, str)
assert_type(comm.split(0), Communicator | None)
with comm as same:
    assert_type(same, Communicator)
half = commlib.epilogue("store(out, x * 0.5f);", outputs={"out": ("row", None)}, reference=lambda x: x * 0.5)
half.check(torch.float16, arch="sm_100")
half(comm, x, out=out, max_sms=8)
assert_type(RadixCache(page_size=16).match(torch.arange(3)).length, int)
try:
    comm.barrier()
except commlib.PeerLost as lost:
    assert_type(lost, commlib.PeerLost)

comm.all_reduce(x, op=3)  # type: ignore  # no integer is a reduction
comm.all_reduce(x, op="mean")  # type: ignore  # no such reduction
comm.all_reduce([1, 2])  # type: ignore  # no tensor
comm.broadcast(x, "0")  # type: ignore  # no rank
comm.all_gatherv(out, x, 4)  # type: ignore  # no sizes
comm.all_reduce(x, async_op=True).add_(1)  # type: ignore  # a Work is no tensor
comm.gather(x, 0).add_(1)  # type: ignore  # None on other ranks
commlib.init("shm")  # type: ignore  # by name only
half("comm", x)  # type: ignore  # no communicator
half(comm, [1, 2])  # type: ignore  # no tensor
commlib.epilogue("store(out, x);", outputs={"out": "row"}, reference=lambda x: x)  # type: ignore  # no type
comm.abandon()  # type: ignore  # not public
