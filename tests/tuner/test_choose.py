"""Choosing and judging, on made-up samples: who wins is known, noise is drawn with a fixed seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from commlib.tuner.case import Option
from commlib.tuner.choose import Settings, choose, earned
from commlib.tuner.judge import judge, keeps
from commlib.tuner.samples import Samples

SIZES = [8 << step for step in range(16)]  # 8 B to 256 KiB
QUICK, WIDE = Option("quick"), Option("wide", (("blocks", 2),))


def samples(
    cost: dict[Option, Callable[[int], float]], noise: float = 0.03, blocks: int = 30, seed: int = 0
) -> Samples:
    generator = np.random.default_rng(seed)
    return Samples(
        {
            size: {
                option: tuple(float(of(size) * math.exp(noise * generator.standard_normal())) for _ in range(blocks))
                for option, of in cost.items()
            }
            for size in SIZES
        }
    )


def alpha_beta(latency_us: float, bytes_per_us: float) -> Callable[[int], float]:
    return lambda size: (latency_us + size / bytes_per_us) * 1e-6


# They cost the same at (3 - 1) / (1 / 1000 - 1 / 4000) bytes.
COSTS = {QUICK: alpha_beta(1.0, 1000.0), WIDE: alpha_beta(3.0, 4000.0)}
CROSSOVER = 2 / (1 / 1000 - 1 / 4000)


def test_each_runs_where_it_is_faster_and_the_crossover_lies_in_its_interval() -> None:
    choice = choose(samples(COSTS))
    assert [stretch.option for stretch in choice.stretches] == [QUICK, WIDE]
    first, last = choice.stretches
    assert first.interval is not None
    assert first.interval[0] <= CROSSOVER <= first.interval[1]
    assert first.until is not None
    assert CROSSOVER / 1.5 < first.until < CROSSOVER * 1.5
    assert (last.until, last.interval) == (None, None)
    assert (first.runner_up, last.runner_up) == ("wide", "quick")
    assert first.gain is not None
    assert first.gain > 0.5
    assert first.confidence is not None
    assert first.confidence > 0.9
    assert choice.at(8) == QUICK
    assert choice.at(1 << 30) == WIDE


def test_noise_alone_makes_no_switch() -> None:
    same = {QUICK: alpha_beta(2.0, 1000.0), WIDE: alpha_beta(2.0, 1000.0)}
    switches = [len(choose(samples(same, 0.05, seed=seed)).stretches) - 1 for seed in range(10)]
    assert sum(switches) <= 3


def test_an_interval_shrinks_with_the_noise() -> None:
    def width(noise: float) -> float:
        interval = choose(samples(COSTS, noise)).stretches[0].interval
        assert interval is not None
        return interval[1] / interval[0]

    assert width(0.005) < width(0.1)


def test_choosing_is_not_monotone_in_size() -> None:
    middle = Option("middle")
    costs = {**COSTS, middle: lambda size: 0.5 * COSTS[QUICK](size) if 256 <= size <= 1024 else 9e-6 + size}
    assert [s.option for s in choose(samples(costs)).stretches] == [QUICK, middle, QUICK, WIDE]


def test_what_was_not_measured_at_a_size_is_not_chosen_there() -> None:
    found = samples(COSTS)
    for size in SIZES[10:]:
        del found.times[size][WIDE]
    assert all(choose(found).at(size) == QUICK for size in SIZES[10:])


def test_the_judge_finds_no_regret_in_the_right_choice_and_names_the_sizes_of_a_wrong_one() -> None:
    found, settings = samples(COSTS), Settings()
    right = judge(found, None, lambda size: WIDE, settings)
    assert judge(found, choose(found).at, lambda size: WIDE, settings).regret < 0.01
    assert right.regret < 0.01
    assert right.slower == {}
    assert right.over_default is not None
    assert right.over_default > 0.5
    wrong = judge(found, lambda size: WIDE, lambda size: QUICK, settings)
    assert wrong.regret > 0.3
    assert set(wrong.slower) == {size for size in SIZES if size < CROSSOVER}


def test_what_was_raced_out_is_judged_by_the_blocks_it_has() -> None:
    found = samples(COSTS)
    for size in SIZES:
        slow = max(COSTS, key=lambda option: COSTS[option](size))
        found.times[size][slow] = found.times[size][slow][:4]
    assert judge(found, None, lambda size: QUICK, Settings()).regret < 0.01
    assert judge(found, lambda size: QUICK, lambda size: None, Settings()).regret > 0.1


@pytest.mark.parametrize(("factor", "kept"), [(1.0, True), (1.003, True), (1.2, False)])
def test_a_plan_that_is_as_good_is_kept(factor: float, kept: bool) -> None:
    old = Option("old")
    found = samples({**COSTS, old: lambda size: factor * min(cost(size) for cost in COSTS.values())}, noise=0.002)
    new = choose(Samples({size: {o: t for o, t in of.items() if o != old} for size, of in found.times.items()}))
    assert keeps(found, lambda size: old, new) == kept
    assert not keeps(found, lambda size: Option("unknown"), new)


def test_a_few_disturbed_blocks_change_nothing() -> None:
    found = samples(COSTS)
    for size in SIZES:
        for option, times in found.times[size].items():
            found.times[size][option] = tuple(t * (30 if at % 7 == size % 5 else 1) for at, t in enumerate(times))
    verdict = judge(found, None, lambda size: WIDE, Settings())
    assert verdict.regret < 0.01
    assert verdict.slower == {}
    assert [stretch.option for stretch in choose(found).stretches] == [QUICK, WIDE]


def test_sizes_can_be_left_to_one_option() -> None:
    found = samples(COSTS)
    choice = choose(found.with_only(dict.fromkeys(SIZES[3:6], WIDE)))
    assert [choice.at(size) for size in SIZES[2:7]] == [QUICK, WIDE, WIDE, WIDE, QUICK]
    assert len(found.times[SIZES[3]]) == 2


def table(*rows: list[float]) -> np.ndarray:
    """Log medians of sizes (rows) and options (columns), given in µs."""
    return np.log(np.array(rows) * 1e-6)


@pytest.mark.parametrize(
    ("saved", "kept"),
    [
        ((10.0, 10.6), True),  # 6 % and 0.6 µs
        ((10.0, 10.4), False),  # 4 %
        ((1.0, 1.08), False),  # 8 %, and 0.08 µs
        ((2.0, 2.12), True),
    ],
)
def test_a_range_earns_its_place_by_5_percent_and_a_tenth_of_a_microsecond(
    saved: tuple[float, float], kept: bool
) -> None:
    own, neighbour = saved
    medians = table([neighbour, own * 2], [neighbour, own], [neighbour, own * 2])
    assert earned([0, 1, 0], medians) == ([0, 1, 0] if kept else [0, 0, 0])


def test_what_saves_least_goes_first_and_its_sizes_to_the_neighbour_that_costs_less_there() -> None:
    # The second option saves 3 % at one size; the third 30 % at two, and costs the second's size less than the first.
    medians = table([5.0, 9.0, 9.0], [10.4, 10.0, 10.3], [13.0, 13.0, 10.0], [13.0, 13.0, 10.0])
    assert earned([0, 1, 2, 2], medians) == [0, 2, 2, 2]
    assert earned([0, 0, 0, 0], medians) == [0, 0, 0, 0]


def test_a_range_whose_neighbours_were_not_measured_there_stays() -> None:
    medians = table([1.0, 9.0], [1.0, 1.0], [1.0, 9.0])
    medians[1, 0] = np.inf
    assert earned([0, 1, 0], medians) == [0, 1, 0]


def test_medians_alone_give_crossovers_without_intervals() -> None:
    choice = choose(samples(COSTS, noise=0.0, blocks=1))
    assert [(s.option, s.interval, s.confidence) for s in choice.stretches] == [(QUICK, None, None), (WIDE, None, None)]
    assert CROSSOVER / 1.5 < (choice.stretches[0].until or 0) < CROSSOVER * 1.5
