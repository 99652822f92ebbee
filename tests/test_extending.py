"""docs/extending.md: all its diffs together, in a copy of the sources, build, and what they add works."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.native.test_stress import ROOT, tool
from tests.pages import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # on a busy machine

Run = Callable[[Sequence[str]], str]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what runs a command of Python where every diff was applied and the library built."""
    copy = tmp_path_factory.mktemp("extended")
    for name in ("commlib", "csrc", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    diffs = [block.text for block in blocks_of("docs/extending.md") if block.language == "diff"]
    diffs += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/extending").glob("*.diff"))]
    assert len(diffs) > 8
    for diff in diffs:
        said(["git", "apply", "--unidiff-zero", "-"], copy, given=diff)
    ninja, build = tool("ninja"), copy / "build"
    options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Debug"]
    said([tool("cmake"), "-S", ".", "-B", str(build), *options], copy)
    said([ninja, "-C", str(build), "_native"], copy)
    # The interpreter below this environment: an editable install would put its own commlib first.
    python = getattr(sys, "_base_executable", sys.executable)
    paths = os.pathsep.join([str(copy), sysconfig.get_path("purelib")])
    own = {"PYTHONPATH": paths, "COMMLIB_LIBRARY": str(build / "_native.abi3.so")}
    return lambda arguments: said([python, *arguments], copy, more=own)


def said(command: Sequence[str], folder: Path, *, given: str | None = None, more: dict[str, str] | None = None) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # a worker's
    result = subprocess.run(
        command, cwd=folder, env={**inherited, **(more or {})}, input=given, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, (command, result.stdout[-4000:] + result.stderr[-4000:])
    return result.stdout


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("tests/test_native.py", "signatures"),
        ("tests/collectives/test_conformance.py", "rotate or shm_leader"),
        ("tests/plan/test_search.py", "known_algorithm"),
    ],
)
def test_the_tests_of_the_copy_pass(extended: Run, file: str, names: str) -> None:
    assert " passed" in extended(["-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", names])


def test_a_kernel_for_gpus_and_a_call_of_nccl_s_have_their_rows(extended: Run) -> None:
    program = (
        "from commlib.collectives import algorithm_names as a; from commlib.tools.kernel_list import kernels;"
        "print(a('nccl')['all_reduce'], [e for s, e in kernels([2], ['float32'], ['sum']) if 'lsa_ll_twoshot' in e])"
    )
    out = extended(["-c", program])
    assert "'nccl_leader'" in out
    assert "commlib::lsa_ll_twoshot<float, commlib::Sum, 2>" in out


def test_a_reduction_reduces(extended: Run) -> None:
    program = """
import torch
from commlib.tools.testing import Ranks

def largest(comm):
    return comm.all_reduce(torch.tensor([-3.0, 1.0]) * (comm.rank + 1), "absmax").tolist()

if __name__ == "__main__":
    with Ranks(2, backend="shm") as ranks:
        print(ranks.run(largest))
"""
    path = Path(extended(["-c", "import commlib; print(commlib.__file__)"]).strip()).parents[1] / "largest.py"
    path.write_text(program, encoding="utf-8")
    assert "[[6.0, 2.0], [6.0, 2.0]]" in extended([str(path)])


def test_a_kernel_runs_and_is_compiled_for_gpus(extended: Run) -> None:
    program = (
        "import torch; from commlib.kernels.reverse import reverse; from commlib.native import library;"
        "print(reverse(torch.arange(4, dtype=torch.int32)).tolist(), [s for s, _ in library.device_kernels()])"
    )
    out = extended(["-c", program])
    assert out.startswith("[3, 2, 1, 0]")
    assert "kernels/reverse/gpu.cu" in out


def test_a_backend_a_command_and_a_variable_are_there(extended: Run) -> None:
    program = "import commlib, torch; c = commlib.init(backend='solo'); print(c.all_reduce(torch.ones(2)).tolist())"
    assert "[1.0, 1.0]" in extended(["-c", program])
    assert int(extended(["-m", "commlib", "cores", "--spare", "1"])) >= 1
    assert "COMMLIB_NICE" in extended(["-c", "from commlib.env import VARIABLES; print([v.name for v in VARIABLES])"])
