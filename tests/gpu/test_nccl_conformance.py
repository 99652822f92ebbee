"""Every algorithm of the nccl backend, on 2 and 4 GPUs, over types, reductions, ragged sizes and placements."""

import pytest
import torch

from commlib import Communicator
from commlib.collectives import COLLECTIVES
from commlib.tools.testing import Ranks
from commlib.tools.testing.conformance import EVERY_SIZE, EVERY_TYPE, Scope
from tests.collectives.test_conformance import algorithms, check
from tests.gpu.steady import pinned

ALGORITHMS = algorithms("nccl")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
# Beyond what all blocks hold at once: rounds of packets, several steps of a stream; also what engines copy.
LARGE = Scope((9_000_001,), (torch.bfloat16, torch.uint8))


@pytest.mark.parametrize("scope", [EVERY_TYPE, EVERY_SIZE], ids=["every type", "every size"])
@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS)
def test_nccl_gives_the_reference(nccl_ranks: Ranks, name: str, algorithm: str, scope: Scope) -> None:
    check(nccl_ranks, None, name, algorithm, scope)


@pytest.mark.parametrize(("name", "algorithm"), [pair for pair in ALGORITHMS if "nccl" not in pair[1]])
def test_more_than_all_slots_hold_goes_in_rounds(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    check(nccl_ranks, None, name, algorithm, LARGE)


def reduced_bits(comm: Communicator, name: str, algorithm: str) -> list[bytes]:
    """Of all bit patterns: NaN of any payload, which one algorithm or another may take for its own, and both zeros."""
    found = []
    words = torch.randint(-(2**31), 2**31 - 1, (48_000,), dtype=torch.int32, generator=torch.manual_seed(comm.rank))
    words[::3], words[1::7], words[2::11] = -1, -(2**31), 0x7FFF8000 - 2**31
    for dtype in FLOATS:
        x = words.view(dtype).to(comm.device)
        with pinned(comm, name, algorithm):
            out = torch.empty_like(x[: x.numel() // (1 if name == "all_reduce" else comm.size)])
            comm.all_reduce(x, out=out) if name == "all_reduce" else comm.reduce_scatter_tensor(out, x)
        found.append(out.view(torch.uint8).cpu().numpy().tobytes())
    return found


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_sums_of_every_bit_pattern_have_the_same_bits(nccl_ranks: Ranks, name: str) -> None:
    rows = [
        a.name for a in COLLECTIVES[name].algorithms if a.backend == "nccl" and a.ordered and a.placement == "plain"
    ]
    wanted, *others = [nccl_ranks.run(reduced_bits, name, row) for row in rows]
    assert all(found == wanted for found in others), rows
