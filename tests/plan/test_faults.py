"""Faulty plans: each fault is named with its file and rule, and the schema agrees with what reads."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from commlib.core.setup import find_plan
from commlib.plan import Plan
from commlib.plan.rules import MAX_RULES, fault_of, read_rules, schema
from commlib.plan.search import shipped, shipped_plan
from tests.plan.documents import HEAD, Rule, plan_of, tuned

BAD = {
    "a truncated file": ('{"schema": "commlib.plan",\n "version"', "Expecting ':' delimiter: line 2 .* a whole copy"),
    "an empty file": ("", "Expecting value: line 1"),
    "a key twice": ('{"schema": "commlib.plan",\n"schema": 1}', '"schema" is there twice'),
    "no JSON": ("{\n x}", "Expecting property name .*: line 2"),
    "a list": ("[]", r"not a plan file \(a plan is an object\)"),
    "a foreign file": ('{\n"schema": "other"}', 'not a plan file .its "schema" is not "commlib.plan"'),
    "a newer file": ('{"schema": "commlib.plan",\n"version": 9}', "version 9 is newer than the 2 that"),
    "an older file": ('{"schema": "commlib.plan",\n"version": 1}', "version 1 is older .* `commlib tune` again"),
    "a version in quotes": ('{"schema": "commlib.plan", "version": "2"}', 'version is "2", expected 2'),
    "an odd key": ('{"schema": "commlib.plan",\n"a\\nb": 1}', r"a\\nb is not known here; known: schema"),
    "no rules": ('{"schema": "commlib.plan", "version": 2}', 'the plan needs "rules"'),
    "a number JSON has not": ('{"schema": "commlib.plan",\n"version": NaN}', "NaN is not a JSON number"),
}
BAD_RULES: dict[str, tuple[Rule, str]] = {
    "no op": ({}, r'rules\[0\] needs "op"'),
    "a key of a fallback": (
        {"op": "x", "ranges": [{"algorithm": "a"}], "fallback": [{"x": 8}]},
        r"fallback\[0\].x is not",
    ),
    "no ranges": ({"op": "x"}, r'rules\[0\] needs "ranges"'),
    "empty ranges": ({"op": "x", "ranges": []}, r"ranges is \[\], expected a list of at least one range"),
    "a misspelt key": ({"op": "x", "dtyp": 1}, r"rules\[0\].dtyp is not known here; known: op, dtype, redop"),
    "another mode": ({"op": "x", "mode": "lazy"}, r'mode is "lazy", expected "eager", "graph" or'),
    "a world of 0": ({"op": "x", "world": [0, 2]}, r"world\[0\] is 0, expected a number of ranks"),
    "half a world": ({"op": "x", "world": [1]}, r"world is \[1\], expected \[least, most\]"),
}
BAD_RANGES: dict[str, tuple[list[Rule], str]] = {
    "no algorithm": ([{"max_bytes": 9}], r'rules\[0\].ranges\[0\] needs "algorithm" \(in the rule for x\)'),
    "a size in words": ([{"algorithm": "a", "max_bytes": "8M"}], r'max_bytes is "8M", expected a whole number'),
    "a size that is true": ([{"algorithm": "a", "max_bytes": True}], r"max_bytes is true, expected"),
    "a negative size": ([{"algorithm": "a", "max_bytes": -1}], r"max_bytes is -1, expected"),
    "a param in words": ([{"algorithm": "a", "params": {"blocks": "8"}}], r'params.blocks is "8", expected'),
    "no alignment": ([{"algorithm": "a", "align": 0}], r"align is 0, expected a whole number of bytes, at least 1"),
}
BAD_ORDER: dict[str, tuple[list[Rule], str]] = {
    "sizes that do not rise": (
        [{"max_bytes": 9, "algorithm": "a"}] * 2,
        r"ranges\[1\]: max_bytes 9 is not a number above 9",
    ),
    "a rest before the end": ([{"algorithm": "a"}] * 2, r"ranges\[0\]: only the last range may have no max_bytes"),
    "a size with a point": (
        [{"algorithm": "a", "max_bytes": 8.0}],
        r"max_bytes is 8.0, expected a whole number of bytes",
    ),
    "a curve that does not rise": (
        [{"algorithm": "a", "curve": [{"sms": sms, "algorithm": "a", "slower": 0.1} for sms in (8, 8)]}],
        r"ranges\[0\]: the sms of its curve do not rise",
    ),
}
BACKWARDS: Rule = {"op": "x", "world": [4, 2], "ranges": [{"algorithm": "a"}]}


def text_of(rule: Rule) -> str:
    return f'{{"schema": "commlib.plan", "version": 2, "rules": [\n{json.dumps(rule)}]}}'


def faulty() -> dict[str, tuple[str, str]]:
    rules = {name: (text_of(rule), message) for name, (rule, message) in BAD_RULES.items()}
    ranges = {**BAD_RANGES, **BAD_ORDER}
    rules["a world backwards"] = text_of(BACKWARDS), r"rules\[0\]: world ends at 2, below its start 4"
    return {**BAD, **rules, **{n: (text_of({"op": "x", "ranges": r}), m) for n, (r, m) in ranges.items()}}


def test_a_faulty_file_is_a_value_error_that_names_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for text, message in faulty().values():
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"^plan .*p\.json[:,] .*{message}"):
            Plan.load(path)


def test_every_cut_of_a_plan_is_refused_with_a_line() -> None:
    text = shipped()["shm"]
    for end in range(0, len(text) - 3, 97):
        with pytest.raises(ValueError, match=r"^plan cut: .*: line \d+ "):
            Plan.parse(text[:end], "cut")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    reasons = {
        "absent": "there is no regular file of that name; give",
        ".": "there is no regular file",
        "binary": "is not a text file",
    }
    for name, why in reasons.items():
        with pytest.raises(ValueError, match=f"plan {tmp_path / name}.*{why}"):
            Plan.load(tmp_path / name)


@pytest.mark.parametrize("through", [Plan.load, lambda path: find_plan("shm", path, 2)])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, through: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ValueError, match=f"cannot read plan {path}: there is no regular file"):
            through(path)


def test_more_rules_than_the_native_tables_count_are_refused() -> None:
    rule = {"op": "barrier", "ranges": [{"algorithm": "shm_oneshot"}]}
    many = Plan({**HEAD, "rules": [rule] * MAX_RULES}, "here")
    with pytest.raises(ValueError, match="plan here: it has 65536 rules; a plan has at most 65535"):
        Plan({**HEAD, "rules": [rule] * (MAX_RULES + 1)}, "here")
    with pytest.raises(ValueError, match="has 65536 rules"):
        many.completed(plan_of({**rule, "op": "reduce"}))
    with pytest.raises(ValueError, match="has 65537 rules"):
        Plan.only({"barrier": "shm_oneshot"}, base=many)


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
    lacking["a newer one"] = {**HEAD, "rules": [], "version": 3}
    good = {name: (document, True) for name, document in good_documents().items()}
    return good | {n: (json.loads(t), False) for n, t in bad.items()} | {n: (d, False) for n, d in lacking.items()}


def test_our_validator_says_what_the_json_schema_does() -> None:
    def ours(document: Any) -> bool:
        try:
            read_rules(document, "here")
        except ValueError:
            return False
        return True

    jsonschema.Draft202012Validator.check_schema(schema())
    for name, (document, right) in documents().items():
        both = ours(document), jsonschema.Draft202012Validator(schema()).is_valid(document)
        assert both == (right, right), name


JUNK = (None, True, 0, -1, 3.5, 1 << 62, 1 << 20, (1 << 20) + 1, "", "plain", "graph", [], [1], [1, 2], {}, {"a": 1})
FULL = {
    **{"op": "x", "dtype": "a", "redop": "b", "placement": "plain", "mode": "*", "world": [1, None]},
    "ranges": [{"algorithm": "a", "params": {"b": 1}, "align": 4, "gain": 0.5, "runner_up": None}],
    "fallback": [{"algorithm": "z", "align": 1}],
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object and list of a document with each of its keys and numbers."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def test_our_validator_says_what_the_json_schema_does_of_plans_spoilt_at_random() -> None:
    draw, slow = random.Random(0), jsonschema.Draft202012Validator(schema())
    whole = {**json.loads(tuned()), "created": "c", "method": {}}
    whole["rules"].append(FULL)
    passes = []
    for _ in range(1000):
        document = json.loads(json.dumps(whole))
        part, key = draw.choice(list(places(document)))
        if isinstance(part, dict) and draw.random() < 0.5:
            part[draw.choice(("odd", "max_bytes", "align", "fallback"))] = part.pop(key)
        else:
            part[key] = draw.choice(JUNK)
        passes.append(fault_of(document, schema()) is None)
        assert passes[-1] == slow.is_valid(document), document
    assert 50 < sum(passes) < 950
