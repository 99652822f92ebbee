"""Which kernels of several communicators may run side by side (csrc/nccl/footprint.h); no GPU is needed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOPPER = 132  # multiprocessors

PIPES = "16 1 1"  # blocks, of a cluster, the part of a multiprocessor that one needs
PACKETS = "128 1 0.25"
VENDOR = "vendor"


def rows(count: int) -> str:
    """A cluster of four blocks for each row: one multiprocessor has room for four of them."""
    return f"{4 * count} 4 0.25"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("footprint") / "footprint"
    words = [os.environ.get("CXX", "c++"), "-std=c++17", "-Icsrc/include", "-Icsrc", "tests/native/footprint.cc"]
    subprocess.run([*words, "-o", str(made)], cwd=ROOT, check=True)
    return made


@pytest.mark.parametrize(
    ("kernels", "fit"),
    [
        ([PIPES] * 4, True),
        ([PIPES] * 8, True),
        ([PIPES] * 9, False),
        ([VENDOR, VENDOR], True),
        ([VENDOR, VENDOR, VENDOR, PIPES], False),
        ([VENDOR, PACKETS], False),  # a block of packets on each multiprocessor leaves none whole
        ([PACKETS, PACKETS, PACKETS], True),  # wherever they lie, one multiprocessor has room for one more
        ([PACKETS] * 4, False),
        ([VENDOR, rows(8)], True),
        ([VENDOR, rows(43)], False),  # 43 clusters are 172 blocks: they may touch every multiprocessor
        ([VENDOR, VENDOR, rows(16)], False),  # what is free may lie three here and three there
        ([rows(16), rows(16)], True),
        ([rows(43), rows(43)], False),
    ],
)
def test_side_by_side_only_where_each_is_sure_of_its_place(program: Path, kernels: list[str], fit: bool) -> None:
    done = subprocess.run([program, str(HOPPER)], input="|".join(kernels), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["yes" if fit else "no"]
