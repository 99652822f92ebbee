"""Plans: reading, faults named by line, finding, deciding, pinning, comparing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from commlib.agreement import check_names, find_plan, override, usable
from commlib.collectives import COLLECTIVES, algorithm_names
from commlib.plan import Match, Plan, differences, shipped, shipped_plan, slug, user_path
from commlib.plan.check import check, schema
from commlib.timing import fingerprint
from commlib.timing.machine import driver_of

Rule = dict[str, Any]
HEAD = {"schema": "commlib.plan", "version": 1}


def plan_of(*rules: Rule) -> Plan:
    return Plan.parse(json.dumps({**HEAD, "rules": list(rules)}), "here")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the plan of this user for this machine and two ranks on shm is looked for."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COMMLIB_PLAN", raising=False)
    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    return path


def tuned(**changes: Any) -> str:
    """A plan of one rule, with this machine's fingerprint but for the changes."""
    rule = {"op": "all_reduce", "world": [2, 2], "ranges": [{"algorithm": "shm_twoshot"}]}
    return json.dumps({**HEAD, "fingerprint": {**fingerprint("shm"), **changes}, "rules": [rule]}, indent=1)


@pytest.mark.parametrize("backend", ["shm", "torch"])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_shipped_plans_have_a_known_algorithm_for_every_size(backend: str, world: int) -> None:
    plan, known = shipped_plan(backend), algorithm_names(backend)
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


def test_an_explanation_tells_crossovers_with_intervals_gain_rule_file_and_match() -> None:
    small = {"max_bytes": 8192, "algorithm": "slow", "ci_bytes": [6144, 12288]}
    middle = {
        **{"max_bytes": 65536, "algorithm": "fast", "params": {"blocks": 8}, "ci_bytes": [49152, 81920]},
        **{"gain": 0.31, "runner_up": "slow", "confidence": 0.99},
    }
    rule = {"op": "all_reduce", "ranges": [small, middle, {"algorithm": "slow"}]}
    document = {**HEAD, "fingerprint": {"backend": "nccl", "device": "H", "nccl": "2.28.9"}, "rules": [rule]}
    plan = Plan(document, "p.json").fitted({"backend": "nccl", "device": "H", "nccl": "2.30.7"})
    assert str(plan.explain("all_reduce", 1 << 14, world=2)).splitlines() == [
        "all_reduce of 16K runs fast blocks=8",
        "  for sizes above 8K [6K–12K], up to 64K [48K–80K]",
        "  measured 31% faster than slow (confidence 99%)",
        f"  rules[0][1] of p.json (plan {plan.digest}, match 2/3: NCCL 2.28.9, here 2.30.7)",
    ]


def test_a_match_counts_the_keys_that_the_plan_has() -> None:
    assert str(Match.of({}, {"cpu": "x"})) == "no fingerprint"
    assert Match.of({"cpu": "x", "torch": None, "commlib": "0"}, {"cpu": "x", "torch": "2"}) == Match(1, 1)


def test_threshold_is_the_classic_pair() -> None:
    plan = Plan.threshold(8 << 20, below="shm_oneshot", above="shm_twoshot", base=shipped_plan("shm"))
    chosen = [plan.explain("all_reduce", n, world=2).algorithm for n in (8 << 20, (8 << 20) + 1)]
    assert chosen == ["shm_oneshot", "shm_twoshot"]
    assert plan.explain("barrier", 0, world=2).source == "plans/shm.json"


def test_pinning_a_symmetric_algorithm_leaves_plain_tensors_alone() -> None:
    plan = Plan.only({"all_reduce": "shm_symmetric"}, base=shipped_plan("shm"))
    assert plan.explain("all_reduce", 8, world=2, placement="symmetric").algorithm == "shm_symmetric"
    assert plan.explain("all_reduce", 8, world=2).algorithm == "shm_oneshot"


def test_a_pin_keeps_the_parameters_of_the_base_there_or_of_the_nearest_size() -> None:
    ranges = [
        {"max_bytes": 1024, "algorithm": "a", "params": {"blocks": 1}},
        {"max_bytes": 2048, "algorithm": "b"},
        {"max_bytes": 1 << 20, "algorithm": "b", "params": {"blocks": 9}},
        {"max_bytes": 1 << 21, "algorithm": "a", "params": {"blocks": 2}},
    ]
    base = plan_of({"op": "x", "world": [1, 2], "ranges": ranges}, {"op": "x", "ranges": [{"algorithm": "c"}]})
    pinned = Plan.only({"x": "a"}, base=base)
    sizes = (8, 2048, 4096, 1 << 21, 1 << 30)
    assert [pinned.explain("x", n, world=2).params.get("blocks") for n in sizes] == [1, 1, 2, 2, 2]
    assert {pinned.explain("x", n, world=2).algorithm for n in sizes} == {"a"}
    # The rule for more ranks names it nowhere, and overlaps with one that does.
    assert pinned.explain("x", 8, world=7).params == {"blocks": 1}
    assert Plan.only({"x": "a"}, base=base, params={}).explain("x", 8, world=2).params == {}
    assert Plan.only({"x": "c"}, base=base).explain("x", 8, world=2).params == {}


BAD = {
    "a truncated file": ('{"schema": "commlib.plan",\n "version"', "line 2: the file ends here, in the middle"),
    "an empty file": ("", "line 1: the file ends here"),
    "no JSON": ("{\n x}", "line 2: Expecting property name"),
    "a list": ("[]", r"line 1: not a plan file \(a plan is an object\)"),
    "a foreign file": ('{\n"schema": "other"}', 'line 2: not a plan file .its "schema" is not "commlib.plan"'),
    "a newer file": ('{"schema": "commlib.plan",\n"version": 9}', "line 2: version 9 is newer than the 1 that"),
    "a version in quotes": ('{"schema": "commlib.plan", "version": "1"}', 'version is "1", expected 1'),
    "an odd key": ('{"schema": "commlib.plan",\n"a\\nb": 1}', r"line 2: a\\nb is not known here; known: schema"),
    "no rules": ('{"schema": "commlib.plan", "version": 1}', 'the plan needs "rules"'),
    "a number JSON has not": ('{"schema": "commlib.plan",\n"version": NaN}', "line 2: NaN is not a number"),
    "a key twice": ('{"schema": "commlib.plan",\n"schema": 1}', r'line 2: "schema" is there twice, first on line 1'),
}
BAD_RULES: dict[str, tuple[Rule, str]] = {
    "no op": ({}, r'line 2: rules\[0\] needs "op"'),
    "no ranges": ({"op": "x"}, r'rules\[0\] needs "ranges"'),
    "empty ranges": ({"op": "x", "ranges": []}, r"ranges is \[\], expected a list of at least one range"),
    "a misspelt key": ({"op": "x", "dtyp": 1}, r"rules\[0\].dtyp is not known here; known: op, dtype, redop"),
    "another mode": ({"op": "x", "mode": "lazy"}, r'mode is "lazy", expected "eager", "graph" or'),
    "a world of 0": ({"op": "x", "world": [0, 2]}, r"world\[0\] is 0, expected a number of ranks"),
    "half a world": ({"op": "x", "world": [1]}, r"world is \[1\], expected \[least, most\]"),
}
BAD_RANGES: dict[str, tuple[list[Rule], str]] = {
    "no algorithm": ([{"max_bytes": 9}], r'line 2: rules\[0\].ranges\[0\] needs "algorithm"'),
    "a size in words": ([{"algorithm": "a", "max_bytes": "8M"}], r'max_bytes is "8M", expected a whole number'),
    "a size that is true": ([{"algorithm": "a", "max_bytes": True}], r"max_bytes is true, expected"),
    "a negative size": ([{"algorithm": "a", "max_bytes": -1}], r"max_bytes is -1, expected"),
    "a param in words": ([{"algorithm": "a", "params": {"blocks": "8"}}], r'params.blocks is "8", expected'),
    "half an interval": ([{"algorithm": "a", "ci_bytes": [1]}], r"ci_bytes is \[1\], expected \[low, high\]"),
    "too sure": ([{"algorithm": "a", "confidence": 2}], r"confidence is 2, expected a number from 0 to 1"),
}
BAD_ORDER: dict[str, tuple[list[Rule], str]] = {
    "sizes that do not rise": (
        [{"max_bytes": 9, "algorithm": "a"}, {"max_bytes": 9, "algorithm": "b"}],
        r"rules\[0\].ranges\[1\]: max_bytes 9 is not a number above 9",
    ),
    "a rest before the end": (
        [{"algorithm": "a"}, {"algorithm": "b"}],
        r"rules\[0\].ranges\[0\]: only the last range may have no max_bytes",
    ),
    "an interval backwards": ([{"algorithm": "a", "ci_bytes": [2, 1]}], r"ci_bytes ends below its start"),
}


def text_of(rule: Rule) -> str:
    return f'{{"schema": "commlib.plan", "version": 1, "rules": [\n{json.dumps(rule)}]}}'


def faulty() -> dict[str, tuple[str, str]]:
    rules = {name: (text_of(rule), message) for name, (rule, message) in BAD_RULES.items()}
    ranges = {**BAD_RANGES, **BAD_ORDER}
    return {**BAD, **rules, **{n: (text_of({"op": "x", "ranges": r}), m) for n, (r, m) in ranges.items()}}


@pytest.mark.parametrize(("text", "message"), faulty().values(), ids=faulty())
def test_a_faulty_file_is_a_value_error_that_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^plan .*p\.json, (?=line \d+: ).*{message}"):
        Plan.load(path)


def test_every_cut_of_a_plan_is_refused_with_a_line() -> None:
    text = shipped()["shm"]
    for end in range(0, len(text) - 3, 97):
        with pytest.raises(ValueError, match=r"^plan cut, line \d+: "):
            Plan.parse(text[:end], "cut")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("absent", "binary", "."):
        with pytest.raises(ValueError, match="cannot read plan"):
            Plan.load(tmp_path / name)


def good_documents() -> dict[str, Any]:
    written = {name: json.loads(text) for name, text in shipped().items()}
    made = Plan.threshold(8, below="shm_oneshot", above="shm_twoshot", base=shipped_plan("shm"))
    rules = [{"op": "x", "world": [1, None], "ranges": [{"max_bytes": None, "algorithm": "a", "gain": None}]}]
    return {**written, "tuned": json.loads(tuned()), "made": made.document, "small": {**HEAD, "rules": rules}}


def documents() -> dict[str, tuple[Any, bool]]:
    bad = {name: text_of(rule) for name, (rule, _) in BAD_RULES.items()}
    bad |= {name: text_of({"op": "x", "ranges": ranges}) for name, (ranges, _) in BAD_RANGES.items()}
    lacking = {"no rules": HEAD, "another schema": {**HEAD, "schema": "x", "rules": []}, "a list": []}
    lacking["no device"] = {**HEAD, "rules": [], "fingerprint": {"backend": "shm"}}
    lacking["a newer one"] = {**HEAD, "rules": [], "version": 2}
    good = {name: (document, True) for name, document in good_documents().items()}
    return good | {n: (json.loads(t), False) for n, t in bad.items()} | {n: (d, False) for n, d in lacking.items()}


@pytest.mark.parametrize(("document", "right"), documents().values(), ids=documents())
def test_our_validator_and_the_json_schema_agree(document: Any, right: bool) -> None:
    def ours() -> bool:
        try:
            check(document, "here")
        except ValueError:
            return False
        return True

    jsonschema.Draft202012Validator.check_schema(schema())
    assert (ours(), jsonschema.Draft202012Validator(schema()).is_valid(document)) == (right, right)


def test_the_digest_follows_the_content_not_the_spelling() -> None:
    rule = {"op": "reduce", "ranges": [{"algorithm": "a"}]}
    swapped = dict(reversed(list(rule.items())))
    assert plan_of(rule).digest == plan_of(swapped).digest
    assert plan_of(rule).digest != plan_of({**rule, "dtype": "float32"}).digest
    assert Plan.parse(plan_of(rule).file_text, "x").digest == plan_of(rule).digest


def test_differences_are_by_call_and_size() -> None:
    one, other = (
        shipped_plan("shm"),
        Plan.threshold(64 << 10, below="shm_oneshot", above="shm_twoshot", base=shipped_plan("shm")),
    )
    assert differences(one, one) == []
    found = differences(one, other)
    assert {(d.op, d.placement) for d in found} == {("all_reduce", "plain")}
    of_two = next(str(d) for d in found if d.world == (1, 2))
    assert "  above 8K, up to 64K: shm_twoshot chunk_bytes=262144 → shm_oneshot" in of_two.splitlines()


def test_a_type_that_differs_alone_is_named_and_modes_that_agree_are_one() -> None:
    usual = {"op": "x", "ranges": [{"algorithm": "a"}]}
    special = {"op": "x", "dtype": "bool", "mode": "graph", "ranges": [{"algorithm": "b"}]}
    (found,) = differences(plan_of(usual), plan_of(special, usual))
    assert (found.dtype, found.mode, found.spans) == ("bool", "graph", ((None, None, "a", "b"),))
    both = [{**usual, "mode": mode, "ranges": [{"algorithm": "b"}]} for mode in ("eager", "graph")]
    (merged,) = differences(plan_of(usual), plan_of(*both))
    assert (merged.mode, merged.spans) == ("*", ((None, None, "a", "b"),))


def test_a_plan_of_the_users_is_found_by_backend_device_and_world(mine: Path) -> None:
    assert mine.name == f"shm-{slug(fingerprint('shm')['device'])}-2.json"
    mine.write_text(tuned())
    found = find_plan("shm", "auto", 2)
    assert found.explain("all_reduce", 8, world=2).source == str(mine)
    assert found.explain("barrier", 0, world=2).source == "plans/shm.json"  # what it does not cover
    assert (found.fit.score, found.fit.differences) == (found.fit.total, ())
    assert find_plan("shm", "auto", 3).source == "plans/shm.json"
    assert Plan.auto("shm").source == "plans/shm.json"


def test_the_order_is_argument_variable_user_shipped(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine.write_text(tuned())
    named, passed = tmp_path / "named.json", tmp_path / "passed.json"
    for path in (named, passed):
        path.write_text(tuned())
    assert find_plan("shm", "auto", 2).source == str(mine)
    monkeypatch.setenv("COMMLIB_PLAN", str(named))
    assert find_plan("shm", "auto", 2).source == str(named)
    assert find_plan("shm", str(passed), 2).source == str(passed)


UNFIT = {
    "truncated": (lambda: tuned()[:200], "the file ends here"),
    "foreign": (lambda: '{"schema": "x"}', "not a plan file"),
    "newer": (lambda: tuned().replace('"version": 1', '"version": 2'), "version 2 is newer"),
    "of another device": (lambda: tuned(device="Z80"), "was tuned for device Z80, here is"),
    "of another backend": (lambda: tuned(backend="nccl"), "was tuned for backend nccl, here is shm"),
    "for other ranks": (lambda: tuned().replace("2,\n    2", "3,\n    3"), "has no rule for 2 ranks"),
    "with an unknown algorithm": (lambda: tuned().replace("shm_twoshot", "shm_magic"), "it has shm_oneshot"),
    "with an unknown op": (lambda: tuned().replace("all_reduce", "all_reduse"), "no op 'all_reduse'; there are all_"),
}


@pytest.mark.parametrize(("text", "reason"), UNFIT.values(), ids=UNFIT)
def test_an_unfit_plan_is_ignored_with_a_warning_when_found_and_an_error_when_asked_for(
    mine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: Any, reason: str
) -> None:
    mine.write_text(text())
    with caplog.at_level(logging.INFO, "commlib"):
        assert [find_plan("shm", "auto", 2).source for _ in range(2)] == ["plans/shm.json"] * 2
    (record,) = caplog.records  # once, however often it is found
    assert record.levelname == "WARNING"
    assert str(mine) in record.message and reason in record.message
    with pytest.raises(ValueError, match=reason):
        find_plan("shm", mine, 2)
    monkeypatch.setenv("COMMLIB_PLAN", str(mine))
    with pytest.raises(ValueError, match=reason):
        find_plan("shm", "auto", 2)


def test_soft_keys_that_differ_are_told_once(mine: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine.write_text(tuned(torch="1.0"))
    with caplog.at_level(logging.INFO, "commlib"):
        assert [find_plan("shm", "auto", 2).source for _ in range(2)] == [str(mine)] * 2
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert f"plan {mine} was tuned for torch 1.0, here {fingerprint()['torch']} (match 5/6)" == record.message


def test_a_variant_of_a_backend_takes_no_plan_of_the_backend(mine: Path) -> None:
    device = fingerprint("nccl")["device"]
    rule = {"op": "all_reduce", "ranges": [{"algorithm": "lsa_oneshot"}]}
    for name in ("nccl", "nccl_direct"):
        document = {**HEAD, "fingerprint": {"backend": name, "device": device}, "rules": [rule]}
        user_path(name, device, 2).write_text(json.dumps(document))
    assert find_plan("nccl", "auto", 2).source == str(user_path("nccl", device, 2))
    assert find_plan("nccl_direct", "auto", 2).source == "plans/nccl_direct.json"


def test_the_device_is_the_gpu_where_the_backend_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"is_available": True, "get_device_name": "NVIDIA H200", "device_count": 8}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    of_gpus = fingerprint("nccl_direct")
    assert (of_gpus["backend"], slug(of_gpus["device"]), of_gpus["nccl"]) == ("nccl_direct", "nvidia-h200", "2.28.9")
    check({**HEAD, "fingerprint": of_gpus, "rules": []}, "here")
    of_cpus = fingerprint("shm")
    assert (of_cpus["device"], "gpu" in of_cpus, "nccl" in of_cpus) == (of_cpus["cpu"], False, False)


@pytest.mark.parametrize("kind", ["Open Kernel Module for x86_64", "x86_64 Kernel Module"])
def test_the_driver_is_read_from_either_kernel_module(kind: str) -> None:
    assert driver_of(f"NVRM version: NVIDIA UNIX {kind}  580.95.05  Tue Sep 23\nGCC version: 12.2.0\n") == "580.95.05"
    assert driver_of("") is None


@pytest.mark.parametrize("name", ["shm", "nccl", "nccl_direct", "torch"])
def test_shipped_plans_name_what_there_is(name: str) -> None:
    check_names(shipped_plan(name), usable(name), name)


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ("all_reduce", "expected collective:algorithm"),
        ("all_reduce:a,all_reduce:b", "named twice"),
        ("all_reduse:shm_oneshot", "no collective 'all_reduse'; there are all_reduce"),
        ("all_reduce:lsa_oneshot", "all_reduce has no algorithm 'lsa_oneshot' on shm; it has shm_oneshot"),
    ],
)
def test_a_wrong_pin_is_refused_with_the_valid_names(monkeypatch: pytest.MonkeyPatch, pins: str, reason: str) -> None:
    monkeypatch.setenv("COMMLIB_ALGORITHM", pins)
    with pytest.raises(ValueError, match=reason):
        override(shipped_plan("shm"), "shm")
