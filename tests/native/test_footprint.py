"""Which kernels of several communicators may run side by side (csrc/nccl/footprint.h); no GPU is needed."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOPPER = 132  # multiprocessors

PIPES = "16 1"  # blocks, and of a cluster
PACKETS = "128 1"
WHOLE = "256 1"  # as many blocks as there may be
ROWS = "128 4"
FEW_ROWS = "32 4"
VENDOR = "vendor"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("footprint") / "footprint"
    words = [os.environ.get("CXX", "c++"), "-std=c++17", "-Icsrc/include", "-Icsrc", "tests/native/footprint.cc"]
    subprocess.run([*words, "-o", str(made)], cwd=ROOT, check=True)
    return made


@pytest.mark.parametrize(
    ("kernels", "fit"),
    [
        # The first communicator leaves one multiprocessor, in which the other goes on; that leaves more to the program.
        ([WHOLE, WHOLE], True),
        ([WHOLE, WHOLE, WHOLE], False),
        ([WHOLE, PACKETS], True),
        ([WHOLE, PIPES], True),
        ([WHOLE, PIPES, PIPES], False),
        ([PIPES] * 7, True),
        ([PIPES] * 8, False),  # the program's clusters find no place beside seven of them
        ([PACKETS] * 2, True),
        ([PACKETS] * 3, False),
        ([WHOLE, VENDOR], False),  # NCCL's blocks find no place before ours have ended
        ([VENDOR, WHOLE], True),  # beside the second communicator they do
        ([VENDOR, PIPES], True),
        ([VENDOR] * 4, True),
        ([VENDOR] * 5, False),
        ([WHOLE, ROWS], False),
        ([ROWS, WHOLE], True),
        ([ROWS, FEW_ROWS], False),  # what is free may lie three here and three there
        ([FEW_ROWS, VENDOR], True),
        ([FEW_ROWS, FEW_ROWS], True),
    ],
)
def test_side_by_side_only_where_each_is_sure_of_its_place(program: Path, kernels: list[str], fit: bool) -> None:
    done = subprocess.run([program, str(HOPPER)], input="|".join(kernels), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["yes" if fit else "no"]
