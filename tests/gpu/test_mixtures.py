"""Calls of all kinds on several communicators, mixed at random."""

import pytest

from commlib.tools.testing import Ranks
from tests.gpu.mixtures import ROUNDS, mix

# Alone, these meet packets without flags at every turn.
SUMS = ("all_reduce", "reduce_scatter", "all_reduce_rms_norm")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("only", [(), SUMS], ids=["all", "sums"])
def test_a_mixture_of_calls_gives_every_value(nccl_ranks: Ranks, only: tuple[str, ...], seed: int) -> None:
    assert set(nccl_ranks.run(mix, seed, ROUNDS, "", only)) == {""}
