"""Autograd: a call that writes a tensor raises its version, so a backward that needs its old value is refused."""

import datetime
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from commlib.communicator import Communicator
from commlib.kernels import index, metadata, store
from tests.on_ranks import on_ranks

N = 8


def _norm(comm: Communicator, x: Tensor) -> object:
    return comm.all_reduce_rms_norm(torch.ones(N), None, torch.ones(N), out=x)


def _recv(comm: Communicator, x: Tensor) -> object:
    work = comm.send(torch.ones(N), 1 - comm.rank, async_op=True)
    comm.recv(x, 1 - comm.rank)
    return work.wait()


WRITES: dict[str, Callable[[Communicator, Tensor], object]] = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "all_reduce, later": lambda comm, x: comm.all_reduce(x, async_op=True).wait(),
    "all_reduce, out": lambda comm, x: comm.all_reduce(torch.ones(N), out=x),
    "reduce": lambda comm, x: comm.reduce(x, 0),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter_tensor(x, torch.ones(2 * N)),
    "reduce_scatterv": lambda comm, x: comm.reduce_scatterv(x, torch.ones(2 * N), [N, N]),
    "all_gather": lambda comm, x: comm.all_gather_into_tensor(x, torch.ones(N // 2)),
    "all_gatherv": lambda comm, x: comm.all_gatherv(x, torch.ones(N // 2), [N // 2] * 2),
    "all_to_all": lambda comm, x: comm.all_to_all_single(x, torch.ones(N)),
    "all_to_allv": lambda comm, x: comm.all_to_all_single(x, torch.ones(N), [N // 2] * 2),
    "broadcast": lambda comm, x: comm.broadcast(x, 1),
    "gather": lambda comm, x: comm.gather(torch.ones(N // 2), 0, x),
    "scatter": lambda comm, x: comm.scatter(torch.ones(2, N), 0, x),
    "recv": _recv,
    "send_recv": lambda comm, x: comm.send_recv(torch.ones(N), 1 - comm.rank, x, 1 - comm.rank),
    "all_reduce_rms_norm": _norm,
}
ON_ONE_RANK = {"reduce": 0, "gather": 0, "broadcast": 0}  # on the others nothing is written


@on_ranks(2, "each_ranks")
def test_a_backward_that_needs_what_a_call_has_overwritten_is_refused(comm: Communicator) -> None:
    for name, call in WRITES.items():
        w = torch.full((N,), 5.0, requires_grad=True)
        x = w * 1.0
        y = x * x
        call(comm, x)
        if comm.rank == ON_ONE_RANK.get(name, comm.rank):
            assert x._version > 0, name
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        else:
            y.sum().backward()
            assert w.grad is not None
            assert w.grad.tolist() == [10.0] * N, name
        if comm.backend == "shm":
            with torch.inference_mode():
                x = torch.ones(N)
            call(comm, x)  # has no version, and is taken outside of inference mode, too


def test_kernels_raise_the_version_of_what_they_write() -> None:
    table, ids, out = torch.ones(4, N), torch.tensor([1]), torch.ones(1, N)
    index(table, ids, out=out)
    lengths = torch.tensor([3])
    made = metadata(lengths, lengths, 0)
    metadata(lengths, lengths, 0, out=made)
    cache = torch.ones(4, 1, N)
    store(cache, cache.clone(), torch.tensor([0]), torch.ones(1, 1, N), torch.ones(1, 1, N))
    assert [out._version > 0, made.positions._version > 0, cache._version > 0] == [True] * 3


@on_ranks(2)
def test_torchs_group_warns_in_the_backward_as_gloos_does(comm: Communicator, tmp_path: Path) -> None:
    timeout = datetime.timedelta(seconds=60)
    for backend in ("gloo", "commlib"):
        store = dist.FileStore(str(tmp_path / backend), comm.size)
        dist.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size, timeout=timeout)
        x = torch.full((N,), 5.0, requires_grad=True)
        y = x * x
        dist.all_reduce(x)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            y.sum().backward()
        assert x._version == 0, backend  # FSDP gathers into tensors that autograd has kept
        assert len(said) == 1, backend
        assert "all" in str(said[0].message)
        dist.destroy_process_group()


WITHOUT_HANDLES = """
import torch
torch.Tensor._cdata = property(lambda tensor: 12345)
import commlib
x = torch.ones(4)
with commlib.init() as comm:
    comm.all_reduce(x)
    with torch.inference_mode():
        comm.all_reduce(torch.ones(4))
print(x._version)
"""


def test_a_torch_whose_tensors_native_code_cannot_read_raises_them_too() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_HANDLES], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
