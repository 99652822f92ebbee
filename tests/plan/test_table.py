"""The native table: what a plan's text may say, and lists of choices for each kind of call."""

from itertools import product

import pytest

from commlib._native import PlanTable
from commlib.native import library
from commlib.plan import Plan
from commlib.plan.text import plan_text, rows_text
from tests.plan.documents import plan_of

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
