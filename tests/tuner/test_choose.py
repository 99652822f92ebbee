"""Choosing and judging, on made-up samples: who wins is known, noise is drawn with a fixed seed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from commlib.tools.tune.case import Option
from commlib.tools.tune.choose import Settings, choose, compared
from commlib.tools.tune.judge import judge
from commlib.tools.tune.path import earned
from commlib.tools.tune.samples import Samples
from commlib.tools.tune.sure import Medians

Cost = Callable[[int], float]
SIZES = [8 << step for step in range(16)]  # 8 B to 256 KiB
QUICK, WIDE = Option("quick"), Option("wide", (("blocks", 2),))


def samples(costs: dict[Option, Cost], noise=0.03, blocks=30, seed=0, sizes=SIZES) -> Samples:
    generator = np.random.default_rng(seed)

    def drawn(seconds: float) -> tuple[float, ...]:
        return tuple(float(seconds * math.exp(noise * generator.standard_normal())) for _ in range(blocks))

    return Samples({size: {option: drawn(cost(size)) for option, cost in costs.items()} for size in sizes})


def alpha_beta(latency_us: float, bytes_per_us: float) -> Cost:
    return lambda size: (latency_us + size / bytes_per_us) * 1e-6


# They cost the same at (3 - 1) / (1 / 1000 - 1 / 4000) bytes.
COSTS = {QUICK: alpha_beta(1.0, 1000.0), WIDE: alpha_beta(3.0, 4000.0)}
CROSSOVER = 2 / (1 / 1000 - 1 / 4000)


def test_each_runs_where_it_is_faster_and_the_crossover_lies_in_its_interval() -> None:
    choice = choose(samples(COSTS))
    assert [stretch.option for stretch in choice.stretches] == [QUICK, WIDE]
    first, last = choice.stretches
    assert first.interval[0] <= CROSSOVER <= first.interval[1]
    assert CROSSOVER / 1.5 < first.until < CROSSOVER * 1.5
    assert (last.until, last.interval) == (None, None)
    assert (first.runner_up, last.runner_up) == ("wide", "quick")
    assert first.gain > 0.5
    assert first.confidence > 0.9
    assert choice.at(8) == QUICK
    assert choice.at(1 << 30) == WIDE


def test_a_range_ends_below_the_first_size_of_the_next_also_where_they_cross_there() -> None:
    costs = {QUICK: lambda size: 1e-6 * size, WIDE: lambda size: 1023.9e-6}
    first, last = choose(samples(costs, noise=0.0, blocks=1)).stretches
    assert (first.sizes[-1], last.sizes[0]) == (512, 1024)
    assert (first.until, first.interval, first.confidence) == (1023, None, None)  # medians alone have no intervals


def test_an_interval_shrinks_with_the_noise() -> None:
    small, large = (choose(samples(COSTS, noise)).stretches[0].interval for noise in (0.005, 0.1))
    assert small[1] / small[0] < large[1] / large[0]


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


@pytest.mark.parametrize(("factor", "kept"), [(1.0, True), (1.01, True), (1.2, False)])
def test_a_plan_that_is_as_good_is_kept(factor: float, kept: bool) -> None:
    old = Option("old")
    found = samples({**COSTS, old: lambda size: factor * min(cost(size) for cost in COSTS.values())}, noise=0.002)
    choice = choose(found, now=lambda size: old)
    assert (choice.changes == ()) == kept
    assert ([choice.at(size) for size in SIZES] == [old] * len(SIZES)) == kept
    assert choose(found, Settings(fresh=True), now=lambda size: old).at(8) == (old if factor == 1.0 else QUICK)


def test_a_plan_whose_algorithm_was_not_measured_is_replaced() -> None:
    unknown = Option("unknown")
    changes = choose(samples(COSTS), now=lambda size: unknown).changes
    assert [(each.was, each.option, each.gain) for each in changes] == [(unknown, one, None) for one in (QUICK, WIDE)]


def test_a_change_is_told_with_its_gain_and_how_sure_it_is() -> None:
    choice = choose(samples(COSTS), now=lambda size: QUICK)
    (change,) = choice.changes
    assert (change.was, change.option) == (QUICK, WIDE)
    assert set(change.sizes) == {size for size in SIZES if choice.at(size) == WIDE}
    assert change.gain > 1
    assert change.sure == 1.0
    assert choice.stretches[0].confidence == 1.0


def test_what_was_chosen_stays_to_the_byte_where_nothing_is_surely_better() -> None:
    """The measured crossover lies elsewhere, but no size says surely that it does."""
    for seed in range(5):
        choice = choose(samples(COSTS, 0.3, seed=seed), now=lambda size: QUICK if size <= 3000 else WIDE)
        assert [(s.option, s.until) for s in choice.stretches] == [(QUICK, 3000), (WIDE, None)]
        assert choice.stretches[0].confidence is None


def test_two_equal_runs_under_noise_choose_the_same_where_they_start_from_the_same() -> None:
    """Each run is off by 2 % at each size besides, the same in all of its blocks: a block knows nothing of it."""
    near = {QUICK: COSTS[QUICK], WIDE: lambda size: 1.01 * COSTS[QUICK](size)}

    def run(seed: int) -> Samples:
        found, generator = samples(near, 0.1, blocks=20, seed=seed), np.random.default_rng(seed)
        for of_size in found.times.values():
            for option, times in of_size.items():
                off = math.exp(0.02 * generator.standard_normal())
                of_size[option] = tuple(t * off for t in times)
        return found

    def changed(sure: float) -> int:
        settings = Settings(sure=sure, resamples=40)
        return sum(choose(run(seed), settings, lambda size: WIDE).changes != () for seed in range(10))

    assert changed(0.8) <= 1
    assert changed(0.0) >= 5


def test_switches_that_are_not_sure_are_left_out_and_counted() -> None:
    """One size, 6 % slower on the first, in blocks that scatter by 40 %."""
    found = samples({QUICK: lambda size: 10e-6, WIDE: lambda size: (9.4 if size == 256 else 11) * 1e-6}, 0.4, blocks=11)
    sure, any_share = choose(found), choose(found, Settings(sure=0.0))
    assert len(any_share.stretches) > len(sure.stretches)
    assert sure.unsure > any_share.unsure == 0
    assert all((stretch.confidence or 1) > 0.8 for stretch in sure.stretches)


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


def earning(path: list[int], *rows: list[float]) -> list[int]:
    """Return what is left of a path; rows are sizes, columns the options' medians in µs."""
    table = np.log(np.array(rows) * 1e-6)
    left, _, unsure = earned(path, Medians([QUICK, WIDE, Option("third")][: table.shape[1]], table, table[None]), 0.8)
    assert unsure == 0  # the one draw is what was measured
    return left


def test_a_range_earns_its_place_by_5_percent_and_a_tenth_of_a_microsecond() -> None:
    for own, neighbour, kept in (
        (10.0, 10.6, True),  # 6 % and 0.6 µs
        (10.0, 10.4, False),  # 4 %
        (1.0, 1.08, False),  # 8 %, and 0.08 µs
        (2.0, 2.12, True),
    ):
        rows = [neighbour, own * 2], [neighbour, own], [neighbour, own * 2]
        assert earning([0, 1, 0], *rows) == ([0, 1, 0] if kept else [0, 0, 0]), (own, neighbour)


def test_what_saves_least_goes_first_and_its_sizes_to_the_neighbour_that_costs_less_there() -> None:
    # The second option saves 3 % at one size; the third 30 % at two, and costs the second's size less than the first.
    rows = [5.0, 9.0, 9.0], [10.4, 10.0, 10.3], [13.0, 13.0, 10.0], [13.0, 13.0, 10.0]
    assert earning([0, 1, 2, 2], *rows) == [0, 2, 2, 2]
    assert earning([0, 0, 0, 0], *rows) == [0, 0, 0, 0]
    assert earning([0, 1, 1], [5.0, 9.0], [10.6, 10.0], [10.0, 13.0]) == [0, 0, 0]  # it loses more than it saves


def test_a_range_whose_neighbours_were_not_measured_there_stays() -> None:
    assert earning([0, 1, 0], [1.0, 9.0], [np.inf, 1.0], [1.0, 9.0]) == [0, 1, 0]


def test_a_choice_among_some_options_gains_over_all_of_them() -> None:
    a, b = Option("a"), Option("b")
    samples = Samples({size: {a: [1e-6] * 5, b: [2e-6] * 5} for size in (1024, 2048)})
    kept = samples.with_only({1024: a, 2048: a})
    assert choose(kept).stretches[0].runner_up is None
    (stretch,) = compared(choose(kept), samples).stretches
    assert (stretch.gain, stretch.runner_up) == (1.0, "b")
