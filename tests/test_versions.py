"""Autograd: a call that writes a tensor raises its version, so a backward that needs its old value is refused."""

import datetime
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from commlib.collectives import COLLECTIVES, Call
from commlib.communicator import Communicator
from commlib.kernels import index, metadata, store
from tests.on_ranks import on_ranks

N = 8


Write = Callable[[Tensor], object]


def writes(comm: Communicator) -> dict[str, tuple[int, Write]]:
    """Return the elements that each call writes, and the call."""

    def recv(x: Tensor) -> object:
        work = comm.send(torch.ones(N), 1 - comm.rank, async_op=True)
        comm.recv(x, 1 - comm.rank)
        return work.wait()

    made: dict[str, tuple[int, Write]] = {
        "in place": (N, comm.all_reduce),
        "later": (N, lambda x: comm.all_reduce(x, async_op=True).wait()),
        "recv": (N, recv),
    }
    for name, spec in COLLECTIVES.items():
        call = Call(comm.rank, comm.size, spec.whole(N), torch.float32)
        taken, written = spec.shapes(call)
        made[name] = written, partial(spec.invoke, comm, torch.ones(taken), call=call)
    del made["barrier"]
    return made


ON_ONE_RANK = {"reduce": 0, "gather": 0, "broadcast": 1}  # on the others nothing is written


@on_ranks(2, "each_ranks")
def test_a_backward_that_needs_what_a_call_has_overwritten_is_refused(comm: Communicator) -> None:
    for name, (count, call) in writes(comm).items():
        w = torch.full((count,), 5.0, requires_grad=True)
        x = w * 1.0
        y = x * x
        call(x)
        if comm.rank == ON_ONE_RANK.get(name, comm.rank):
            assert x._version > 0, name
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        else:
            y.sum().backward()
            assert w.grad is not None
            assert w.grad.tolist() == [10.0] * count, name
        if comm.backend == "shm":
            with torch.inference_mode():
                x = torch.ones(count)
            call(x)  # has no version, and is taken outside of inference mode, too


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
