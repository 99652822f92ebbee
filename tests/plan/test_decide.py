"""What a plan decides: ranges, rules, fallbacks and pins; and the native table that decides it."""

from itertools import product
from typing import Any

import pytest

from commlib._native import PlanTable
from commlib.native import library
from commlib.plan import Plan
from commlib.plan.rules import Point, Query, Range
from commlib.plan.search import shipped_plan
from commlib.plan.table import Match, Table, plan_text, rows_text
from tests.plan.documents import HEAD, plan_of


def test_an_explanation_has_crossovers_gain_rule_file_and_match() -> None:
    small = {"max_bytes": 8192, "algorithm": "nccl_direct"}
    middle = {"max_bytes": 65536, "algorithm": "lsa_oneshot", "params": {"blocks": 8}}
    measured = {"gain": 0.31, "runner_up": "nccl_direct"}
    rule = {"op": "all_reduce", "ranges": [small, middle | measured, {"algorithm": "nccl_direct"}]}
    document = {**HEAD, "fingerprint": {"backend": "nccl", "device": "H", "nccl": "2.28.9"}, "rules": [rule]}
    plan = Plan(document, "p.json").fitted({"backend": "nccl", "device": "H", "nccl": "2.30.7"})
    assert str(plan.explain("all_reduce", 1 << 14, world=2)).splitlines() == [
        "all_reduce of 16K runs lsa_oneshot: chosen by the plan p.json, measured elsewhere",
        "  for sizes above 8K, up to 64K, with blocks=8",
        "  takes up to 8 multiprocessors",
        "  measured 31% faster than nccl_direct",
        f"  rules[0][1] of p.json (plan {plan.digest}, match 2/3: NCCL 2.28.9, here 2.30.7)",
    ]


@pytest.mark.parametrize(
    ("gain", "text"), [(0.306, "31% faster than shm_x"), (-0.0029, "as fast as shm_x"), (-0.02, "2% slower than shm_x")]
)
def test_a_gain_is_described_by_its_size(gain: float, text: str) -> None:
    entry = {"algorithm": "shm_oneshot", "gain": gain, "runner_up": "shm_x"}
    plan = Plan({**HEAD, "rules": [{"op": "all_reduce", "ranges": [entry]}]}, "p.json")
    assert f"  measured {text}" in str(plan.explain("all_reduce", 8, world=2)).splitlines()


def test_a_match_counts_the_keys_that_the_plan_has() -> None:
    assert str(Match.of({}, {"cpu": "x"})) == "no fingerprint"
    assert Match.of({"cpu": "x", "torch": None, "commlib": "0"}, {"cpu": "x", "torch": "2"}) == Match(1, 1)


def test_what_cannot_serve_a_call_is_passed_over_for_the_fallback_then_for_the_next_rule() -> None:
    ranges = [{"max_bytes": 64, "algorithm": "nccl_staged"}, {"algorithm": "nccl_direct", "align": 4}]
    fallback = [{"algorithm": "nccl_staged"}, {"algorithm": "lsa_ll_oneshot", "params": {"blocks": 4}, "align": 8}]
    plan = plan_of(
        {"op": "all_reduce", "ranges": ranges, "fallback": fallback},
        {"op": "all_reduce", "ranges": [{"algorithm": "lsa_ll128_oneshot"}]},
    )
    for num_bytes, dtype, expected in (
        (1000, "float32", ("nccl_direct", "rules[0][1]", 0)),
        (1001, "float32", ("nccl_staged", "rules[0].fallback[0]", 1)),
        (1000, "int16", ("lsa_ll_oneshot", "rules[0].fallback[1]", 2)),
        (1001, "int16", ("lsa_ll128_oneshot", "rules[1][0]", 3)),
    ):
        why = plan.explain("all_reduce", num_bytes, dtype, world=2)
        assert (why.algorithm, why.rule, len(why.passed)) == expected
    why = plan.explain("all_reduce", 1000, "int16", world=2)
    assert (why.params, why.low_bytes, why.high_bytes) == ({"blocks": 4}, 65, None)
    assert "  passed over nccl_direct: NCCL does not reduce torch.int16 by sum" in str(why).splitlines()
    assert "lsa_ll_oneshot: 1001 B is no multiple of 8" in plan.explain("all_reduce", 1001, "int16", world=2).passed
    gone = Table(plan, 2, has_arena=False)  # what needs symmetric memory serves nothing
    with pytest.raises(
        ValueError,
        match=r"no rule for all_reduce of 1000 B of int16.*NCCL does not reduce torch.int16 by sum; there is no symm",
    ):
        gone.explain(Query("all_reduce", 1000, "int16", "sum", 2))


def test_pinning_a_symmetric_algorithm_leaves_plain_tensors_alone() -> None:
    plan = Plan.only({"all_reduce": "shm_symmetric"}, base=shipped_plan("shm"))
    assert plan.explain("all_reduce", 8, world=2, placement="symmetric").algorithm == "shm_symmetric"
    assert plan.explain("all_reduce", 8, world=2).algorithm == "shm_oneshot"


def test_what_a_symmetric_rule_and_the_plain_one_behind_it_pass_over_is_explained_in_order() -> None:
    symmetric = [{"max_bytes": 64, "algorithm": "nccl_symmetric"}, {"algorithm": "lsa_oneshot"}]
    plan = plan_of(
        {"op": "all_reduce", "placement": "symmetric", "ranges": symmetric},
        {"op": "all_reduce", "ranges": [{"algorithm": "nccl_direct"}], "fallback": [{"algorithm": "lsa_oneshot"}]},
    )
    both, plain = ["nccl_symmetric", "nccl_direct"], ["nccl_direct"]
    for num_bytes, passed in ((8, both), (64, both), (65, plain), (4096, plain)):
        why = plan.explain("all_reduce", num_bytes, "int16", world=2, placement="symmetric")
        assert (why.rule, why.high_bytes) == ("rules[1].fallback[0]", None)
        assert [text.partition(":")[0] for text in why.passed] == passed


def test_explain_says_what_takes_no_multiprocessors() -> None:
    plan = Plan.only({"all_gather": "engine_pull"}, base=shipped_plan("nccl"))
    for placement, text in (("symmetric", "takes no multiprocessors"), ("plain", "takes up to 128 multiprocessors")):
        assert f"  {text}" in str(plan.explain("all_gather", 1 << 26, world=2, placement=placement))


def test_explain_says_what_an_asynchronous_call_takes_and_why() -> None:
    plan, call = shipped_plan("nccl-nvidia-h100-80gb-hbm3"), {"world": 2, "async_op": True}

    def line(op: str, num_bytes: int, **more: Any) -> str:
        lines = str(plan.explain(op, num_bytes, **call, **more)).splitlines()
        return next((each for each in lines if "asynchronous" in each), "").strip()

    assert "the knee of its curve, 24 of 132 multiprocessors" in line("all_reduce", 1 << 26)
    assert "measured 44% slower than on 128" in line("all_gather", 1 << 26, placement="symmetric")
    assert "as a synchronous call, as it was not measured on fewer" in line("all_reduce", 4096)
    curve = [{"sms": 8, "algorithm": "lsa_oneshot", "params": {"blocks": 8}, "slower": 0.1}]
    plan = plan_of({"op": "all_gather", "ranges": [{"algorithm": "lsa_oneshot", "curve": curve}]})
    assert "as a synchronous call, which is the knee of its curve" in line("all_gather", 1 << 26)
    assert line("all_gather", 1 << 26, max_sms=8) == "", "a limit decides"
    plan = shipped_plan("shm")
    assert line("all_reduce", 1 << 26) == "", "CPUs have no multiprocessors"


def test_a_knee_depends_on_the_multiprocessors_of_the_gpu() -> None:
    query = Query("all_reduce", 1 << 26, "float32", "sum", 2)
    for multiprocessors, sms in ((132, 24), (24, 132)):
        table = Table(shipped_plan("nccl"), 2, multiprocessors=multiprocessors)
        assert table.explain(query, async_op=True).sms == sms


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_large_asynchronous_call_leaves_most_of_any_gpu(op: str, world: int) -> None:
    plan = shipped_plan("nccl")
    assert plan.explain(op, 1 << 26, world=world).sms >= 128
    assert plan.explain(op, 1 << 26, world=world, async_op=True).sms <= 24


def test_a_pin_keeps_the_parameters_of_the_base_there_or_of_the_nearest_size() -> None:
    one, other, third = "lsa_ll_oneshot", "lsa_oneshot", "nccl_direct"
    ranges = [
        {"max_bytes": 1024, "algorithm": one, "params": {"blocks": 1}},
        {"max_bytes": 2048, "algorithm": other},
        {"max_bytes": 1 << 20, "algorithm": other, "params": {"blocks": 9}},
        {"max_bytes": 3 << 19, "algorithm": third},  # nearer to the range before, as a ratio, than the first one is
        {"max_bytes": 1 << 22, "algorithm": one, "params": {"blocks": 2}},
    ]
    op, last = "all_reduce", {"op": "all_reduce", "ranges": [{"algorithm": third}]}
    base = plan_of({"op": op, "world": [1, 2], "ranges": ranges}, last)
    pinned = Plan.only({op: one}, base=base)
    sizes = (8, 2048, 4096, 1 << 22, 1 << 30)
    assert [pinned.explain(op, n, world=2).params.get("blocks") for n in sizes] == [1, 1, 2, 2, 2]
    assert {pinned.explain(op, n, world=2).algorithm for n in sizes} == {one}
    # The rule for more ranks names it nowhere, and overlaps with one that does.
    assert pinned.explain(op, 8, world=7).params == {"blocks": 1}
    assert Plan.only({op: one}, base=base, params={}).explain(op, 8, world=2).params == {}
    assert Plan.only({op: third}, base=base).explain(op, 8, world=2).params == {}


def test_the_digest_follows_the_content_not_the_spelling() -> None:
    rule = {"op": "reduce", "ranges": [{"algorithm": "a"}]}
    swapped = dict(reversed(list(rule.items())))
    assert plan_of(rule).digest == plan_of(swapped).digest
    assert plan_of(rule).digest != plan_of({**rule, "dtype": "float32"}).digest
    assert Plan.parse(plan_of(rule).file_text, "x").digest == plan_of(rule).digest
    plan = plan_of(rule)
    digest = plan.digest  # kept from now on
    assert plan.completed(plan_of({**rule, "dtype": "float32"})).digest != digest
    prints = [{"fingerprint": {"backend": "shm", "device": name}} for name in "ab"]
    assert len({Plan({**HEAD, **more, "rules": [rule]}, "here").digest for more in ({}, *prints)}) == 3


def test_on_fewer_multiprocessors_the_curve_is_relative_to_what_runs_there() -> None:
    curve = tuple(Point(sms=sms, algorithm="a", slower=slower) for sms, slower in ((4, 3.0), (8, 1.0), (16, 0.5)))
    few = Range(algorithm="b", curve=curve).on(curve[1])
    assert [(point.sms, point.slower) for point in few.curve] == [(4, 1.0)]  # 4 times as long, of twice


def test_pins_on_top_of_pins_do_not_multiply() -> None:
    base = plan = shipped_plan("shm")
    grown = []
    for name in ["shm_oneshot", "shm_twoshot"] * 4:
        before, plan = plan, Plan.only({"all_reduce": name}, base=plan)
        grown.append(len(plan.rules) - len(before.rules))
    assert len(set(grown[1:])) == 1
    once = Plan.only({"all_reduce": "shm_twoshot"}, base=base)
    for size in (64, 8192, 1 << 20):
        assert plan.explain("all_reduce", size, world=2).params == once.explain("all_reduce", size, world=2).params


def test_a_type_that_only_torch_has_is_moved_as_bytes_and_not_reduced() -> None:
    plan = shipped_plan("shm")
    moved, as_bytes = (plan.explain("all_gather", 8, dtype, world=2).algorithm for dtype in ("complex32", "uint8"))
    assert moved == as_bytes
    with pytest.raises(ValueError, match="there is no sum of complex32"):
        plan.explain("all_reduce", 8, "complex32", world=2)


RULE = "rule op=all_reduce placement=plain mode=* dtype=* redop=*"


def table_of(text: str) -> PlanTable:
    made = library.open_plan(rows_text("shm", 2), True)
    made.set(text, 0)
    return made


def chosen(table: PlanTable, num_bytes: int = 8, dtype: str = "float32", symmetric: bool = False) -> str:
    return table.choose("all_reduce", dtype, "sum", num_bytes, symmetric, False)


def test_a_plan_may_have_more_rules_than_two_bytes_can_count() -> None:
    rule = f"{RULE.replace('dtype=*', 'dtype=int16')}\nrange algorithm=shm_twoshot\n"
    assert chosen(table_of(rule * 70_000 + f"{RULE}\nrange algorithm=shm_oneshot")) == "shm_oneshot"


def test_a_plan_that_is_refused_changes_nothing() -> None:
    table = table_of(f"{RULE}\nrange algorithm=shm_oneshot")
    with pytest.raises(ValueError, match=r"rules\[7\]: all_reduce has no algorithm 'shm_fast' here"):
        table.set(f"where rules[7]\n{RULE}\nrange algorithm=shm_fast", 0)
    assert chosen(table) == "shm_oneshot"


def test_a_rule_may_be_for_one_type_and_one_reduction() -> None:
    rules = [f"{RULE}\nrange algorithm=shm_{name}" for name in ("twoshot", "oneshot")]
    table = table_of("\n".join([rules[0].replace("dtype=* redop=*", "dtype=float32 redop=max"), rules[1]]))
    calls = product(("float32", "int16"), ("max", "sum"))
    answers = [table.choose("all_reduce", dtype, redop, 8, False, False) for dtype, redop in calls]
    assert answers == ["shm_twoshot", *["shm_oneshot"] * 3]


def test_a_range_may_be_of_one_size() -> None:
    ends = [(64, "oneshot"), (65, "twoshot"), (99, "oneshot")]
    ranges = [f"range algorithm=shm_{name} max_bytes={end}" for end, name in ends]
    table = table_of("\n".join([RULE, *ranges]))
    assert [chosen(table, size) for size in (64, 65, 66)] == [f"shm_{name}" for _, name in ends]


def test_an_alignment_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="align is 0; 1 takes every size"):
        table_of(f"{RULE}\nrange algorithm=shm_oneshot align=0")


def test_a_row_bounds_what_a_plan_may_say() -> None:
    for op, algorithm, params, message in (
        ("broadcast", "shm_twoshot", {}, "broadcast has no algorithm 'shm_twoshot' on shm"),
        ("barrier", "shm_oneshot", {"hot": 1}, r"unknown params \['hot'\]; shm_oneshot knows no"),
        ("gather", "shm_oneshot", {"hot": 2}, "hot 2 is not between 0 and 1"),
    ):
        plan = plan_of({"op": op, "ranges": [{"algorithm": algorithm, "params": params}]})
        with pytest.raises(ValueError, match=rf"rules\[0\]: {message}"):
            plan_text(plan.rules, "shm")


def algorithms(plan: Plan, sizes: tuple[int, ...], dtype: str = "float32", placement: str = "plain") -> list[str]:
    return [chosen(table_of(plan_text(plan.rules, "shm")), size, dtype, placement == "symmetric") for size in sizes]


def test_types_that_a_symmetric_rule_names_have_a_list_of_their_own() -> None:
    for dtype, first in product(("int16", "float32"), ("shm_oneshot", "shm_twoshot")):
        symmetric = {"placement": "symmetric", "dtype": dtype, "ranges": [{"algorithm": "shm_symmetric"}]}
        plan = plan_of({"op": "all_reduce", **symmetric}, {"op": "all_reduce", "ranges": [{"algorithm": first}]})
        for other in ("int16", "float32", "bool"):
            expected = "shm_symmetric" if other == dtype else first
            assert algorithms(plan, (8, 1 << 30), other, "symmetric") == [expected] * 2
            assert algorithms(plan, (8, 1 << 30), other) == [first] * 2


def test_a_fallback_runs_at_the_sizes_of_its_range_only() -> None:
    ranges = [
        {"max_bytes": 64, "algorithm": "shm_oneshot", "align": 16},
        {"max_bytes": 4096, "algorithm": "shm_twoshot"},
    ]
    first = {"op": "all_reduce", "ranges": ranges, "fallback": [{"algorithm": "shm_twoshot"}]}
    plan = plan_of(first, {"op": "all_reduce", "ranges": [{"algorithm": "shm_oneshot"}]})
    sizes = (16, 17, 64, 65, 4096, 4097)
    expected = ["oneshot", "twoshot", "oneshot", "twoshot", "twoshot", "oneshot"]
    assert algorithms(plan, sizes) == [f"shm_{name}" for name in expected]


def test_sizes_that_the_symmetric_rules_leave_to_the_plain_ones_go_by_the_plain_ranges() -> None:
    def range_of(*ends: tuple[int | None, str]) -> list[dict[str, object]]:
        return [{"algorithm": name} | ({} if end is None else {"max_bytes": end}) for end, name in ends]

    symmetric = range_of((64, "shm_symmetric"), (1 << 20, "shm_twoshot"), (None, "shm_symmetric"))
    plan = plan_of(
        {"op": "all_reduce", "placement": "symmetric", "ranges": symmetric},
        {"op": "all_reduce", "ranges": range_of((4096, "shm_oneshot"), (None, "shm_twoshot"))},
    )
    names = ["symmetric", "oneshot", "oneshot", "twoshot", "twoshot", "symmetric"]
    answers = algorithms(plan, (64, 65, 4096, 4097, 1 << 20, (1 << 20) + 1), placement="symmetric")
    assert answers == [f"shm_{name}" for name in names]
