"""Algorithms that are functions of tvm-ffi's: the example of examples/tvm_ffi, and what is refused."""

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from commlib import env

pytest.importorskip("tvm_ffi")

EXAMPLE = Path(__file__).parents[2] / "examples" / "tvm_ffi" / "oneshot.py"
Run = Callable[..., subprocess.CompletedProcess[str]]

# Ragged, in place and not, calls of several slots between others: bit for bit what commlib's own gives.
SAME_BITS = """
import torch, commlib
from commlib.plan import Plan
with commlib.init(backend="shm", timeout_s=60) as comm:
    plans = [Plan.only({"all_reduce": name}, base=comm.plan) for name in ("shm_oneshot", "shm_ffi_oneshot")]
    for turn in range(40):
        for count in (1, 1003, 300_007):
            x = torch.randn(count, generator=torch.Generator().manual_seed(comm.rank + 9 * turn))
            comm.use(plans[0])
            wanted = comm.all_reduce(x, out=torch.empty_like(x))
            comm.use(plans[1])
            out = comm.all_reduce(x, out=torch.empty_like(x))
            assert torch.equal(out, wanted)
            assert torch.equal(comm.all_reduce(x), wanted)
    half = torch.ones(8, dtype=torch.bfloat16)  # the row refuses it
    assert torch.equal(comm.all_reduce(half), torch.full_like(half, comm.size))
    print("same bits by", comm.explain("all_reduce", 4096).algorithm)
"""
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


@pytest.fixture(scope="session")
def with_example(quick_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A command with a plugin, where functions are compiled once for all tests."""
    caches = {"TVM_FFI_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "COLUMNS": "200"}

    def run(*words: str, plugin: Path = EXAMPLE, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, env.PLUGINS.name: str(plugin), **caches, **more}
        command = [str(quick_python) if word == "python" else word for word in ("python", *words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)

    return run


def on_ranks(with_example: Run, ranks: int, *words: str, **more: str) -> str:
    done = with_example("-m", "commlib", "run", "-n", str(ranks), "--", "python", *words, **more)
    return done.stdout + done.stderr


def test_the_example_gives_the_bits_of_commlibs_own(with_example: Run) -> None:
    said = on_ranks(with_example, 3, "-c", SAME_BITS)
    assert said.count("same bits by shm_ffi_oneshot") == 3, said


@pytest.mark.parametrize("compiler", ["cute", "tilelang"])
def test_the_example_of_another_compiler_is_an_algorithm_that_only_sums_bfloat16(with_example, compiler) -> None:
    name, plugin = f"nccl_{compiler}_oneshot", EXAMPLE.with_name(f"{compiler}_oneshot.py")
    explain = ("-m", "commlib", "plan", "explain", "all_reduce", "--backend", "nccl", "-d")
    for dtype, found in (
        ("bfloat16", f"runs {name}: pinned"),
        ("float32", f"passed over {name}: it only sums bfloat16"),
    ):
        done = with_example(*explain, dtype, plugin=plugin, COMMLIB_ALGORITHM=f"all_reduce:{name}")
        assert found in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("killed", r"PeerLost rank 1 \(process \d+\) died; rank 0 was in all_reduce #4 "),
        ("late", r"CommTimeout rank 1 did not come to all_reduce #4 .* within 2 s"),
        ("disagree", r"CommError ranks disagree: rank 0 called all_reduce #4 .*900 elements"),
    ],
)
def test_a_rank_that_does_not_come_is_an_error_and_no_hang(with_example: Run, fault: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    done = with_example("-c", FAULT, fault, port, COMMLIB_ALGORITHM="all_reduce:shm_ffi_oneshot")
    assert re.search(said, done.stdout), done.stdout + done.stderr


def failures(with_example: Run, plugin: Path, script: str = "") -> str:
    code = f"""
import os, commlib
{script}
try:
    comm = commlib.init(backend="shm", timeout_s=20)
    import torch
    comm.all_reduce(torch.ones(3))
except (commlib.CommError, ValueError) as error:
    print("failed:", type(error).__name__, error)
"""
    said = on_ranks(with_example, 2, "-c", code, plugin=plugin, COMMLIB_ALGORITHM="all_reduce:mine")
    assert said.count("failed:") == 2, said
    return said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "function= of mine returned a int, but must return a tvm_ffi.Function"),
        ("raise OSError('no compiler')", "BuildFailed rank 0: all_reduce by mine: there is no function of tvm-ffi"),
        (
            "import tvm_ffi\n    def broken(*all): raise ValueError('too much')\n    return tvm_ffi.convert(broken)",
            "all_reduce by mine failed on rank",
        ),
    ],
    ids=("no function", "no compiler", "a function that raises"),
)
def test_what_is_no_function_or_raises_is_an_error_of_all_ranks(with_example, tmp_path, body, said) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(ROW.format(op="all_reduce", body=body))
    assert failures(with_example, plugin).count(said) == 2


TYPES = """
import torch, commlib
with commlib.init(backend="shm", timeout_s=60) as comm:
    for name in ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int64", "bool"):
        print("wanted", name, flush=True)
        x = torch.zeros(4, dtype=getattr(torch, name))
        comm.all_gather_into_tensor(torch.cat([x, x]), x)
"""


def test_a_function_sees_the_types_of_torch(with_example: Run, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    body = "import tvm_ffi\n    return tvm_ffi.convert(lambda out, x, *rest: print('came', x.dtype, flush=True))"
    plugin.write_text(ROW.format(op="all_gather", body=body))
    said = on_ranks(with_example, 2, "-c", TYPES, COMMLIB_PLUGINS=str(plugin), COMMLIB_ALGORITHM="all_gather:mine")
    assert len(re.findall("wanted", said)) == 18, said
    assert said.count("came") == 18, said
    for name in re.findall(r"wanted (\w+)", said):
        assert re.search(rf"came {name}\b", said), said


def test_ranks_with_different_functions_are_refused(with_example: Run, tmp_path: Path) -> None:
    for folder, code in (("a", "// one\n"), ("b", "// another\n")):
        plugin = tmp_path / folder / "mine.py"
        plugin.parent.mkdir()
        plugin.write_text(ROW.format(op="all_reduce", body="return 3"))
        plugin.with_name("mine.cc").write_text(code)
    other = f"if os.environ['RANK'] == '1': os.environ['COMMLIB_PLUGINS'] = {str(plugin)!r}"
    assert failures(with_example, tmp_path / "a" / "mine.py", other).count("ranks disagree on plugins") == 2


def test_a_collective_that_functions_cannot_do_is_refused(with_example: Run, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(ROW.format(op="broadcast", body="return 3"))
    assert "functions of tvm-ffi can do all_reduce, all_gather" in failures(with_example, plugin)
