"""Plans: reading, faults named by place, deciding, pinning, thresholds, agreement between ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib.collectives import COLLECTIVES, algorithm_names
from commlib.communicator import Communicator
from commlib.errors import PlanMismatch
from commlib.plan import Plan
from commlib.testing import RankError, Ranks


def plan_of(*rules: dict[str, Any]) -> Plan:
    return Plan.parse(json.dumps({"schema": "commlib.plan", "version": 1, "rules": list(rules)}), "here")


@pytest.mark.parametrize("backend", ["shm", "torch"])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_shipped_plans_have_a_known_algorithm_for_every_size(backend: str, world: int) -> None:
    plan, known = Plan.auto(backend), algorithm_names(backend)
    for op in COLLECTIVES:
        for placement in ("plain", "symmetric"):
            for num_bytes in (0, 1, 8192, 8193, 1 << 20, 1 << 40):
                chosen = plan.explain(op, num_bytes, world=world, placement=placement).algorithm
                assert chosen in known[op]


def test_a_range_covers_sizes_up_to_its_own() -> None:
    ranges = [{"max_bytes": 100, "algorithm": "a"}, {"max_bytes": 200, "algorithm": "b"}, {"algorithm": "a"}]
    plan = plan_of({"op": "all_reduce", "ranges": ranges})
    chosen = [plan.explain("all_reduce", n, world=2).algorithm for n in (0, 100, 101, 200, 201, 1 << 40)]
    assert chosen == ["a", "a", "b", "b", "a", "a"]
    said = plan.explain("all_reduce", 150, world=2)
    assert (said.low_bytes, said.high_bytes) == (101, 200)
    assert str(said).startswith("all_reduce of 150 B runs b: rules[0][1] of here covers 101 B to 200 B")


def test_the_first_rule_that_covers_decides() -> None:
    plan = plan_of(
        {"op": "reduce", "dtype": "bfloat16", "ranges": [{"algorithm": "for_bf16"}]},
        {"op": "reduce", "redop": "max", "ranges": [{"algorithm": "for_max"}]},
        {"op": "reduce", "world": [3, None], "ranges": [{"algorithm": "for_many"}]},
        {"op": "reduce", "ranges": [{"algorithm": "rest"}]},
    )
    assert plan.explain("reduce", 1, "bfloat16", "max", world=4).algorithm == "for_bf16"
    assert plan.explain("reduce", 1, "float32", "max", world=4).algorithm == "for_max"
    assert plan.explain("reduce", 1, world=3).algorithm == "for_many"
    assert plan.explain("reduce", 1, world=2).algorithm == "rest"


def test_a_measured_gain_is_told() -> None:
    entry = {"algorithm": "fast", "gain": 0.31, "runner_up": "slow"}
    assert "measured 31% faster than slow" in str(plan_of({"op": "x", "ranges": [entry]}).explain("x", 1, world=2))


def test_threshold_is_the_classic_pair() -> None:
    plan = Plan.threshold(8 << 20, below="shm_oneshot", above="shm_twoshot", base=Plan.auto("shm"))
    chosen = [plan.explain("all_reduce", n, world=2).algorithm for n in (8 << 20, (8 << 20) + 1)]
    assert chosen == ["shm_oneshot", "shm_twoshot"]
    assert plan.explain("barrier", 0, world=2).algorithm == "shm_oneshot"


def test_pinning_a_symmetric_algorithm_leaves_plain_tensors_alone() -> None:
    plan = Plan.only({"all_reduce": "shm_symmetric"}, base=Plan.auto("shm"))
    assert plan.explain("all_reduce", 8, world=2, placement="symmetric").algorithm == "shm_symmetric"
    assert plan.explain("all_reduce", 8, world=2).algorithm == "shm_oneshot"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan .*p.json, line 1: Expecting"),
        ("[]", "not a plan file"),
        ('{"schema": "other"}', "not a plan file"),
        ('{"schema": "commlib.plan", "version": 9}', "version 9, but this commlib reads version 1"),
        ('{"schema": "commlib.plan", "version": 1}', '"rules" is not a list'),
        ('{"schema": "commlib.plan", "version": 1, "rules": [{}]}', r'rules\[0\]: needs an "op"'),
        ('{"schema": "commlib.plan", "version": 1, "rules": [{"op": "x"}]}', r'rules\[0\]: "ranges" is empty'),
        (
            '{"schema": "commlib.plan", "version": 1, "rules": [{"op": "x", "ranges": '
            '[{"max_bytes": 9, "algorithm": "a"}, {"max_bytes": 9, "algorithm": "b"}]}]}',
            r"rules\[0\].ranges\[1\]: max_bytes 9 is not a number above 9",
        ),
        (
            '{"schema": "commlib.plan", "version": 1, "rules": [{"op": "x", "ranges": '
            '[{"algorithm": "a"}, {"algorithm": "b"}]}]}',
            r"rules\[0\].ranges\[0\]: only the last range may have no max_bytes",
        ),
    ],
)
def test_a_faulty_file_is_a_value_error_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Plan.load(path)
    with pytest.raises(ValueError, match="cannot read plan"):
        Plan.load(tmp_path / "absent.json")


def test_the_digest_follows_the_content_not_the_spelling() -> None:
    rule = {"op": "reduce", "ranges": [{"algorithm": "a"}]}
    swapped = dict(reversed(list(rule.items())))
    assert plan_of(rule).digest == plan_of(swapped).digest
    assert plan_of(rule).digest != plan_of({**rule, "dtype": "float32"}).digest


def read_plan(comm: Communicator) -> tuple[str, str, float]:
    return comm.plan.digest, comm.explain("all_reduce", 8).algorithm, float(comm.all_reduce(torch.ones(1)))


def test_rank_0_loads_the_plan_for_everyone(tmp_path: Path) -> None:
    plan = Plan.only({"all_reduce": "shm_twoshot"}, base=Plan.auto("shm"))
    path = tmp_path / "plan.json"
    path.write_text(plan.text)
    with Ranks(2, backend="shm", plan=str(path), max_bytes=1 << 20) as ranks:
        assert ranks.run(read_plan) == [(plan.digest, "shm_twoshot", 2.0)] * 2


def make_with(world: Any, **options: Any) -> Communicator:
    """Give every rank another plan."""
    name = ("shm_oneshot", "shm_twoshot")[world.rank]
    return Communicator.create(world, backend="shm", plan=Plan.only({"all_reduce": name}, base=Plan.auto("shm")))


def test_different_plans_fail_on_all_ranks_with_one_message() -> None:
    with pytest.raises(RankError) as caught, Ranks(2, create=make_with) as ranks:
        ranks.run(read_plan)
    errors = list(caught.value.errors.values())
    assert len(errors) == 2
    assert all(isinstance(error, PlanMismatch) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert "pass the same plan= on every rank" in str(errors[0])
