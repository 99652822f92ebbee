"""Traces made and simulated by the scripts of benchmarks/radix; never a time."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.radix import make_traces, simulate
from benchmarks.radix.simulate import Request, Simulation
from commlib.radix import POLICIES


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, *requests):
    Path(name).write_text("".join(json.dumps(request) + "\n" for request in requests))


def simulated(*words):
    """Return the exit code, and the figures of each trace."""
    code = simulate.main([*map(str, words), "-o", "report.json"])
    return code, json.loads(Path("report.json").read_text())


def test_a_made_up_trace_is_simulated_under_every_policy(capsys):
    for kind in make_traces.WORKLOADS:
        make_traces.main([kind, "-o", "t.jsonl", "--requests", "60", "--seed", "1"])
        code, report = simulated("t.jsonl", "--capacity", "50000,100000", "--page-size", 16)
        (trace,) = report["traces"]
        assert (code, report["complete"], trace["limit"]["requests"]) == (0, True, 60)
        ways = [(row["capacity"], row["policy"]) for row in trace["rows"]]
        assert ways == [(capacity, policy) for capacity in (50_000, 100_000) for policy in POLICIES]
        for row in trace["rows"]:
            assert row["requests"] + row["too_large"] == 60
            assert row["hit_rate"] <= trace["limit"]["hit_rate"] or row["too_large"]
        assert len(capsys.readouterr().out.splitlines()) == 2 + len(ways)


def test_hits_and_evictions_are_those_of_a_count_by_hand():
    simulation = Simulation("lru", 8)
    for tokens in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 9, 9), (5, 6, 7, 8), (1, 2, 3, 4)):
        simulation.serve(Request(np.array(tokens, np.int32), np.array((), np.int32)))
    row = simulation.row()
    # Hits: 0, then 3 of 4 (the last token is computed), then 2, then nothing, for which 3 4 and then 9 9 go; then 2.
    assert (row["prompt_tokens"], row["cached_tokens"], row["evicted_tokens"]) == (20, 0 + 3 + 2 + 0 + 2, 4)
    assert (row["requests"], row["too_large"]) == (5, 0)


def test_output_is_cached_for_the_next_turn_and_what_does_not_fit_is_only_counted():
    shared = {"tokens": [[0, 10]], "output": [[10, 10]]}
    write("t", shared, {"tokens": [[0, 25]]}, {"tokens": [7], "output": 5}, {"tokens": [7, 8, 9], "output": 5})
    (row,) = simulated("t", "--policy", "lru", "--capacity", "100")[1]["traces"][0]["rows"]
    assert row["cached_tokens"] == 20 + 1
    write("t", {"tokens": [[0, 90]], "output": 20}, {"tokens": [[0, 50]]}, {"tokens": [[0, 50]], "priority": 3})
    (row,) = simulated("t", "--policy", "priority", "--capacity", "100")[1]["traces"][0]["rows"]
    assert (row["requests"], row["too_large"], row["cached_tokens"]) == (2, 1, 49)
