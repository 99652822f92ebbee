"""Multiprocessors as a dimension of the plan, on made-up times: the knee, the curve, and what a limit chooses."""

from dataclasses import replace

import pytest
import torch

from commlib.plan import Plan
from commlib.plan.rules import Query, Range, Rule
from commlib.plan.table import Table as NativeTable
from commlib.tools.tune.case import PLAIN, Case, Option, Samples
from commlib.tools.tune.choose import Settings
from commlib.tools.tune.rules import Setup, Table, curve
from tests.tuner import test_choose
from tests.tuner.test_choose import Cost

CASE = Case("all_gather", torch.bfloat16, "graph", "plain")
SIZES = [1 << shift for shift in range(16, 28)]
BASE = Plan.only({"all_gather": "nccl_direct"})
SMALL = Option.of("lsa_ll128_oneshot", {"blocks": 96, "threads": 256, "grain_bytes": 15})
NCCL = Option("nccl_direct")


def tiles(blocks: int) -> Option:
    return Option.of("lsa_oneshot", {"blocks": blocks, "threads": 384, "grain_bytes": 16, "tile_bytes": 16384})


def filled(blocks: int, full: float) -> Cost:
    """Time of tiles on so many multiprocessors, of which `full` fill the link; more cost a little."""
    return lambda size: 3e-6 + size / (350e9 * min(1.0, blocks / full)) * (1 + 1e-4 * blocks)


def samples(costs: dict[Option, Cost], noise: float = 0.005, seed: int = 0) -> Samples:
    """Of which tiles have no small sizes."""
    found = test_choose.samples(costs, noise, 20, seed, SIZES)
    for size in (size for size in SIZES if size < 128 << 10):
        others = [option for option in costs if option.algorithm != "lsa_oneshot"]
        found.times[size] = {option: found.times[size][option] for option in others}
    return found


def costs(full: float) -> dict[Option, Cost]:
    made = {tiles(blocks): filled(blocks, full) for blocks in (8, 16, 32, 64, 132)}
    return {SMALL: lambda size: 2e-6 + size / 150e9, NCCL: lambda size: 12e-6 + size / 300e9, **made}


def tuned(found: Samples, base: Plan = BASE, case: Case = CASE, **settings: float) -> tuple[Table, Plan]:
    setup = Setup(base, 2, {"backend": "nccl", "device": "made up"}, True, Settings(**settings))  # type: ignore[arg-type]
    table = setup.table(case, [case], found)
    return table, setup.plan(table, "made up")


def blocks_at(plan: Plan, size: int, max_sms: int = 0, limit: int = 0) -> tuple[str, int | None]:
    query = Query("all_gather", size, "bfloat16", "sum", 2, mode="graph")
    why = NativeTable(plan, 2, max_sms=limit).explain(query, max_sms)
    usual = 64 if why.algorithm == "lsa_oneshot" else None
    return why.algorithm, why.params.get("blocks", usual)


@pytest.mark.parametrize(("full", "blocks"), [(7, 8), (16, 16), (31, 32), (60, 64)])
def test_a_range_has_no_more_blocks_than_its_last_percents_of_time_need(full: float, blocks: int) -> None:
    _, plan = tuned(samples(costs(full)))
    assert blocks_at(plan, 1 << 26) == ("lsa_oneshot", blocks)


def test_time_alone_decides_if_nothing_is_spared() -> None:
    only = costs(100)
    only[tiles(64)] = lambda size: 1.02 * only[tiles(132)](size)
    assert blocks_at(tuned(samples(only, 0.001))[1], 1 << 26) == ("lsa_oneshot", 64)
    assert blocks_at(tuned(samples(only, 0.001), spare=0.0)[1], 1 << 26) == ("lsa_oneshot", 132)


def test_small_calls_are_chosen_by_time_alone() -> None:
    few = Option.of("lsa_ll128_oneshot", {"blocks": 4, "threads": 256, "grain_bytes": 15})
    with_few = {**costs(16), few: lambda size: 1.02 * (2e-6 + size / 150e9) if size < 128 << 10 else 1.0}
    assert blocks_at(tuned(samples(with_few, 0.001), spare=0.03)[1], 1 << 16) == ("lsa_ll128_oneshot", 96)


def test_a_vendors_call_gives_way_to_a_kernel_that_is_as_good_on_fewer() -> None:
    near = {NCCL: lambda size: 3e-6 + size / 350e9, tiles(8): lambda size: 1.02 * (3e-6 + size / 350e9)}
    near[tiles(132)] = near[tiles(8)]
    assert blocks_at(tuned(samples(near, 0.001))[1], 1 << 26) == ("lsa_oneshot", 8)


def symmetric_rule(engine: Cost, plain: dict[int, Option]) -> Rule:
    """Return the rule for symmetric tensors that copy engines make beside what plain tensors run."""
    found = samples({PLAIN: filled(16, 16), Option("engine_pull"): engine}, 0.001)
    found.plain = plain
    _, plan = tuned(found, case=replace(CASE, placement="symmetric"))
    return next(rule for rule in plan.rules if rule.world == (2, 2))


def range_at(rule: Rule, size: int) -> Range:
    return next(entry for _, high, entry in rule.spans() if size <= high)


@pytest.mark.parametrize(("slower", "chosen"), [(1.02, "engine_pull"), (1.10, "lsa_oneshot")])
def test_copy_engines_that_take_little_longer_than_tiles_are_chosen(slower: float, chosen: str) -> None:
    time, plain = filled(16, 16), dict.fromkeys(SIZES, tiles(16))
    rule = symmetric_rule(lambda size: slower * time(size) if size >= 512 << 10 else 1.0, plain)
    assert range_at(rule, 1 << 26).algorithm == chosen


def test_copy_engines_are_kept_for_limited_calls_where_plain_tensors_are_faster() -> None:
    time, plain = filled(16, 16), {size: tiles(32) if size > 1 << 24 else tiles(16) for size in SIZES}
    rule = symmetric_rule(lambda size: (1.3 if size > 1 << 24 else 9.0) * time(size), plain)
    assert [entry.algorithm for entry in rule.ranges] == ["lsa_oneshot"] * len(rule.ranges)
    for size, slower in ((1 << 24, 8.0), (1 << 26, 0.3)):
        entry = range_at(rule, size)
        (point,) = entry.curve
        assert (point.sms, point.algorithm) == (0, "engine_pull")
        assert abs(point.slower - slower) < 0.05 * (1 + slower)
        assert abs(entry.gain - slower) < 0.05 * (1 + slower), "the gain is that of the part"


def test_beside_packets_copy_engines_are_kept_too_and_a_range_has_sizes_of_about_one_time() -> None:
    time = filled(16, 16)
    rule = symmetric_rule(lambda size: time(size) * (1 + 2e7 / size), dict.fromkeys(SIZES, SMALL))
    for size in (1 << 20, 1 << 22, 1 << 24, 1 << 26):
        entry = range_at(rule, size)
        (point,) = entry.curve
        assert (entry.algorithm, point.algorithm) == ("lsa_ll128_oneshot", "engine_pull")
        assert 0.5 < point.slower / (2e7 / size) < 2


def test_what_is_in_force_stays_where_the_knee_lies_between() -> None:
    """As with time alone, two runs on one machine choose the same."""
    found = [samples(costs(15.7), 0.02, seed) for seed in range(6)]
    _, plan = tuned(found[0])
    assert all(blocks_at(tuned(each, plan)[1], 1 << 26) == blocks_at(plan, 1 << 26) for each in found[1:])


def test_an_old_plan_on_all_multiprocessors_is_changed_to_the_knee() -> None:
    old = Plan.only({"all_gather": "lsa_oneshot"}, params=dict(tiles(132).params) | {"grain_bytes": 16})
    table, plan = tuned(samples(costs(16)), old)
    assert blocks_at(plan, 1 << 26) == ("lsa_oneshot", 16)
    assert [option for _, _, option in table.changes][-1] == tiles(16)


def test_the_plan_keeps_the_curve_and_explain_tells_it() -> None:
    _, plan = tuned(samples(costs(16), 0.001))
    plan = Plan.parse(plan.file_text, "file")
    call = {"dtype": "bfloat16", "world": 2, "mode": "graph"}
    said = plan.explain("all_gather", 1 << 26, **call)  # type: ignore[arg-type]
    points = dict(said.curve)
    assert list(points) == [8, 16, 32]
    assert 0.5 < points[8] < 1.0
    assert points[16] == 0
    assert abs(points[32]) < 0.01
    assert f"\n  takes up to 16 multiprocessors; time on so many: 8 +{points[8]:.0%}, 16 +0%, 32 +0%\n" in str(said)


def test_a_limited_call_takes_the_best_on_so_few_and_not_the_usual_one_cut_down() -> None:
    only = {**costs(16), NCCL: lambda size: 2e-6 + size / 400e9}
    only[tiles(8)] = lambda size: 1e-3
    other = Option.of("lsa_ll128_oneshot", {"blocks": 12, "threads": 512, "grain_bytes": 15})
    only[other] = lambda size: 5e-6 + size / 200e9
    _, plan = tuned(samples(only, 0.001))
    chosen = {limit: blocks_at(plan, 1 << 26, limit) for limit in (0, 32, 20, 12, 9, 3)}
    assert chosen[0] == chosen[32] == ("nccl_direct", None)
    assert chosen[20] == ("lsa_oneshot", 16)
    assert chosen[12] == ("lsa_ll128_oneshot", 12)
    assert chosen[9] == chosen[3] == ("lsa_oneshot", 8)  # the fewest that were measured, cut down
    assert blocks_at(plan, 1 << 26, limit=12) == ("lsa_ll128_oneshot", 12)


def test_a_curve_has_only_what_saves_time_and_the_best_of_those_with_more() -> None:
    found = samples({**costs(16), tiles(8): lambda size: 9e-3, tiles(64): lambda size: 8e-3}, 0.0)
    found.sms = {size: dict.fromkeys(found.options, 1) for size in SIZES}
    points = curve(CASE, found, tiles(32), (1 << 25, 1 << 26))
    assert [point.sms for point in points] == [8, 16, 132]
    assert curve(CASE, found, PLAIN, (1 << 25,)) == ()
    assert curve(CASE, replace(found, sms={}), tiles(32), (1 << 25,)) == ()
