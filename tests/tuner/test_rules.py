"""The plan that comes out of tuning: where its rules stand, and that the rest stays."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commlib.plan import Plan
from commlib.tools.tune.case import PLAIN, Case, Option, Samples, read_samples
from commlib.tools.tune.choose import Choice, Settings
from commlib.tools.tune.rules import Setup, Table, rule_of
from tests.plan import documents

CASE = Case("all_reduce", torch.float32, "eager", "plain")
ONESHOT, TWOSHOT = Option("shm_oneshot"), Option("shm_twoshot", (("chunk_bytes", 65536),))
CHOICE = {8: ONESHOT, 16: ONESHOT, 4096: TWOSHOT}
SAMPLES = Samples({size: {ONESHOT: (1e-6,), TWOSHOT: (2e-6,)} for size in CHOICE})
TABLE = Table(CASE, "*", "*", SAMPLES, CHOICE, lambda size: None)
ALWAYS = dict.fromkeys(CHOICE, TWOSHOT)
BASE = documents.plan_of(
    {"op": "all_reduce", "dtype": "bool", "ranges": [{"algorithm": "shm_twoshot"}]},
    {"op": "all_reduce", "ranges": [{"algorithm": "shm_twoshot"}]},
    {"op": "broadcast", "ranges": [{"algorithm": "shm_oneshot"}]},
)


def setup(base: Plan = BASE, world: int = 2, by_mode: bool = False) -> Setup:
    return Setup(base, world, {"backend": "shm", "device": "a CPU"}, by_mode, Settings())


def made(*tables: Table, base: Plan = BASE) -> Plan:
    for table in tables:
        base = setup(base).plan(table, "tuned")
    return base


def chosen(plan: Plan, num_bytes: int, dtype: str = "float32", world: int = 2, placement: str = "plain") -> str:
    return plan.explain("all_reduce", num_bytes, dtype, world=world, placement=placement).algorithm


def test_new_rules_decide_for_their_world_and_the_rest_stays() -> None:
    plan = made(TABLE)
    sizes = (8, 248, 264, 4096, 1 << 30)  # a range ends halfway between two sizes, and the last one never
    assert [chosen(plan, size) for size in sizes] == [*["shm_oneshot"] * 2, *["shm_twoshot"] * 3]
    assert chosen(plan, 8, world=4) == "shm_twoshot"
    assert chosen(plan, 8, "bool") == "shm_twoshot"  # the special rule of the base still comes first
    assert plan.explain("broadcast", 8, world=2).algorithm == "shm_oneshot"
    why = plan.explain("all_reduce", 100, world=2)
    assert (why.gain, why.runner_up, why.high_bytes) == (1.0, "shm_twoshot", 256)


def test_a_second_run_replaces_the_rules_of_the_first() -> None:
    first = made(TABLE)
    second = made(replace(TABLE, choice=ALWAYS), base=first)
    assert chosen(second, 8) == "shm_twoshot"
    assert len(second.rules) == len(first.rules)


def test_beyond_a_largest_size_of_the_users_the_plan_in_force_stays() -> None:
    first = made(TABLE, base=Plan.threshold(1 << 20, below="shm_oneshot", above="shm_twoshot", base=BASE, world=2))
    again = replace(setup(first), until=4096).plan(replace(TABLE, choice=dict.fromkeys(CHOICE, ONESHOT)), "tuned")
    assert [chosen(again, size) for size in (8, 4096, 4104, 1 << 30)] == ["shm_oneshot"] * 2 + ["shm_twoshot"] * 2
    shorter = replace(setup(again), until=16).plan(replace(TABLE, choice={8: TWOSHOT, 16: TWOSHOT}), "tuned")
    assert [chosen(shorter, size) for size in (16, 24, 4104)] == ["shm_twoshot", "shm_oneshot", "shm_twoshot"]
    nothing = Plan({**BASE.document, "rules": []}, "nothing")
    assert chosen(replace(setup(nothing), until=4096).plan(TABLE, "tuned"), 1 << 30) == "shm_twoshot"


def test_a_limit_between_two_sizes_that_stay_does_not_move() -> None:
    plan = Plan.threshold(3000, below="shm_oneshot", above="shm_twoshot", base=BASE, world=2)
    found = Samples({size: {ONESHOT: (1e-6,), Option("shm_twoshot"): (1e-6,)} for size in (8, 2048, 4096)})
    table = setup(plan).table(CASE, [CASE], found)
    assert table.changes == []
    assert [entry.max_bytes for entry in rule_of(table, 2).ranges] == [3000, None]


def test_a_type_keeps_the_rule_for_all_where_that_is_good_and_gets_its_own_where_not() -> None:
    narrow = replace(CASE, dtype=torch.bfloat16)
    for factor, types in ((1.03, ["*"]), (1.5, ["bfloat16", "*"])):
        plan = made(TABLE)
        found = Samples({size: {ONESHOT: (factor * 1e-6,), TWOSHOT: (1e-6,)} for size in CHOICE})
        table = setup(plan).table(narrow, [CASE, narrow], found)
        plan = setup(plan).plan(table, "tuned") if table.changes else plan
        assert [rule.dtype for rule in plan.rules if rule.world == (2, 2)] == types
        assert chosen(plan, 8, "bfloat16") == ("shm_oneshot" if factor < 1.05 else "shm_twoshot")
        assert chosen(plan, 8, "float16") == "shm_oneshot"


def test_changes_are_neighbouring_sizes_where_another_option_runs_than_now() -> None:
    now = {8: TWOSHOT, 16: ONESHOT, 4096: ONESHOT}
    assert replace(TABLE, now=now.get).changes == [([8], TWOSHOT, ONESHOT), ([4096], ONESHOT, TWOSHOT)]
    assert replace(TABLE, now=CHOICE.get).changes == []
    assert TABLE.changes[0] == ([8, 16], None, ONESHOT)


def test_what_runs_now_is_the_same_option_where_its_plan_names_a_default() -> None:
    entry = {"algorithm": "shm_oneshot", "params": {"chunk_bytes": 131072}}
    base = documents.plan_of({"op": "all_reduce", "ranges": [entry]})
    assert setup(base).incumbent(CASE, 8) == ONESHOT


def test_modes_have_rules_of_their_own_on_gpus() -> None:
    both = replace(CASE, mode="graph"), CASE
    found = {"graph": Samples({8: {ONESHOT: (1e-6,), TWOSHOT: (2e-6,)}}), "eager": Samples({8: {TWOSHOT: (1e-6,)}})}
    plan = BASE
    for case in both:
        within = setup(plan, by_mode=True)
        plan = within.plan(within.table(case, both, found[case.mode]), "tuned")
    by_mode = {mode: plan.explain("all_reduce", 8, world=2, mode=mode).algorithm for mode in found}
    assert by_mode == {"graph": "shm_oneshot", "eager": "shm_twoshot"}
    assert {table.mode for table in (setup().table(case, both, found[case.mode]) for case in both)} == {"*"}


def test_a_file_of_samples_has_every_median_and_reads_back(tmp_path: Path) -> None:
    two = setup().samples([TABLE], {})
    four = setup(world=4).samples([TABLE], two["cases"])
    assert list(four["cases"]) == ["all_reduce float32 eager, 2 ranks", "all_reduce float32 eager, 4 ranks"]
    path = tmp_path / "p.samples.json"
    path.write_text(json.dumps(four))
    document, by_world = read_samples(path)
    assert document == four
    assert {world: {case: of.times for case, of in cases.items()} for world, cases in by_world.items()} == {
        world: {CASE: SAMPLES.times} for world in (2, 4)
    }
    path.write_text('{"schema": "commlib.plan"}')
    with pytest.raises(ValueError, match=r"p\.samples\.json is no file of samples, version 1; give one"):
        read_samples(path)


def test_a_fallback_for_what_an_algorithm_refuses_goes_with_its_rule() -> None:
    ours, other, vendor = Option("lsa_ll_oneshot"), Option("lsa_oneshot", (("blocks", 132),)), Option("nccl_direct")
    found = Samples({size: {vendor: (1e-6,), ours: (4e-6,), other: (2e-6,)} for size in (8, 16)})
    case = replace(CASE, dtype=torch.bfloat16, mode="graph")
    table = replace(TABLE, case=case, samples=found, choice={8: ours, 16: vendor})
    (entry,) = rule_of(table, 2).fallback
    assert (entry.algorithm, entry.params) == ("lsa_oneshot", {"blocks": 132})  # the best of those that can
    assert rule_of(replace(table, choice={8: ours, 16: ours}), 2).fallback == ()


def test_a_symmetric_table_leaves_to_the_plain_one_what_it_does_best() -> None:
    zero_copy, plain = Option("shm_symmetric"), {8: ONESHOT, 4096: TWOSHOT}
    found = Samples({size: {PLAIN: (1e-6,), zero_copy: (2e-6,)} for size in plain}, plain=plain)
    choice: Choice = {8: PLAIN, 4096: zero_copy}
    symmetric = replace(TABLE, case=replace(CASE, placement="symmetric"), samples=found, choice=choice)
    for num_bytes, expected in ((8, "shm_oneshot"), (4096, "shm_symmetric")):
        assert chosen(made(TABLE, symmetric), num_bytes, placement="symmetric") == expected


@pytest.mark.parametrize(("dtype", "redop"), [("int16", "sum"), ("bool", "max"), ("int32", "bxor"), ("float32", "sum")])
def test_what_the_vendor_does_not_reduce_never_goes_to_it(dtype: str, redop: str) -> None:
    ours, vendor = Option("lsa_oneshot"), Option("nccl_direct")
    found = Samples({8: {ours: (1e-6,), vendor: (3e-6,)}, 4096: {ours: (3e-6,), vendor: (1e-6,)}})
    table = replace(TABLE, samples=found, choice={8: ours, 4096: vendor})
    base = Plan({**BASE.document, "rules": BASE.document["rules"][1:]}, "base")  # without a rule of bool's own
    why = made(table, base=base).explain("all_reduce", 1 << 30, dtype, redop, world=2)
    assert why.algorithm == ("nccl_direct" if dtype == "float32" else "lsa_oneshot")
    assert bool(why.passed) == (dtype != "float32")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.float64], ids=str)
def test_sizes_are_a_grid_of_which_large_ones_divide_as_tensors_of_models_do(op, dtype):
    counts = Case(op, dtype, "graph", "plain").counts(2, 256, 1 << 28)
    sizes = list(counts)
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 256 and sizes[-1] == 1 << 28
    assert all(1.3 < later / size < 1.6 for size, later in itertools.pairwise(sizes))
    assert all(count % 16 == 0 for count in counts.values() if count >= 1024)
    assert all(count * dtype.itemsize % 16 == 0 for count in counts.values())
    assert {1 << n for n in range(8, 29)} <= set(sizes)


def test_the_smallest_sample_has_16_bytes_for_each_rank() -> None:
    counts = Case("all_gather", torch.bfloat16, "graph", "plain").counts(4, 1, 128)
    assert counts == {64: 8, 128: 16}
