"""`commlib radix` and `commlib profile radix`: traces made, read, refused and simulated; never a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commlib.cli.profile import radix as module
from commlib.radix import POLICIES
from commlib.radix.simulate import Simulation
from commlib.radix.trace import Request
from commlib.traces.workloads import WORKLOADS
from tests.cli.calls import exit_code, refuses, written

SCHEMA = "cli/radix/schema.json"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Call `commlib radix` in a folder of its own, on a terminal of 80 columns; returns code, output, errors."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code, output = exit_code("radix", *map(str, words)), capsys.readouterr()
        return code, output.out, output.err

    return call


def write(name: str, *requests: dict[str, Any]) -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def request(*tokens: int, output: tuple[int, ...] = ()) -> Request:
    return Request(np.array(tokens, np.int32), np.array(output, np.int32))


def test_a_made_up_trace_is_simulated_under_every_policy(run):
    for kind in WORKLOADS:
        assert run("generate", kind, "-o", "t.jsonl", "--requests", 60, "--seed", 1) == (0, "", "")
        code, output, _ = run(
            "simulate", "t.jsonl", "--capacity", "50k,100k", "--page-size", 16, "--json", "report.json"
        )
        assert code == 0
        found = written(Path("report.json"), SCHEMA)
        (trace,) = found["traces"]
        assert found["complete"]
        assert trace["requests"] == 60
        assert [(row["capacity"], row["policy"]) for row in trace["rows"]] == [
            (capacity, policy) for capacity in (50_000, 100_000) for policy in POLICIES
        ]
        for row in trace["rows"]:
            assert row["requests"] + row["too_large"] == 60
            assert row["hit_rate"] <= trace["hit_rate"] or row["too_large"]
            assert output.count(f" {row['policy']}") == 2
        assert max(map(len, output.splitlines())) <= 80


@pytest.mark.slow
def test_an_imported_trace_is_simulated(run):
    for kind, name, prompts in [("mooncake", "mooncake.jsonl", 4637), ("sharegpt", "sharegpt.json", 66)]:
        source = Path(__file__).parents[1] / "traces" / name
        assert run("import", kind, source, "-o", "t.jsonl") == (0, "", "")
        assert run("import", kind, source, "-o", "short.jsonl", "--requests", 2) == (0, "", "")
        code, _, _ = run("simulate", "t.jsonl", "short.jsonl", "--policy", "lru", "--json", "report.json")
        assert code == 0
        assert [trace["requests"] for trace in written(Path("report.json"), SCHEMA)["traces"]] == [4, 2]
        assert written(Path("report.json"), SCHEMA)["traces"][0]["prompt_tokens"] == prompts


def test_a_public_trace_that_is_none_leaves_no_file(run):
    Path("bad.json").write_text("[1]")
    code, _, errors = run("import", "sharegpt", "bad.json", "-o", "t.jsonl")
    assert code != 0
    assert "bad.json, object 1: 1 is no object of a trace" in errors
    assert [path.name for path in Path().iterdir()] == ["bad.json"]


@pytest.mark.slow
def test_the_same_seed_makes_the_same_trace(run):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("generate", "multi-turn", "-o", name, "--requests", 40, "--seed", seed)
    assert Path("a").read_text() == Path("b").read_text() != Path("c").read_text()


def test_hits_and_evictions_are_those_of_a_count_by_hand():
    simulation = Simulation("lru", 8)
    for tokens in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 9, 9), (5, 6, 7, 8), (1, 2, 3, 4)):
        simulation.serve(request(*tokens))
    row = simulation.row()
    # Found: 0, then 3 of 4 (the last token is computed), then 2, then nothing, for which 3 4 and then 9 9 go; then 2.
    assert (row["prompt_tokens"], row["cached_tokens"], row["evicted_tokens"]) == (20, 0 + 3 + 2 + 0 + 2, 4)
    assert (row["requests"], row["too_large"]) == (5, 0)


def test_output_is_found_by_the_next_turn_and_what_does_not_fit_is_counted_and_left_out(run):
    shared = {"tokens": [[0, 10]], "output": [[10, 10]]}
    write("t", shared, {"tokens": [[0, 25]]}, {"tokens": [7], "output": 5}, {"tokens": [7, 8, 9], "output": 5})
    run("simulate", "t", "--json", "report.json", "--policy", "lru")
    (row,) = [row for row in written(Path("report.json"), SCHEMA)["traces"][0]["rows"] if row["capacity"] == 100_000]
    assert row["cached_tokens"] == 20 + 1
    write("t", {"tokens": [[0, 90]], "output": 20}, {"tokens": [[0, 50]]}, {"tokens": [[0, 50]], "priority": 3})
    code, output, _ = run("simulate", "t", "--capacity", "100", "--policy", "priority", "--json", "report.json")
    assert code == 0
    (row,) = written(Path("report.json"), SCHEMA)["traces"][0]["rows"]
    assert (row["requests"], row["too_large"], row["cached_tokens"]) == (2, 1, 49)
    assert "100 priority*" in output


def test_a_line_that_is_no_request_is_named(run):
    for line, fault in [
        ("{", "not JSON: "),
        ('{"tokens": []}', "tokens is empty"),
        ('{"tokens": [1, "2"]}', 'tokens[1] is "2", not a number or a pair'),
        ('{"tokens": [[1, -2]]}', "tokens[0] makes -2 tokens"),
        ('{"tokens": [2147483648]}', "tokens[0] is 2147483648, but tokens are from -2147483648 to 2147483647"),
        ('{"tokens": [1], "output": -1}', "output is -1"),
        ('{"tokens": [1], "salt": 0}', "a request has no 'salt'; there are tokens, output, namespace, priority"),
    ]:
        Path("t").write_text('{"tokens": [1]}\n\n' + line + "\n")
        code, _, error = run("simulate", "t")
        assert (code, error.count("\n")) == (2, 1)
        assert f"commlib: t, line 3: {fault}" in error


def test_options_that_make_no_sense_are_refused_in_one_line(run):
    write("t", {"tokens": [1]})
    cases = (
        ("--policy lru,best", "no policy 'best'; there are all, lru, lfu"),
        ("--capacity nan", "'nan' is not a whole number"),
        ("--capacity 10 --page-size 16", "--capacity 10 has no room for a page of 16 tokens"),
        ("--json no/x.json", "there is no folder no; make it first"),
    )
    refuses("radix simulate t", cases)


def test_ctrl_c_shows_what_there_is_so_far(run, monkeypatch):
    write("t", *({"tokens": [[0, 10]]} for _ in range(4)))
    serve = Simulation.serve
    served = []

    def interrupted(simulation, request):
        served.append(simulation)
        if served.count(simulation) == 3:
            raise KeyboardInterrupt
        serve(simulation, request)

    monkeypatch.setattr(Simulation, "serve", interrupted)
    code, output, _ = run("simulate", "t", "t", "--policy", "lru,lfu", "--json", "report.json")
    assert code == 130
    found = written(Path("report.json"), SCHEMA)
    assert (found["complete"], found["ended"], len(found["traces"])) == (False, "interrupted", 1)
    assert {row["requests"] for row in found["traces"][0]["rows"]} == {2}
    assert "interrupted: not complete" in output


QUICK = ("--time", "0.1", "--leaves", "200")


def test_every_operation_is_measured_beside_who_does_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "report.json"
    assert exit_code("profile", "radix", *QUICK, "-o", str(path)) == 0
    found = written(path, "cli/profile/radix_schema.json")
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
    assert exit_code("profile", "radix", *QUICK, "--json") == 130
    found = written(capsys.readouterr().out, "cli/profile/radix_schema.json")
    assert (found["complete"], found["ended"], len(found["rows"])) == (False, "interrupted", 3)
