"""Every algorithm of the nccl backend, on 2 and 4 GPUs, over types, reductions, ragged sizes and placements."""

from __future__ import annotations

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Call
from commlib.testing import Ranks
from commlib.testing.conformance import EVERY_SIZE, EVERY_TYPE, Scope, agree, check_algorithm

ALGORITHMS = [(name, a.name) for name, spec in COLLECTIVES.items() for a in spec.algorithms if a.backend == "nccl"]
# Beyond what all blocks hold at once: rounds of packets, several steps of a stream.
LARGE = Scope((9_000_001,), (torch.bfloat16,))


def check(ranks: Ranks, name: str, algorithm: str, scope: Scope) -> None:
    verdicts = ranks.run(check_algorithm, name, algorithm, scope)
    assert [v.wrong for v in verdicts if v.wrong] == []
    if verdicts[0].cases == 0:
        pytest.skip(f"{algorithm} refuses all of these here")
    if name == "all_reduce" and COLLECTIVES[name].algorithm(algorithm).ordered:
        assert agree(verdicts), "ranks hold different bits"


@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS)
def test_nccl_gives_the_reference_for_every_type_and_reduction(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    check(nccl_ranks, name, algorithm, EVERY_TYPE)


@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS)
def test_nccl_gives_the_reference_for_every_size(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    check(nccl_ranks, name, algorithm, EVERY_SIZE)


@pytest.mark.parametrize(("name", "algorithm"), [pair for pair in ALGORITHMS if pair[1].startswith("lsa_")])
def test_more_than_all_slots_hold_goes_in_rounds(nccl_ranks: Ranks, name: str, algorithm: str) -> None:
    if COLLECTIVES[name].shapes(Call(0, 2, 1, torch.uint8)) == (0, 0):
        pytest.skip("moves no data")
    check(nccl_ranks, name, algorithm, LARGE)


def test_all_reduce_gives_the_same_bits_with_every_algorithm(nccl_ranks: Ranks) -> None:
    names = [a.name for a in COLLECTIVES["all_reduce"].algorithms if a.backend == "nccl" and a.ordered]
    scope = Scope((33, 5000, 70_001), EVERY_TYPE.dtypes[:6], ("sum", "avg", "max"))
    runs = {name: nccl_ranks.run(check_algorithm, "all_reduce", name, scope) for name in names}
    assert len({v.checksum for verdicts in runs.values() for v in verdicts}) == 1
