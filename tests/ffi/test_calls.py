"""commlib's calls through tvm-ffi: the same bits as our own, from Python and from C++, and clear errors."""

import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import commlib
from commlib.kernels import index, prefix_match, store
from tests.on_ranks import on_ranks

pytest.importorskip("tvm_ffi")

CPP = """
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>
using namespace tvm::ffi;
// A host in C++: loads the library, sums x, and returns the kind of error of a call that cannot be.
String host(String path, int64_t handle, TensorView x) {
  const Module library = Module::LoadFromFile(path);
  library->GetFunction("all_reduce").value()(handle, x, "max");
  try {
    library->GetFunction("all_reduce").value()(handle, x, "mean");
  } catch (const Error& error) {
    return error.kind();
  }
  return "";
}
"""


def loaded() -> Any:
    import tvm_ffi

    import commlib.ffi

    return tvm_ffi.load_module(commlib.ffi.path())


def test_nothing_imports_tvm_ffi_by_itself(quick_python: Path) -> None:
    code = "import sys, commlib; commlib.init(backend='shm').close(); assert 'tvm_ffi' not in sys.modules"
    subprocess.run([str(quick_python), "-c", code], check=True, timeout=60)


@on_ranks(3)
def test_collectives_give_the_same_bits(comm: commlib.Communicator) -> None:
    import commlib.ffi

    mod, handle, n, rank = loaded(), commlib.ffi.handle(comm), comm.size, comm.rank
    sizes = [3 * r + 1 for r in range(n)]
    for dtype, count in product((torch.float32, torch.bfloat16), (1, 1003, 30_001)):
        x = torch.randn(n * count, generator=torch.Generator().manual_seed(rank)).to(dtype)
        one, whole, changed, told = x[:count].clone(), torch.zeros_like(x), x.clone(), x.clone()
        part = torch.zeros_like(one)
        mod.all_reduce(handle, x, "sum", whole)
        mod.all_reduce(handle, changed)
        assert torch.equal(whole, comm.all_reduce(x, out=torch.empty_like(x)))
        assert torch.equal(changed, whole)
        mod.all_gather(handle, whole, one)
        assert torch.equal(whole, comm.all_gather_into_tensor(torch.empty_like(x), one))
        mod.reduce_scatter(handle, part, x, "max")
        assert torch.equal(part, comm.reduce_scatter_tensor(torch.empty_like(one), x, "max"))
        mod.all_to_all(handle, whole, x)
        assert torch.equal(whole, comm.all_to_all_single(torch.empty_like(x), x))
        mod.broadcast(handle, told, 1)
        assert torch.equal(told, comm.broadcast(x.clone(), 1))
    mine = torch.full((sizes[rank],), float(rank))
    gathered = torch.empty(sum(sizes))
    mod.all_gatherv(handle, gathered, mine, sizes)
    assert torch.equal(gathered, torch.cat([torch.full((size,), float(r)) for r, size in enumerate(sizes)]))
    mod.send_recv(handle, mine[:1], (rank + 1) % n, gathered[:1], (rank - 1) % n)
    assert gathered[0] == (rank - 1) % n
    mod.barrier(handle)


def test_kernels_give_the_same_results() -> None:
    mod = loaded()
    weights, ids = torch.randn(50, 7), torch.tensor([[3, 49], [60, 0]], dtype=torch.int32)
    for vocab_range in (None, (2, 20)):
        out = torch.empty(2, 2, 7)
        mod.index(out, weights, ids, *(vocab_range or (0, -1)), "zero")
        assert torch.equal(out, index(weights, ids, vocab_range=vocab_range))
    slots, k, v = torch.tensor([4, 1]), torch.randn(2, 6), torch.randn(2, 6)
    caches = [torch.zeros(8, 6) for _ in range(4)]
    mod.store(caches[0], caches[1], slots, k, v)
    store(caches[2], caches[3], slots, k, v)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    a, b = torch.tensor([1, 2, 3, 4, 9]), torch.tensor([1, 2, 3, 4, 5], dtype=torch.int32)
    assert mod.prefix_match(a, b, 1) == prefix_match(a, b)
    assert mod.prefix_match(a, b, 3) == prefix_match(a, b, 3)
    total = torch.empty(1, dtype=torch.int32)
    mod.metadata(torch.tensor([2, 3]), 0, torch.tensor([5, 6]), 4, None, None, None, None, None, None, total)
    assert int(total) == 5


def test_bad_arguments_are_refused_before_anything_starts(comm: commlib.Communicator) -> None:
    import commlib.ffi

    mod, handle = loaded(), commlib.ffi.handle(comm)
    x = torch.ones(4)
    for kind, said, call in (
        (ValueError, "x is not contiguous", lambda: mod.all_reduce(handle, x[::2])),
        (ValueError, "unknown reduction 'mean'", lambda: mod.all_reduce(handle, x, "mean")),
        (ValueError, "handle 999 is of no communicator", lambda: mod.all_reduce(999, x)),
        (TypeError, "x is not there", lambda: mod.all_reduce(handle)),
        (TypeError, "must be a tensor", lambda: mod.all_reduce(handle, 3)),
        (TypeError, "takes 4 arguments", lambda: mod.all_reduce(handle, x, "sum", x, 0, 1)),
        (ValueError, "ids is neither", lambda: mod.index(x.view(2, 2), x.view(2, 2), x, 0, -1, "zero")),
        (ValueError, "a must be int32 or int64", lambda: mod.prefix_match(x, x.long(), 1)),
    ):
        with pytest.raises(kind, match=said):
            call()
    comm.close()
    with pytest.raises((commlib.Closed, ValueError), match=r"closed|no communicator"):
        mod.all_reduce(handle, x)


@on_ranks(fixture="torch_ranks")
def test_a_backend_without_native_code_has_no_handle(comm: commlib.Communicator) -> None:
    import commlib.ffi

    with pytest.raises(commlib.Unsupported, match="has no native code"):
        commlib.ffi.handle(comm)


def test_a_host_in_cpp_makes_calls(comm: commlib.Communicator, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm_ffi.cpp

    import commlib.ffi

    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path))
    host = tvm_ffi.cpp.load_inline("host", cpp_sources=CPP, functions="host").host
    x = torch.arange(3.0)
    assert host(commlib.ffi.path(), commlib.ffi.handle(comm), x) == "ValueError"
    assert torch.equal(x, torch.arange(3.0))
