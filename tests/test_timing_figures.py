"""What is made of measured times: intervals, fits, limits, and the settings that stand beside them."""

from __future__ import annotations

import random

import pytest

from commlib.communicator import Communicator
from commlib.testing import Ranks
from commlib.timing import Limit, environment, fit_latency_and_rate, measure_limit, ratio_of_medians

SIZES = [8 << (3 * step) for step in range(8)]


def noisy(median: float, count: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [median * draw.lognormvariate(0, 0.05) for _ in range(count)]


@pytest.mark.parametrize("counts", [(3, 3), (5, 41), (41, 41)])
def test_an_interval_contains_its_ratio(counts: tuple[int, int]) -> None:
    found = ratio_of_medians(noisy(3.0, counts[0], 1), noisy(2.0, counts[1], 2))
    assert found.low <= found.ratio <= found.high
    assert found.low < 1.5 < found.high


def test_an_interval_is_the_same_for_the_same_seed() -> None:
    above, below = noisy(3.0, 9, 1), noisy(2.0, 9, 2)
    assert ratio_of_medians(above, below, seed=4) == ratio_of_medians(above, below, seed=4)
    assert ratio_of_medians(above, below, seed=4) != ratio_of_medians(above, below, seed=5)


def test_what_disturbs_both_blocks_of_a_turn_does_not_widen_the_interval() -> None:
    drift = [1.0 + 0.1 * turn for turn in range(20)]
    together = ratio_of_medians([3.0 * d for d in drift], [2.0 * d for d in drift])
    assert together.high - together.low < 1e-9
    apart = ratio_of_medians([3.0 * d for d in drift], [2.0 * d for d in drift[:19]])
    assert apart.high - apart.low > 0.1


def test_a_fit_recovers_latency_and_rate() -> None:
    fit = fit_latency_and_rate(SIZES, [2e-6 + size / 12e9 for size in SIZES])
    assert fit is not None
    assert (fit.latency_s, 1 / fit.byte_s) == (pytest.approx(2e-6), pytest.approx(12e9))
    assert fit.error < 1e-6


def test_the_largest_time_does_not_decide_a_fit_alone() -> None:
    times = [2e-6 + size / 12e9 for size in SIZES]
    times[-1] *= 1.5
    fit = fit_latency_and_rate(SIZES, times)
    assert fit is not None
    assert fit.latency_s == pytest.approx(2e-6, rel=0.1)


@pytest.mark.parametrize("slope", [-1, 0, 1])
def test_neither_latency_nor_rate_is_negative(slope: int) -> None:
    # Falling, flat, and rising faster than in proportion: no line of two positive parameters fits these.
    fit = fit_latency_and_rate(SIZES, [1e-6 * (size / 8) ** (1.2 * slope) for size in SIZES])
    assert fit is not None
    assert min(fit.latency_s, fit.byte_s) >= 0
    assert max(fit.latency_s, fit.byte_s) > 0


def test_three_sizes_are_too_few_for_a_fit() -> None:
    assert fit_latency_and_rate([8, 64, 512, 512], [1e-6, 2e-6, 3e-6, 3e-6]) is None


def limit_of(comm: Communicator) -> Limit:
    return measure_limit(comm, 0.01)


def test_the_limit_of_memory_is_the_same_on_all_ranks_and_says_what_was_measured(shm_ranks: Ranks) -> None:
    limits = shm_ranks.run(limit_of, world=2)
    assert limits[0] == limits[1]
    assert limits[0].busbw is not None
    assert limits[0].busbw > 0
    assert limits[0].what.startswith("memory: copies of 64 MiB by 2 ranks at once")


def test_the_limit_of_a_size_is_what_copies_of_about_that_size_reach() -> None:
    limit = Limit(1.0, None, "memory", [(1 << 16, 20.0), (1 << 20, 30.0), (1 << 24, 2.0), (1 << 26, 1.0)])
    sizes = (8, 1 << 16, 1 << 20, (1 << 24) - 1, 1 << 24, 1 << 30)
    assert [limit.at(size) for size in sizes] == [30.0, 30.0, 30.0, 30.0, 2.0, 1.0]
    assert Limit(None, None, "none").at(8) is None


def test_where_nothing_limits_the_reason_is_said(shm_ranks: Ranks, torch_ranks: Ranks) -> None:
    for ranks, world, word in ((shm_ranks, 1, "one rank"), (torch_ranks, 2, "not measured")):
        limit = ranks.run(limit_of, world=world)[0]
        assert limit.busbw is None
        assert word in limit.what


def test_of_the_environment_only_what_changes_a_figure_is_kept() -> None:
    kept = {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1", "COMMLIB_BIND": "core"}
    places = {"NCCL_TOPO_FILE": "/somewhere/topo.xml", "COMMLIB_PLAN": "plan.json", "NCCL_COMM_ID": "box:1234"}
    left_out = {"NCCL_API_KEY": "a", "CUDA_TOKEN": "b", "COMMLIB_LOCAL_RANK": "0", "HOME": "c", "AWS_SECRET": "d"}
    found = environment({**kept, **places, **left_out})
    assert found == {**kept, **dict.fromkeys(places, "(set)")}
