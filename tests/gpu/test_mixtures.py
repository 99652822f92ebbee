"""Calls of all kinds on several communicators, mixed at random."""

from __future__ import annotations

import pytest

from commlib.testing import Ranks
from tests.gpu.mixtures import ROUNDS, mix


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_of_calls_gives_every_value(nccl_ranks: Ranks, seed: int) -> None:
    assert set(nccl_ranks.run(mix, seed, ROUNDS)) == {""}


@pytest.mark.parametrize("seed", range(4))
def test_sums_alone_meet_packets_without_flags_at_every_turn(nccl_ranks: Ranks, seed: int) -> None:
    assert set(nccl_ranks.run(mix, seed, ROUNDS, "", ("all_reduce", "reduce_scatter", "all_reduce_rms_norm"))) == {""}
