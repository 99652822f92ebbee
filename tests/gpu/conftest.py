"""Live ranks with a GPU each, shared by the GPU tests; skipped where there are not the GPUs that a module needs."""

import re
from collections.abc import Iterator

import pytest
import torch

from commlib.tools.testing import Ranks
from tests.gpu import one_gpu

GPUS = one_gpu.RANKS or (torch.cuda.device_count() if torch.cuda.is_available() else 0)
MOST_RANKS = 8 if one_gpu.RANKS else 4
# Of modules whose ranks may share a GPU; there, what is NCCL's own is left out.
SHARING = (
    "compiled_graphs",
    "debug",
    "engine",
    "epilogue",
    "fused",
    "max_sms",
    "mixtures",
    "nccl_conformance",
    "pipes",
    "pipeline",
    "bench_phases",
    "tp",
)
OF_NCCL = re.compile(r"nccl_direct|nccl_staged|nccl_symmetric|\[nccl\]")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            needed = getattr(item.getparent(pytest.Module).obj, "NEEDS_GPUS", 2)
            if needed > GPUS:
                words = {1: "a GPU", 2: "two GPUs"}[needed]
                item.add_marker(pytest.mark.skip(reason=f"needs {words}, found {GPUS}"))
                item.add_marker(pytest.mark.slow)  # `make test` need not say of each that it is skipped
            elif one_gpu.RANKS and (item.path.stem.removeprefix("test_") not in SHARING or OF_NCCL.search(item.name)):
                item.add_marker(pytest.mark.skip(reason="needs a GPU for each rank"))


@pytest.fixture(scope="session")
def nccl_ranks() -> Iterator[Ranks]:
    most = min(GPUS, MOST_RANKS)
    with Ranks(most, backend="nccl", timeout_s=60.0, max_bytes=64 << 20, deadline_s=100.0) as ranks:
        yield ranks
