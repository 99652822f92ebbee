"""tvm-ffi both ways on two GPUs: our calls from its hosts, and the CUDA of examples/tvm_ffi as an algorithm.

Needs apache-tvm-ffi, ninja and nvcc.
"""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from commlib import env
from tests.gpu.commands import ROOT, on_two_ranks
from tests.plugins import SAME_BITS

pytest.importorskip("tvm_ffi")
ALGORITHM = "nccl_ffi_oneshot"

CALLS = """
import torch, commlib, commlib.ffi, tvm_ffi
from commlib.kernels import index
mod = tvm_ffi.load_module(commlib.ffi.path())
with commlib.init(backend="nccl", timeout_s=60) as comm:
    handle = commlib.ffi.handle(comm)
    for dtype in (torch.float32, torch.bfloat16):
        for count in (1, 1003, 100_007, 3_000_001):
            x = torch.randn(count, generator=torch.Generator().manual_seed(comm.rank)).to(comm.device, dtype)
            wanted = comm.all_reduce(x.clone())
            side, y, z = torch.cuda.Stream(), torch.zeros_like(x), torch.zeros_like(x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(1_000_000)
                y.copy_(x)
                mod.all_reduce(handle, y)
            torch.cuda.current_stream().wait_stream(side)
            assert torch.equal(y, wanted), ("stream", dtype, count)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                mod.all_reduce(handle, x, "sum", z)
            for _ in range(3):
                z.zero_()
                graph.replay()
                assert torch.equal(z, wanted), ("graph", dtype, count)
    for bad in (torch.ones(3), torch.ones(6, device=comm.device)[::2]):
        try:
            mod.all_reduce(handle, bad)
        except ValueError as error:
            print("refused:", error)
    weights, ids = torch.randn(40, 64, device=comm.device), torch.tensor([3, 50, 7], device=comm.device)
    out = torch.empty(3, 64, device=comm.device)
    mod.index(out, weights, ids, 0, -1, "zero")
    assert torch.equal(out, index(weights, ids))
    cache, k = torch.zeros(9, 64, device=comm.device), torch.randn(3, 64, device=comm.device)
    mod.store(cache, None, torch.tensor([5, 0, 8], device=comm.device), k[:, :32], k[:, 32:])
    comm.barrier()
    print("the same bits")
"""
# Two ranks that nobody watches over: rank 0 prints what the fault of rank 1 is to it, and when.
FAULT = """
import os, signal, sys, time, torch, commlib
fault, port, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.cuda.set_device(rank)
comm = commlib.init(backend="nccl", rank=rank, size=2, address=f"127.0.0.1:{port}", timeout_s=3)
x = torch.ones(100_000, device=comm.device)
for _ in range(3):
    comm.all_reduce(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    comm.all_reduce(x)
graph.replay()
torch.cuda.synchronize()
if rank == 1 and fault == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    time.sleep(8)
    os._exit(0)
start = time.monotonic()
try:
    for _ in range(3):
        graph.replay() if fault == "late in a graph" else comm.all_reduce(x)
    torch.cuda.synchronize()
    time.sleep(0.5)
    comm.check()
except commlib.CommError as error:
    print(f"{time.monotonic() - start:.1f} s", type(error).__name__, error, flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("nvcc") is None or shutil.which("ninja") is None:
        pytest.skip("needs nvcc and ninja")
    monkeypatch.setenv(env.PLUGINS.name, str(ROOT / "examples" / "tvm_ffi" / "oneshot.py"))


def test_calls_give_the_same_bits_on_any_stream_and_in_graphs() -> None:
    said = on_two_ranks("-c", CALLS)
    assert said.count("the same bits") == 2
    assert said.count("refused: x is on the CPU") == 2
    assert said.count("refused: x is not contiguous") == 2


def test_the_example_gives_the_bits_of_commlibs_own_in_calls_and_replays() -> None:
    said = on_two_ranks(SAME_BITS, "nccl", "lsa_ll_oneshot", ALGORITHM)
    assert said.count(f"same bits by {ALGORITHM}") == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("killed", r"PeerLost .*rank 1"),
        ("late", rf"CommTimeout rank 0: all_reduce .*by {ALGORITHM} (waited 3 s for rank 1|did not finish within 3 s)"),
        ("late in a graph", rf"CommTimeout rank 0: all_reduce by {ALGORITHM} waited 3 s for rank 1"),
    ],
)
def test_a_rank_that_does_not_come_is_an_error_and_no_hang(fault: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    environment = {**os.environ, "COMMLIB_ALGORITHM": f"all_reduce:{ALGORITHM}"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FAULT, fault, port, str(rank)], cwd=ROOT, env=environment, stdout=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    try:
        printed = started[0].communicate(timeout=90)[0].decode()
        assert re.search(said, printed), printed
        assert float(printed.split(" s ")[0]) < 6
    finally:
        for process in started:
            process.kill()
            process.communicate()
