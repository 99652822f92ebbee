"""What a plan decides: ranges, rules, fallbacks and pins."""

from dataclasses import replace
from typing import Any

import pytest

from commlib.collectives.facts import FACTS
from commlib.plan import Facts, Match, Plan, shipped_plan
from commlib.plan.rules import Point, Range
from tests.plan.documents import HEAD, plan_of


def test_an_explanation_tells_crossovers_with_intervals_gain_rule_file_and_match() -> None:
    small = {"max_bytes": 8192, "algorithm": "slow", "ci_bytes": [6144, 12288]}
    middle = {"max_bytes": 65536, "algorithm": "fast", "params": {"blocks": 8}, "ci_bytes": [49152, 81920]}
    measured = {"gain": 0.31, "runner_up": "slow", "confidence": 0.99}
    rule = {"op": "all_reduce", "ranges": [small, middle | measured, {"algorithm": "slow"}]}
    document = {**HEAD, "fingerprint": {"backend": "nccl", "device": "H", "nccl": "2.28.9"}, "rules": [rule]}
    plan = Plan(document, "p.json").fitted({"backend": "nccl", "device": "H", "nccl": "2.30.7"})
    assert str(plan.explain("all_reduce", 1 << 14, world=2)).splitlines() == [
        "all_reduce of 16K runs fast: chosen by the plan p.json, measured elsewhere",
        "  for sizes above 8K [6K–12K], up to 64K [48K–80K], with blocks=8",
        "  measured 31% faster than slow (confidence 99%)",
        f"  rules[0][1] of p.json (plan {plan.digest}, match 2/3: NCCL 2.28.9, here 2.30.7)",
    ]


@pytest.mark.parametrize(
    ("gain", "said"), [(0.31, "31% faster than slow"), (-0.0029, "as fast as slow"), (-0.02, "2% slower than slow")]
)
def test_a_gain_is_told_in_words_that_fit_its_size(gain: float, said: str) -> None:
    entry = {"algorithm": "fast", "gain": gain, "runner_up": "slow"}
    plan = Plan({**HEAD, "rules": [{"op": "all_reduce", "ranges": [entry]}]}, "p.json")
    assert f"  measured {said}" in str(plan.explain("all_reduce", 8, world=2)).splitlines()


def test_a_match_counts_the_keys_that_the_plan_has() -> None:
    assert str(Match.of({}, {"cpu": "x"})) == "no fingerprint"
    assert Match.of({"cpu": "x", "torch": None, "commlib": "0"}, {"cpu": "x", "torch": "2"}) == Match(1, 1)


def facts_of(refused: dict[str, str]) -> Facts:
    """Algorithms that refuse a type each."""
    return Facts(lambda query, name: f"cannot reduce {query.dtype}" if refused.get(name) == query.dtype else None)


def test_what_cannot_serve_a_call_is_passed_over_for_the_fallback_then_for_the_next_rule() -> None:
    ranges = [{"max_bytes": 64, "algorithm": "small"}, {"algorithm": "vendor"}]
    fallback = [{"algorithm": "small", "params": {"blocks": 4}}, {"algorithm": "any"}]
    first, last = {"op": "reduce", "ranges": ranges, "fallback": fallback}, {"algorithm": "last"}
    plan = plan_of(first, {"op": "reduce", "ranges": [last]})
    none, one, two, all_three = {}, {"vendor": "bool"}, {"vendor": "bool", "small": "bool"}, {"any": "bool"}
    for refused, expected in (
        (none, ("vendor", "rules[0][1]", 0)),
        (one, ("small", "rules[0].fallback[0]", 1)),
        (two, ("any", "rules[0].fallback[1]", 2)),
        ({**two, **all_three}, ("last", "rules[1][0]", 3)),
    ):
        why = plan.explain("reduce", 100, "bool", world=2, facts=facts_of(refused))
        assert (why.algorithm, why.rule, len(why.passed)) == expected
    why = plan.explain("reduce", 100, "bool", world=2, facts=facts_of(one))
    assert (why.params, why.low_bytes, why.high_bytes) == ({"blocks": 4}, 65, None)
    assert "  passed over vendor: cannot reduce bool" in str(why).splitlines()
    assert plan.explain("reduce", 100, world=2, facts=facts_of(one)).algorithm == "vendor"  # float32 goes there
    with pytest.raises(ValueError, match="no rule for reduce of 100 B of bool"):
        plan.explain("reduce", 100, "bool", world=2, facts=facts_of({**two, **all_three, "last": "bool"}))


def test_pinning_a_symmetric_algorithm_leaves_plain_tensors_alone() -> None:
    plan = Plan.only({"all_reduce": "shm_symmetric"}, base=shipped_plan("shm"))
    assert plan.explain("all_reduce", 8, world=2, placement="symmetric", facts=FACTS).algorithm == "shm_symmetric"
    assert plan.explain("all_reduce", 8, world=2, facts=FACTS).algorithm == "shm_oneshot"


def test_explain_says_what_takes_no_multiprocessors() -> None:
    plan = Plan.only({"all_gather": "engine_pull"}, base=shipped_plan("nccl"))
    for placement, said in (("symmetric", "takes no multiprocessors"), ("plain", "takes up to 128 multiprocessors")):
        assert f"  {said}" in str(plan.explain("all_gather", 1 << 26, world=2, placement=placement, facts=FACTS))


def test_explain_says_what_an_asynchronous_call_takes_and_why() -> None:
    plan, call = shipped_plan("nccl-nvidia-h100-80gb-hbm3"), {"world": 2, "facts": FACTS, "async_op": True}

    def line(op: str, num_bytes: int, **more: Any) -> str:
        told = str(plan.explain(op, num_bytes, **call, **more)).splitlines()
        return next((each for each in told if "asynchronous" in each), "").strip()

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
    plan, few = shipped_plan("nccl"), replace(FACTS, multiprocessors=24)
    for facts, sms in ((FACTS, 24), (few, 132)):
        assert plan.explain("all_reduce", 1 << 26, world=2, facts=facts, async_op=True).sms == sms


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_large_asynchronous_call_leaves_most_of_any_gpu(op: str, world: int) -> None:
    plan = shipped_plan("nccl")
    assert plan.explain(op, 1 << 26, world=world, facts=FACTS).sms >= 128
    assert plan.explain(op, 1 << 26, world=world, facts=FACTS, async_op=True).sms <= 24


def test_a_pin_keeps_the_parameters_of_the_base_there_or_of_the_nearest_size() -> None:
    ranges = [
        {"max_bytes": 1024, "algorithm": "a", "params": {"blocks": 1}},
        {"max_bytes": 2048, "algorithm": "b"},
        {"max_bytes": 1 << 20, "algorithm": "b", "params": {"blocks": 9}},
        {"max_bytes": 3 << 19, "algorithm": "c"},  # nearer to the range before, as a ratio, than the first one is
        {"max_bytes": 1 << 22, "algorithm": "a", "params": {"blocks": 2}},
    ]
    base = plan_of({"op": "x", "world": [1, 2], "ranges": ranges}, {"op": "x", "ranges": [{"algorithm": "c"}]})
    pinned = Plan.only({"x": "a"}, base=base)
    sizes = (8, 2048, 4096, 1 << 22, 1 << 30)
    assert [pinned.explain("x", n, world=2).params.get("blocks") for n in sizes] == [1, 1, 2, 2, 2]
    assert {pinned.explain("x", n, world=2).algorithm for n in sizes} == {"a"}
    # The rule for more ranks names it nowhere, and overlaps with one that does.
    assert pinned.explain("x", 8, world=7).params == {"blocks": 1}
    assert Plan.only({"x": "a"}, base=base, params={}).explain("x", 8, world=2).params == {}
    assert Plan.only({"x": "c"}, base=base).explain("x", 8, world=2).params == {}


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
