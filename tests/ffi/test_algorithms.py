"""Algorithms that are functions of tvm-ffi's: the example of examples/tvm_ffi, and what is refused."""

import re
import socket
from pathlib import Path

import pytest

from tests.plugins import SAME_BITS, Run, failures, on_ranks

pytest.importorskip("tvm_ffi")

EXAMPLE = Path(__file__).parents[2] / "examples" / "tvm_ffi" / "oneshot.py"

# Two ranks that nobody watches over: rank 0 prints what the fault of rank 1 is to it.
FAULT = """
import os, signal, sys, time, torch, commlib
fault, port = sys.argv[1:]
rank = 0 if (child := os.fork()) else 1
timeout_s = 2 if fault == "late" else 30
comm = commlib.init(backend="shm", rank=rank, size=2, address=f"127.0.0.1:{port}", timeout_s=timeout_s)
x = torch.ones(1000)
for _ in range(3):
    comm.all_reduce(x)
if rank == 1 and fault == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
try:
    if rank == 1 and fault == "late":
        time.sleep(3)
    comm.all_reduce(x[:900] if rank == 1 else x)
except commlib.CommError as error:
    if rank == 0:
        print(type(error).__name__, error, flush=True)
os._exit(0)
"""
ROW = """
from commlib.collectives import Algorithm
def make():
    {body}
ALGORITHMS = {{"{op}": [Algorithm("mine", "shm", function=make, room_bytes=4096)]}}
"""
PINNED = {"COMMLIB_ALGORITHM": "all_reduce:mine"}


def mine(folder: Path, op: str, body: str) -> str:
    """Write a plugin with an algorithm whose function this makes."""
    folder.mkdir(exist_ok=True)
    plugin = folder / "mine.py"
    plugin.write_text(ROW.format(op=op, body=body))
    return str(plugin)


def test_the_example_gives_the_bits_of_commlibs_own(with_plugins: Run) -> None:
    said = on_ranks(with_plugins, str(EXAMPLE), SAME_BITS, "shm", "shm_oneshot", "shm_ffi_oneshot", ranks=3)
    assert said.count("same bits by shm_ffi_oneshot") == 3, said


@pytest.mark.parametrize("compiler", ["cute", "tilelang"])
def test_the_example_of_another_compiler_is_an_algorithm_that_only_sums_bfloat16(with_plugins, compiler) -> None:
    name, plugin = f"nccl_{compiler}_oneshot", str(EXAMPLE.with_name(f"{compiler}_oneshot.py"))
    explain = ("-m", "commlib", "plan", "explain", "all_reduce", "--backend", "nccl", "-d")
    for dtype, found in (
        ("bfloat16", f"runs {name}: pinned"),
        ("float32", f"passed over {name}: it only sums bfloat16"),
    ):
        done = with_plugins(plugin, *explain, dtype, COMMLIB_ALGORITHM=f"all_reduce:{name}")
        assert found in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("killed", r"PeerLost rank 1 \(process \d+\) died; rank 0 was in all_reduce #4 "),
        ("late", r"CommTimeout rank 1 did not come to all_reduce #4 .* within 2 s"),
        ("disagree", r"CommError ranks disagree: rank 0 called all_reduce #4 .*900 elements"),
    ],
)
def test_a_rank_that_does_not_come_is_an_error_and_no_hang(with_plugins: Run, fault: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    done = with_plugins(str(EXAMPLE), "-c", FAULT, fault, port, COMMLIB_ALGORITHM="all_reduce:shm_ffi_oneshot")
    assert re.search(said, done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("return 3", "BuildFailed", "function= of mine returned a int, but must return a tvm_ffi.Function"),
        ("raise OSError('no compiler')", "BuildFailed", "rank 0: all_reduce by mine: there is no function of tvm-ffi"),
        (
            "import tvm_ffi\n    def broken(*all): raise ValueError('too much')\n    return tvm_ffi.convert(broken)",
            "CommError",
            "all_reduce by mine failed on rank",
        ),
    ],
    ids=("no function", "no compiler", "a function that raises"),
)
def test_what_is_no_function_or_raises_is_an_error_of_all_ranks(with_plugins, tmp_path, body, kind, said) -> None:
    plugin = mine(tmp_path, "all_reduce", body)
    assert failures(with_plugins, plugin, plugin, kind, **PINNED).count(said) == 2


TYPES = """
import torch, commlib
with commlib.init(backend="shm", timeout_s=60) as comm:
    for name in ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int64", "bool"):
        print("wanted", name, flush=True)
        x = torch.zeros(4, dtype=getattr(torch, name))
        comm.all_gather_into_tensor(torch.cat([x, x]), x)
"""


def test_a_function_sees_the_types_of_torch(with_plugins: Run, tmp_path: Path) -> None:
    body = "import tvm_ffi\n    return tvm_ffi.convert(lambda out, x, *rest: print('came', x.dtype, flush=True))"
    plugin = mine(tmp_path, "all_gather", body)
    said = on_ranks(with_plugins, plugin, "-c", TYPES, COMMLIB_ALGORITHM="all_gather:mine")
    assert len(re.findall("wanted", said)) == 18, said
    assert said.count("came") == 18, said
    for name in re.findall(r"wanted (\w+)", said):
        assert re.search(rf"came {name}\b", said), said


def test_ranks_with_different_functions_are_refused(with_plugins: Run, tmp_path: Path) -> None:
    plugins = []
    for folder in ("a", "b"):
        plugins.append(mine(tmp_path / folder, "all_reduce", "return 3"))
        (tmp_path / folder / "mine.cc").write_text(f"// {folder}\n")
    assert failures(with_plugins, *plugins, "PlanMismatch", **PINNED).count("ranks disagree on plugins") == 2


def test_a_collective_that_functions_cannot_do_is_refused(with_plugins: Run, tmp_path: Path) -> None:
    plugin = mine(tmp_path, "broadcast", "return 3")
    said = failures(with_plugins, plugin, plugin, "ValueError", **PINNED)
    assert "functions of tvm-ffi can do all_reduce, all_gather" in said
