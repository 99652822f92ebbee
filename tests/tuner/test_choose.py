"""Choosing, on made-up samples: who is fastest is known, noise is drawn with a fixed seed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from commlib.tools.tune.case import Option, Samples
from commlib.tools.tune.choose import Choice, Settings, choose, gain

Cost = Callable[[int], float]
SIZES = [8 << step for step in range(16)]  # 8 B to 256 KiB
QUICK, WIDE, OLD = Option("quick"), Option("wide", (("blocks", 2),)), Option("old")


def samples(costs: dict[Option, Cost], noise=0.03, blocks=30, seed=0, sizes=SIZES) -> Samples:
    generator = np.random.default_rng(seed)

    def drawn(seconds: float) -> tuple[float, ...]:
        return tuple(float(seconds * math.exp(noise * generator.standard_normal())) for _ in range(blocks))

    return Samples({size: {option: drawn(cost(size)) for option, cost in costs.items()} for size in sizes})


def alpha_beta(latency_us: float, bytes_per_us: float) -> Cost:
    return lambda size: (latency_us + size / bytes_per_us) * 1e-6


# They cost the same at (3 - 1) / (1 / 1000 - 1 / 4000) = 2667 bytes.
COSTS = {QUICK: alpha_beta(1.0, 1000.0), WIDE: alpha_beta(3.0, 4000.0)}
BEST = {size: QUICK if size < 2667 else WIDE for size in SIZES}


def chosen(found: Samples, now: Option | None = None, **settings: float) -> Choice:
    return choose(found, Settings(**settings), lambda size: now)  # type: ignore[arg-type]


def run_of(*rows: tuple[float, ...]) -> list[int]:
    """Return which column is chosen in each row of times in µs, inf where one was not measured."""
    options = [Option(f"option{column}") for column in range(len(rows[0]))]
    times = [{option: (us * 1e-6,) for option, us in zip(options, row, strict=True) if us < math.inf} for row in rows]
    return [options.index(option) for option in chosen(Samples(dict(enumerate(times)))).values()]


def test_each_runs_where_it_is_faster() -> None:
    assert chosen(samples(COSTS)) == BEST
    slow = {size: 0.5 * COSTS[QUICK](size) if 256 <= size <= 1024 else 9e-6 + size for size in SIZES}
    middle = {size: OLD if 256 <= size <= 1024 else option for size, option in BEST.items()}
    assert chosen(samples({**COSTS, OLD: slow.__getitem__})) == middle


def test_a_few_disturbed_blocks_change_nothing() -> None:
    found = samples(COSTS)
    for of_size in found.times.values():
        for option, times in of_size.items():
            of_size[option] = tuple(t * (30 if at % 7 == 3 else 1) for at, t in enumerate(times))
    assert chosen(found) == BEST


def test_what_runs_is_slower_than_the_fastest_by_less_than_the_margin() -> None:
    inf = math.inf
    assert run_of((10.0, 10.4), (10.0, 10.4), (10.4, 10.0), (10.0, 10.4)) == [0, 0, 0, 0]  # 4 %
    assert run_of((1.0, 2.0), (1.08, 1.0), (1.0, 2.0)) == [0, 0, 0]  # 8 %, and 0.08 µs
    assert run_of((10.0, 20.0), (10.6, 10.0), (10.0, 20.0)) == [0, 1, 0]  # 6 % and 0.6 µs
    assert run_of((1.0, 9.0), (inf, 1.0), (1.0, 9.0)) == [0, 1, 0]
    # Two percent over three sizes are more than a change costs; over two they are not.
    assert run_of((9.0, 10.0), *[(10.0, 9.8)] * 3) == [0, 1, 1, 1]
    assert run_of((9.0, 10.0), *[(10.0, 9.8)] * 2) == [0, 0, 0]


def test_what_one_half_of_the_blocks_or_the_quick_ones_do_not_say_is_not_slower() -> None:
    alternating = tuple(1e-5 * (1.2 if at % 2 else 1.0) for at in range(10))
    found = Samples({8: {QUICK: alternating, WIDE: (1.1e-5,) * 10}})
    assert chosen(found, WIDE) == {8: WIDE}
    disturbed = (0.99e-5, 0.99e-5, 0.99e-5, *[2e-5] * 7)
    assert chosen(Samples({8: {QUICK: (1e-5,) * 10, WIDE: disturbed}}), WIDE) == {8: WIDE}
    found.times[8][QUICK] = (1e-5,) * 10
    assert chosen(found, WIDE) == {8: QUICK}


@pytest.mark.parametrize(("factor", "stays"), [(1.0, True), (1.03, True), (1.2, False)])
def test_the_plan_in_force_stays_where_it_is_slower_by_less_than_the_margin(factor: float, stays: bool) -> None:
    costs = {**COSTS, OLD: lambda size: factor * min(cost(size) for cost in COSTS.values())}
    found = samples(costs, noise=0.002)
    assert chosen(found, OLD) == (dict.fromkeys(SIZES, OLD) if stays else BEST)
    assert chosen(found, OLD, fresh=True)[8] == (OLD if factor == 1.0 else QUICK)
    assert chosen(found, Option("unknown"))[8] == (OLD if factor == 1.0 else QUICK)


def test_two_runs_under_noise_agree_within_the_margin_also_if_the_second_does_not_know_the_first() -> None:
    """Each run is off by 2 % at each size besides, the same in all of its blocks: a block knows nothing of it."""
    near = {QUICK: COSTS[QUICK], WIDE: lambda size: 1.01 * COSTS[QUICK](size), OLD: COSTS[WIDE]}

    def run(seed: int) -> Samples:
        found, generator = samples(near, 0.1, blocks=20, seed=seed), np.random.default_rng(seed)
        for of_size in found.times.values():
            for option, times in of_size.items():
                off = math.exp(0.02 * generator.standard_normal())
                of_size[option] = tuple(t * off for t in times)
        return found

    runs = [run(seed) for seed in range(10)]
    choices = [chosen(found) for found in runs]
    times = [
        (one[size], [of.medians(size)[other[size]], of.medians(size)[one[size]]])
        for one, of in zip(choices, runs, strict=True)
        for other in choices
        for size in SIZES
    ]
    assert sum(theirs < 1.05 * ours or theirs < ours + 1e-7 for _, (theirs, ours) in times) > 0.95 * len(times)
    again = [choose(found, Settings(), choices[0].get) for found in runs]
    assert sum(each == choices[0] for each in again) >= 8


def test_the_gain_is_that_over_the_best_other_algorithm() -> None:
    found = Samples({size: {QUICK: (1e-6,), WIDE: (2e-6,), OLD: (3e-6,)} for size in (8, 16)})
    assert gain(found, QUICK, (8, 16)) == (1.0, "wide")
    assert gain(found, WIDE, (8,)) == (-0.5, "quick")
    assert gain(Samples({8: {QUICK: (1e-6,)}}), QUICK, (8,)) == (None, None)
