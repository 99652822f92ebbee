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
from commlib.plan.rules import MAX_RULES, fault_of, schema
from commlib.plan.search import shipped, shipped_plan
from tests.plan.documents import HEAD, Rule, plan_of, tuned

BAD = {
    "a truncated file": ('{"schema": "commlib.plan",\n "version"', "Expecting ':' delimiter: line 2 .* a whole copy"),
    "a key twice": ('{"schema": "commlib.plan",\n"schema": 1}', '"schema" is there twice'),
    "a list": ("[]", r"not a plan file"),
    "a foreign file": ('{\n"schema": "other"}', "not a plan file"),
    "a newer file": ('{"schema": "commlib.plan",\n"version": 9}', "version 9 is newer than the 2 that"),
    "an older file": ('{"schema": "commlib.plan",\n"version": 1}', "version 1 is older .* `commlib tune` again"),
    "an odd key": ('{"schema": "commlib.plan",\n"a\\nb": 1}', r"a\\nb is not known here; known: schema"),
    "a number JSON has not": ('{"schema": "commlib.plan",\n"version": NaN}', "NaN is not a JSON number"),
}
# Places that the schema knows of: what it says of other values is what our validator says, by another test.
BAD_PLACES: dict[str, tuple[Rule, str]] = {
    "no op": ({}, r'rules\[0\] needs "op"'),
    "a key of a fallback": (
        {"op": "x", "ranges": [{"algorithm": "a"}], "fallback": [{"x": 8}]},
        r"fallback\[0\].x is not",
    ),
    "a misspelt key": ({"op": "x", "dtyp": 1}, r"rules\[0\].dtyp is not known here; known: op, dtype, redop"),
    "another mode": ({"op": "x", "mode": "lazy"}, r'mode is "lazy", expected "eager", "graph" or'),
    "no algorithm": (
        {"op": "x", "ranges": [{"max_bytes": 9}]},
        r'rules\[0\].ranges\[0\] needs "algorithm" \(in the rule for x\)',
    ),
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
    rules = {name: (text_of(rule), message) for name, (rule, message) in BAD_PLACES.items()}
    rules["a world backwards"] = text_of(BACKWARDS), r"rules\[0\]: world ends at 2, below its start 4"
    return {**BAD, **rules, **{n: (text_of({"op": "x", "ranges": r}), m) for n, (r, m) in BAD_ORDER.items()}}


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
    for name, why in {"absent": "no regular file", ".": "no regular file", "binary": "is not a text file"}.items():
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


def documents() -> dict[str, Any]:
    written = {name: json.loads(text) for name, text in shipped().items()}
    made = Plan.threshold(8, below="shm_oneshot", above="shm_twoshot", base=shipped_plan("shm"))
    rules = [{"op": "x", "world": [1, None], "ranges": [{"max_bytes": None, "algorithm": "a", "gain": None}]}]
    return {**written, "tuned": json.loads(tuned()), "made": made.document, "small": {**HEAD, "rules": rules}}


def agree(document: Any) -> bool:
    """Say whether a document is a plan, which we and the JSON schema say alike."""
    right = fault_of(document, schema()) is None
    assert right == jsonschema.Draft202012Validator(schema()).is_valid(document), document
    return right


def test_our_validator_takes_the_plans_that_the_json_schema_does() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert all(map(agree, documents().values()))
    lacking = (HEAD, {**HEAD, "schema": "x", "rules": []}, [], {**HEAD, "rules": [], "version": 3})
    assert not any(map(agree, (*lacking, {**HEAD, "rules": [], "fingerprint": {"backend": "shm"}})))


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


def test_our_validator_agrees_with_the_json_schema_on_plans_spoilt_at_random() -> None:
    draw = random.Random(0)
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
        passes.append(agree(document))
    assert 50 < sum(passes) < 950
