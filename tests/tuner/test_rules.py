"""The plan that comes out of tuning: where its rules stand, and that the rest stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from commlib.plan import Plan
from commlib.tuner import Case, Choice, Option, Samples, Settings, Stretch, Verdict, document
from commlib.tuner.case import PLAIN
from commlib.tuner.rules import Table

CASE = Case("all_reduce", torch.float32, "eager", "plain")
ONESHOT, TWOSHOT = Option("shm_oneshot"), Option("shm_twoshot", (("chunk_bytes", 65536),))
CHOICE = Choice((Stretch(ONESHOT, (8, 16), 2048, (1024, 4096), 0.97, 0.2, "shm_twoshot"), Stretch(TWOSHOT, (4096,))))
SAMPLES = Samples({size: {ONESHOT: (1e-6,), TWOSHOT: (2e-6,)} for size in (8, 16, 4096)})
TABLE = Table(CASE, "*", "*", SAMPLES, CHOICE, Verdict(0.001, 0.01, 0.1))
BASE = Plan(
    {
        "schema": "commlib.plan",
        "version": 2,
        "rules": [
            {"op": "all_reduce", "dtype": "bool", "ranges": [{"max_bytes": None, "algorithm": "shm_twoshot"}]},
            {"op": "all_reduce", "ranges": [{"max_bytes": None, "algorithm": "shm_twoshot"}]},
            {"op": "broadcast", "ranges": [{"max_bytes": None, "algorithm": "shm_oneshot"}]},
        ],
    },
    "base",
)


def made(*tables: Table, base: Plan = BASE, world: int = 2) -> Plan:
    return Plan(document(tables, base, world, {"backend": "shm", "device": "a CPU"}, Settings()), "tuned")


def chosen(plan: Plan, num_bytes: int, dtype: str = "float32", world: int = 2, placement: str = "plain") -> str:
    return plan.explain("all_reduce", num_bytes, dtype, world=world, placement=placement).algorithm


def test_new_rules_decide_for_their_world_and_the_rest_stays() -> None:
    plan = made(TABLE)
    assert [chosen(plan, size) for size in (8, 2048, 2049, 1 << 30)] == [*["shm_oneshot"] * 2, *["shm_twoshot"] * 2]
    assert chosen(plan, 8, world=4) == "shm_twoshot"
    assert chosen(plan, 8, "bool") == "shm_twoshot"  # the special rule of the base still comes first
    assert plan.explain("broadcast", 8, world=2).algorithm == "shm_oneshot"
    why = plan.explain("all_reduce", 100, world=2)
    assert (why.gain, why.runner_up, why.high_bytes) == (0.2, "shm_twoshot", 2048)


def test_a_second_run_replaces_the_rules_of_the_first() -> None:
    first = made(TABLE)
    other = replace(TABLE, choice=Choice((Stretch(TWOSHOT, (8, 16, 4096)),)))
    second = made(other, base=first)
    assert chosen(second, 8) == "shm_twoshot"
    assert len(second.rules) == len(first.rules)


def test_what_rules_were_chosen_from_goes_with_them() -> None:
    two = made(TABLE)
    four = made(replace(TABLE, verdict=Verdict(0.002, 0.02, 0.2)), base=two, world=4).document
    names = ["all_reduce float32 eager, 2 ranks", "all_reduce float32 eager, 4 ranks"]
    assert list(four["samples"]) == list(four["method"]["judged"]) == names
    assert four["samples"][names[0]] == two.document["samples"][names[0]]
    assert [four["method"]["judged"][name]["regret"] for name in names] == [0.001, 0.002]


def test_a_type_of_its_own_comes_before_all_types() -> None:
    own = replace(TABLE, dtype="bfloat16", choice=Choice((Stretch(TWOSHOT, (8, 16, 4096)),)))
    for order in ((TABLE, own), (own, TABLE)):
        plan = made(*order)
        assert (chosen(plan, 8, "bfloat16"), chosen(plan, 8)) == ("shm_twoshot", "shm_oneshot")


def test_a_type_that_needs_its_own_rule_no_more_loses_it() -> None:
    own = replace(TABLE, dtype="bfloat16", mode="eager", choice=Choice((Stretch(TWOSHOT, (8, 16, 4096)),)))
    first = made(TABLE, own)
    assert chosen(first, 8, "bfloat16") == "shm_twoshot"
    for serves, expected in (("bfloat16", "shm_oneshot"), ("float16", "shm_twoshot"), ("*", "shm_oneshot")):
        second = made(replace(TABLE, serves=((serves, "eager"),)), base=first)
        assert chosen(second, 8, "bfloat16") == expected
    assert chosen(second, 8, "bool") == "shm_twoshot"  # a rule for all worlds is nobody's here
    assert chosen(made(TABLE, own, base=made(replace(TABLE, serves=(("*", "eager"),)), base=first)), 8, "bfloat16") == (
        "shm_twoshot"
    )


def test_with_a_rule_goes_what_it_was_chosen_from() -> None:
    first = made(
        TABLE, replace(TABLE, case=replace(CASE, dtype=torch.bfloat16), dtype="bfloat16", mode="eager")
    ).document
    names = ["all_reduce float32 eager, 2 ranks", "all_reduce bfloat16 eager, 2 ranks"]
    assert list(first["samples"]) == list(first["method"]["judged"]) == names
    second = made(replace(TABLE, serves=(("bfloat16", "eager"),)), base=Plan(first, "first")).document
    assert list(second["samples"]) == list(second["method"]["judged"]) == names[:1]


def test_rules_of_both_modes_replace_those_of_one_and_the_other_way_round() -> None:
    graph, eager = (replace(TABLE, mode=mode) for mode in ("graph", "eager"))
    for before, after in (((TABLE,), (graph, eager)), ((graph, eager), (TABLE,))):
        plan = made(*after, base=made(*before))
        tuned = [rule for rule in plan.document["rules"] if rule.get("world") == [2, 2]]
        assert [rule.get("mode", "*") for rule in tuned] == [table.mode for table in after][::-1]
    half = [rule.get("mode", "*") for rule in made(graph, base=made(TABLE)).document["rules"]]
    assert half[1:3] == ["graph", "*"]  # eager calls still need the older one


def test_rules_for_what_an_algorithm_refuses_go_with_the_rule_they_were_made_for() -> None:
    vendor = Option("nccl_direct")
    found = Samples({size: {vendor: (1e-6,), ONESHOT: (2e-6,)} for size in (8, 16)})
    case = replace(CASE, dtype=torch.bfloat16, mode="graph")
    stretches = (Stretch(Option("lsa_ll_oneshot"), (8,), 8), Stretch(vendor, (16,)))
    old = Table(case, "*", "graph", found, Choice(stretches), Verdict(0.0, 0.0, None))
    first = made(old)
    exceptions = [rule for rule in first.document["rules"] if rule.get("redop") or rule.get("dtype") == "int16"]
    assert {rule.get("redop", "int16") for rule in exceptions} == {"band", "bor", "bxor", "int16"}
    second = made(replace(old, mode="*", choice=Choice((Stretch(Option("lsa_ll_oneshot"), (8, 16)),))), base=first)
    left = [rule for rule in second.document["rules"] if rule.get("world") == [2, 2] and rule.get("mode") == "graph"]
    assert left == []
    measured = replace(old, case=replace(case, dtype=torch.float16), dtype="float16")  # in a run that measured it, too
    third = made(replace(old, mode="*"), base=made(measured))
    assert [rule["mode"] for rule in third.document["rules"] if rule.get("dtype") == "float16"] == ["graph"]


def test_modes_of_their_own_come_before_both() -> None:
    graph = replace(TABLE, mode="graph", choice=Choice((Stretch(TWOSHOT, (8, 16, 4096)),)))
    plan = made(TABLE, graph)
    by_mode = [plan.explain("all_reduce", 8, world=2, mode=mode).algorithm for mode in ("eager", "graph")]
    assert by_mode == ["shm_oneshot", "shm_twoshot"]


def test_beyond_the_measured_sizes_the_vendor_runs() -> None:
    vendor = Option("nccl_direct")
    found = Samples({size: {ONESHOT: (1e-6,), TWOSHOT: (2e-6,), vendor: (3e-6,)} for size in (8, 16, 4096)})
    plan = made(replace(TABLE, samples=found))
    assert (chosen(plan, 4096), chosen(plan, 4097)) == ("shm_twoshot", "nccl_direct")


@pytest.mark.parametrize("num_bytes", [8, 4096])
def test_a_symmetric_table_leaves_to_the_plain_one_what_it_does_best(num_bytes: int) -> None:
    zero_copy = Option("shm_symmetric")
    found = Samples(
        {size: {PLAIN: (1e-6,), zero_copy: (2e-6,)} for size in (8, 4096)}, plain={8: ONESHOT, 4096: TWOSHOT}
    )
    choice = Choice((Stretch(PLAIN, (8,), 64), Stretch(zero_copy, (4096,))))
    symmetric = Table(replace(CASE, placement="symmetric"), "*", "*", found, choice, Verdict(0.0, 0.0, None))
    expected = {8: "shm_oneshot", 4096: "shm_symmetric"}[num_bytes]
    assert chosen(made(TABLE, symmetric), num_bytes, placement="symmetric") == expected


@pytest.mark.parametrize(("dtype", "redop"), [("int16", "sum"), ("bool", "max"), ("int32", "bxor"), ("float32", "sum")])
def test_what_the_vendor_does_not_reduce_never_goes_to_it(dtype: str, redop: str) -> None:
    ours, vendor = Option("lsa_oneshot"), Option("nccl_direct")
    found = Samples({size: {ours: (1e-6,), vendor: (3e-6,)} for size in (8, 4096)})
    table = replace(TABLE, samples=found, choice=Choice((Stretch(ours, (8, 4096)),)))
    why = made(table).explain("all_reduce", 1 << 30, dtype, redop, world=2)
    assert why.algorithm == ("nccl_direct" if dtype == "float32" else "lsa_oneshot")
