"""The plan that comes out of tuning: where its rules stand, and that the rest stays."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib.plan import Plan
from commlib.tools.tune import beside
from commlib.tools.tune.case import PLAIN, Case, Option
from commlib.tools.tune.choose import Choice, Settings, Stretch
from commlib.tools.tune.judge import Verdict
from commlib.tools.tune.rules import Table, plan_of
from commlib.tools.tune.samples import Samples
from tests.plan import documents

CASE = Case("all_reduce", torch.float32, "eager", "plain")
ONESHOT, TWOSHOT = Option("shm_oneshot"), Option("shm_twoshot", (("chunk_bytes", 65536),))
CHOICE = Choice((Stretch(ONESHOT, (8, 16), 2048, (1024, 4096), 0.97, 0.2, "shm_twoshot"), Stretch(TWOSHOT, (4096,))))
SAMPLES = Samples({size: {ONESHOT: (1e-6,), TWOSHOT: (2e-6,)} for size in (8, 16, 4096)})
TABLE = Table(CASE, "*", "*", SAMPLES, CHOICE, Verdict(0.001, 0.01, 0.1))
BASE = documents.plan_of(
    {"op": "all_reduce", "dtype": "bool", "ranges": [{"algorithm": "shm_twoshot"}]},
    {"op": "all_reduce", "ranges": [{"algorithm": "shm_twoshot"}]},
    {"op": "broadcast", "ranges": [{"algorithm": "shm_oneshot"}]},
)


def made(*tables: Table, base: Plan = BASE, world: int = 2) -> Plan:
    return plan_of(tables, base, world, {"backend": "shm", "device": "a CPU"}, Settings(), "tuned")


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


def samples_of(*tables: Table, before: dict[str, Any] | None = None, world: int = 2) -> dict[str, Any]:
    return beside.document(tables, before or {}, world, {"backend": "shm", "device": "a CPU"})["cases"]


def test_what_rules_were_chosen_from_goes_with_them() -> None:
    two = samples_of(TABLE)
    four = samples_of(replace(TABLE, verdict=Verdict(0.002, 0.02, 0.2)), before=two, world=4)
    names = ["all_reduce float32 eager, 2 ranks", "all_reduce float32 eager, 4 ranks"]
    assert list(four) == names
    assert four[names[0]] == two[names[0]]
    assert [four[name]["judged"]["regret"] for name in names] == [0.001, 0.002]


def test_a_file_of_samples_has_every_median_and_reads_back(tmp_path: Path) -> None:
    found = beside.document([TABLE], {}, 2, {"backend": "shm", "device": "a CPU"})
    path = tmp_path / "p.samples.json"
    path.write_text(json.dumps(found))
    assert beside.read(path) == found
    ((world, cases),) = beside.measured(found).items()
    ((case, (samples, serves_all)),) = cases.items()
    assert (world, case, serves_all) == (2, CASE, True)
    assert samples.times == SAMPLES.times
    path.write_text('{"schema": "commlib.plan"}')
    with pytest.raises(ValueError, match=r"p\.samples\.json is no file of samples, version 1; give the"):
        beside.read(path)


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
    again = made(TABLE, own, base=made(replace(TABLE, serves=(("*", "eager"),)), base=first))
    assert chosen(again, 8, "bfloat16") == "shm_twoshot"


def test_with_a_rule_goes_what_it_was_chosen_from() -> None:
    own = replace(TABLE, case=replace(CASE, dtype=torch.bfloat16), dtype="bfloat16", mode="eager")
    first = samples_of(TABLE, own)
    names = ["all_reduce float32 eager, 2 ranks", "all_reduce bfloat16 eager, 2 ranks"]
    assert list(first) == names
    assert list(samples_of(replace(TABLE, serves=(("bfloat16", "eager"),)), before=first)) == names[:1]


def test_rules_of_both_modes_replace_those_of_one_and_the_other_way_round() -> None:
    graph, eager = (replace(TABLE, mode=mode) for mode in ("graph", "eager"))
    for before, after in (((TABLE,), (graph, eager)), ((graph, eager), (TABLE,))):
        plan = made(*after, base=made(*before))
        tuned = [rule for rule in plan.document["rules"] if rule.get("world") == [2, 2]]
        assert [rule.get("mode", "*") for rule in tuned] == [table.mode for table in after][::-1]
    half = [rule.get("mode", "*") for rule in made(graph, base=made(TABLE)).document["rules"]]
    assert half[1:3] == ["graph", "*"]  # eager calls still need the older one


def test_a_fallback_for_what_an_algorithm_refuses_goes_with_its_rule() -> None:
    ours, other, vendor = Option("lsa_ll_oneshot"), Option("lsa_oneshot", (("blocks", 132),)), Option("nccl_direct")
    found = Samples({size: {vendor: (1e-6,), ours: (4e-6,), other: (2e-6,)} for size in (8, 16)})
    case = replace(CASE, dtype=torch.bfloat16, mode="graph")
    choice = Choice((Stretch(ours, (8,), 8), Stretch(vendor, (16,))))
    old = Table(case, "*", "graph", found, choice, Verdict(0.0, 0.0, None))
    first = made(old)
    (rule,) = [rule for rule in first.document["rules"] if "fallback" in rule]
    assert rule["fallback"] == [{"algorithm": "lsa_oneshot", "params": {"blocks": 132}}]  # the best of those that can
    second = made(replace(old, mode="*", choice=Choice((Stretch(ours, (8, 16)),))), base=first)
    left = [rule for rule in second.document["rules"] if rule.get("world") == [2, 2]]
    assert [(rule.get("mode"), rule.get("fallback")) for rule in left] == [(None, None)]
    measured = replace(old, case=replace(case, dtype=torch.float16), dtype="float16")  # in a run that measured it, too
    third = made(replace(old, mode="*"), base=made(measured))
    assert [rule["mode"] for rule in third.document["rules"] if rule.get("dtype") == "float16"] == ["graph"]


def test_modes_of_their_own_come_before_both() -> None:
    graph = replace(TABLE, mode="graph", choice=Choice((Stretch(TWOSHOT, (8, 16, 4096)),)))
    plan = made(TABLE, graph)
    by_mode = [plan.explain("all_reduce", 8, world=2, mode=mode).algorithm for mode in ("eager", "graph")]
    assert by_mode == ["shm_oneshot", "shm_twoshot"]


def test_beyond_the_measured_sizes_runs_what_was_best_at_the_largest() -> None:
    vendor = Option("nccl_direct")
    found = Samples({size: {ONESHOT: (1e-6,), TWOSHOT: (2e-6,), vendor: (3e-6,)} for size in (8, 16, 4096)})
    plan = made(replace(TABLE, samples=found))
    assert (chosen(plan, 4096), chosen(plan, 4097), chosen(plan, 1 << 40)) == ("shm_twoshot",) * 3


def test_a_symmetric_table_leaves_to_the_plain_one_what_it_does_best() -> None:
    zero_copy, plain = Option("shm_symmetric"), {8: ONESHOT, 4096: TWOSHOT}
    found = Samples({size: {PLAIN: (1e-6,), zero_copy: (2e-6,)} for size in plain}, plain=plain)
    choice = Choice((Stretch(PLAIN, (8,), 64), Stretch(zero_copy, (4096,))))
    symmetric = Table(replace(CASE, placement="symmetric"), "*", "*", found, choice, Verdict(0.0, 0.0, None))
    for num_bytes, expected in ((8, "shm_oneshot"), (4096, "shm_symmetric")):
        assert chosen(made(TABLE, symmetric), num_bytes, placement="symmetric") == expected


@pytest.mark.parametrize(("dtype", "redop"), [("int16", "sum"), ("bool", "max"), ("int32", "bxor"), ("float32", "sum")])
def test_what_the_vendor_does_not_reduce_never_goes_to_it(dtype: str, redop: str) -> None:
    ours, vendor = Option("lsa_oneshot"), Option("nccl_direct")
    found = Samples({8: {ours: (1e-6,), vendor: (3e-6,)}, 4096: {ours: (3e-6,), vendor: (1e-6,)}})
    table = replace(TABLE, samples=found, choice=Choice((Stretch(ours, (8,), 64), Stretch(vendor, (4096,)))))
    base = Plan({**BASE.document, "rules": BASE.document["rules"][1:]}, "base")  # without a rule of bool's own
    why = made(table, base=base).explain("all_reduce", 1 << 30, dtype, redop, world=2)
    assert why.algorithm == ("nccl_direct" if dtype == "float32" else "lsa_oneshot")
    assert bool(why.passed) == (dtype != "float32")
