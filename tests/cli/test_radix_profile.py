"""`commlib profile radix`: what is measured, printed and written; never a time."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest

from commlib.cli import main
from commlib.cli.profile import radix as module

SCHEMA = json.loads((resources.files("commlib.cli.profile") / "radix_schema.json").read_text(encoding="utf-8"))
QUICK = ("--time", "0.1", "--leaves", "200")


def profile(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["profile", "radix", *QUICK, *words])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_every_operation_is_measured_beside_who_does_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "report.json"
    assert profile("-o", str(path)) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert (found["complete"], found["leaves"]) == (True, 200)
    by_operation = {}
    for row in found["rows"]:
        by_operation.setdefault(row["operation"], set()).add(row["candidate"])
        assert 0 < row["least_us"] <= row["median_us"]
        assert (row["to_ours"] is None) == (row["candidate"] == "commlib")
        assert (row["gbps"] is not None) == (row["operation"] == "prefix_match")
    assert by_operation == {
        "prefix_match": {"commlib", "numpy", "torch"},
        "match": {"commlib", "commlib out=", "dictionary, 16"},
        "lock, unlock": {"commlib"},
        "insert": {"commlib"},
        "evict": {"commlib"},
        "insert, evict": {"commlib"},
    }
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if not line.startswith("#")]) == len(found["rows"])


def test_json_on_stdout_stands_alone_also_after_ctrl_c(monkeypatch, capsys):
    measured = module.measured
    done = []

    def interrupted(operation, budget_s, seed):
        if done:
            raise KeyboardInterrupt
        done.append(operation)
        return measured(operation, budget_s, seed)

    monkeypatch.setattr(module, "measured", interrupted)
    assert profile("--json") == 130
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert (found["complete"], found["ended"], len(found["rows"])) == (False, "interrupted", 3)
