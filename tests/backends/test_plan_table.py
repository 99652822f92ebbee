"""The compiled plan decides as its rules say: by size, else a fallback, else the next rule."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from commlib.collectives.told import plan_text
from commlib.native import library
from commlib.plan import Facts, Query
from commlib.plan.decide import decide
from tests.plan.documents import plan_of

NAMES = ("shm_oneshot", "shm_twoshot", "shm_symmetric")
DTYPES, REDOPS = ("float32", "int16", "bool"), ("sum", "max", "band")
SIZES = (0, 8, 24, 64, 65, 4096, 4097, 1 << 40)
RULE = "rule op=all_reduce placement=plain mode=* dtype=* redop=*"
Serves = Mapping[str, Sequence[tuple[str, str]]]


def table_of(serves: Serves) -> Any:
    """The table of one rank, which is told these rows."""
    made = library.open_shm(1, 0, 4096, 1, 0, -1)
    made.start(5.0, "auto", False)
    made.learn(told(serves))
    return made


def told(serves: Serves) -> str:
    """Return rows of all_reduce, which serve so much of what they could."""
    lines: list[str] = []
    for name in NAMES:
        placement = "symmetric" if name == "shm_symmetric" else "plain"
        lines.append(
            f"algorithm op=all_reduce name={name} placement={placement} kernel= room=0 sms=0 "
            "arena=no reduces=yes rooted=no composed=no engine=no"
        )
        lines += [f"serves dtype={dtype} redop={redop}" for dtype, redop in serves[name]]
        lines += ["param name=chunk_bytes default=131072", "param name=hot default=0"] * (placement == "plain")
    return "\n".join(lines)


def draw_rules(draw: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(draw.randint(1, 6)):
        limits = sorted(draw.sample([16, 64, 4096, 1 << 30], draw.randint(0, 3)))
        ends = [*limits, *([None] if draw.random() < 0.7 or not limits else [])]
        yield {
            "op": "all_reduce",
            "placement": draw.choice(("plain", "symmetric")),
            "dtype": draw.choice(("*", *DTYPES)),
            "redop": draw.choice(("*", "*", *REDOPS)),
            "ranges": [{**({} if end is None else {"max_bytes": end}), **draw_entry(draw)} for end in ends],
            "fallback": [draw_entry(draw) for _ in range(draw.randint(0, 3))],
        }


def draw_entry(draw: random.Random) -> dict[str, Any]:
    return {"algorithm": draw.choice(NAMES), **({"align": 16} if draw.random() < 0.3 else {})}


def facts_of(serves: Serves) -> Facts:
    return Facts(
        lambda query, name: None if (query.dtype, query.redop) in serves[name] else "its row does not say so",
        lambda op, name: name == "shm_symmetric",
    )


def plain_only(facts: Facts) -> Facts:
    """What is for symmetric tensors alone refuses others."""

    def refusal(query: Query, name: str) -> str | None:
        misplaced = query.placement == "plain" and facts.symmetric(query.op, name)
        return "symmetric" if misplaced else facts.refusal(query, name)

    return replace(facts, refusal=refusal)


def test_the_table_finds_what_the_plan_decides() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        reductions = [pair for pair in product(DTYPES, REDOPS) if pair != ("float32", "band")]
        serves = {name: draw.sample(reductions, draw.randint(0, len(reductions))) for name in NAMES}
        plan = plan_of(*draw_rules(draw))
        table = table_of(serves)
        table.set_plan(plan_text(plan, 2, "shm"))
        facts = plain_only(facts_of(serves))
        for (dtype, redop), num_bytes, placement in product(reductions, SIZES, ("plain", "symmetric")):
            decision = decide(plan.rules, Query("all_reduce", num_bytes, dtype, redop, 2, placement), facts)
            expected = decision.entry.algorithm if decision else ""
            found = table.choice("all_reduce", dtype, redop, num_bytes, placement == "symmetric", False)
            assert str(found) == expected, (str(plan), serves, dtype, redop, num_bytes, placement)


def test_a_plan_may_have_more_rules_than_two_bytes_can_count() -> None:
    table = table_of({name: [("float32", "sum"), ("bool", "max")] for name in NAMES})
    rule = f"{RULE.replace('dtype=*', 'dtype=int16')}\nrange algorithm=shm_twoshot\n"
    table.set_plan(rule * 70_000 + f"{RULE}\nrange algorithm=shm_oneshot")
    assert str(table.choice("all_reduce", "float32", "sum", 8, False, False)) == "shm_oneshot"


def test_a_plan_that_is_refused_changes_nothing() -> None:
    table = table_of({name: [("float32", "sum")] for name in NAMES})
    table.set_plan(f"{RULE}\nrange algorithm=shm_oneshot")
    with pytest.raises(ValueError, match=r"rules\[7\]: all_reduce has no algorithm 'shm_fast' here"):
        table.set_plan(f"where rules[7]\n{RULE}\nrange algorithm=shm_fast")
    assert str(table.choice("all_reduce", "float32", "sum", 8, False, False)) == "shm_oneshot"


def test_a_row_bounds_what_a_plan_may_say() -> None:
    for op, algorithm, params, message in (
        ("broadcast", "shm_twoshot", {}, "broadcast has no algorithm 'shm_twoshot' on shm"),
        ("barrier", "shm_oneshot", {"hot": 1}, r"unknown params \['hot'\]; shm_oneshot knows no"),
        ("gather", "shm_oneshot", {"hot": 2}, "hot 2 is not between 0 and 1"),
    ):
        plan = plan_of({"op": op, "ranges": [{"algorithm": algorithm, "params": params}]})
        with pytest.raises(ValueError, match=rf"rules\[0\]: {message}"):
            plan_text(plan, 2, "shm")
