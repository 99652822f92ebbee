"""`commlib radix` and `commlib profile radix`: traces made, read, refused and simulated; never a time."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from commlib.radix import POLICIES
from commlib.radix.simulate import Simulation
from commlib.radix.trace import Request, Trace
from commlib.tools.traces.workloads import WORKLOADS
from tests.cli.calls import written

SCHEMA = "cli/radix/schema.json"


@pytest.fixture
def run(call):
    return partial(call, "radix")


def write(name, *requests):
    Path(name).write_text("".join(json.dumps(request) + "\n" for request in requests))


def traces():
    """Return what the report says of each trace."""
    return written(Path("report.json"), SCHEMA)["traces"]


def test_a_made_up_trace_is_simulated_under_every_policy(run):
    for kind in WORKLOADS:
        assert run("generate", kind, "-o", "t.jsonl", "--requests", 60, "--seed", 1) == (0, "", "")
        capacities = ("--capacity", "50k,100k", "--page-size", 16)
        code, output, _ = run("simulate", "t.jsonl", *capacities, "--json", "report.json")
        (trace,) = traces()
        assert (code, trace["requests"]) == (0, 60)
        simulated = [(row["capacity"], row["policy"]) for row in trace["rows"]]
        assert simulated == [(capacity, policy) for capacity in (50_000, 100_000) for policy in POLICIES]
        for row in trace["rows"]:
            assert row["requests"] + row["too_large"] == 60
            assert row["hit_rate"] <= trace["hit_rate"] or row["too_large"]
            assert output.count(f" {row['policy']}") == 2
        assert max(map(len, output.splitlines())) <= 80


def test_so_much_of_a_public_trace_is_imported_and_one_that_is_none_leaves_no_file(run):
    for kind, name in (("mooncake", "mooncake.jsonl"), ("sharegpt", "sharegpt.json")):
        source = Path(__file__).parents[1] / "traces" / name
        assert run("import", kind, source, "-o", "t.jsonl", "--requests", 2) == (0, "", "")
        assert len(list(Trace(Path("t.jsonl")))) == 2
    Path("t.jsonl").unlink()
    Path("bad.json").write_text("[1]")
    code, _, errors = run("import", "sharegpt", "bad.json", "-o", "t.jsonl")
    assert (code != 0, "bad.json, object 1: " in errors) == (True, True)
    assert [path.name for path in Path().iterdir()] == ["bad.json"]


def test_hits_and_evictions_are_those_of_a_count_by_hand():
    simulation = Simulation("lru", 8)
    for tokens in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 9, 9), (5, 6, 7, 8), (1, 2, 3, 4)):
        simulation.serve(Request(np.array(tokens, np.int32), np.array((), np.int32)))
    row = simulation.row()
    # Found: 0, then 3 of 4 (the last token is computed), then 2, then nothing, for which 3 4 and then 9 9 go; then 2.
    assert (row["prompt_tokens"], row["cached_tokens"], row["evicted_tokens"]) == (20, 0 + 3 + 2 + 0 + 2, 4)
    assert (row["requests"], row["too_large"]) == (5, 0)


def test_output_is_found_by_the_next_turn_and_what_does_not_fit_is_counted_and_left_out(run):
    shared = {"tokens": [[0, 10]], "output": [[10, 10]]}
    write("t", shared, {"tokens": [[0, 25]]}, {"tokens": [7], "output": 5}, {"tokens": [7, 8, 9], "output": 5})
    run("simulate", "t", "--json", "report.json", "--policy", "lru")
    (row,) = [row for row in traces()[0]["rows"] if row["capacity"] == 100_000]
    assert row["cached_tokens"] == 20 + 1
    write("t", {"tokens": [[0, 90]], "output": 20}, {"tokens": [[0, 50]]}, {"tokens": [[0, 50]], "priority": 3})
    code, output, _ = run("simulate", "t", "--capacity", "100", "--policy", "priority", "--json", "report.json")
    assert code == 0
    (row,) = traces()[0]["rows"]
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


def test_ctrl_c_shows_what_there_is_so_far(run, monkeypatch):
    write("t", *({"tokens": [[0, 10]]} for _ in range(4)))
    serve = Simulation.serve

    def interrupted(simulation, request):
        if simulation.requests == 2:
            raise KeyboardInterrupt
        serve(simulation, request)

    monkeypatch.setattr(Simulation, "serve", interrupted)
    code, output, _ = run("simulate", "t", "t", "--policy", "lru,lfu", "--json", "report.json")
    assert code == 130
    found = written(Path("report.json"), SCHEMA)
    assert (found["complete"], found["ended"], len(found["traces"])) == (False, "interrupted", 1)
    assert {row["requests"] for row in found["traces"][0]["rows"]} == {2}
    assert "interrupted: not complete" in output


def test_every_operation_is_measured_beside_who_does_the_same(call):
    code, text, _ = call("profile", "radix", "--time", "0.1", "--leaves", "200", "-o", "report.json")
    found = written(Path("report.json"), "cli/profile/radix_schema.json")
    assert (code, found["complete"], found["leaves"]) == (0, True, 200)
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
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if not line.startswith("#")]) == len(found["rows"])
