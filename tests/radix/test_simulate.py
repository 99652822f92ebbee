"""Traces made, imported and simulated by the scripts of benchmarks/radix; never a time."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.radix import make_traces, simulate
from benchmarks.radix.simulate import Request, Simulation, read
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


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "Expecting property name"),
        ("[]", "a request is an object with tokens"),
        ('{"tokens": []}', "tokens is empty"),
        ('{"tokens": [1, "2"]}', r"tokens\[1\] is '2', but must be a number or a pair"),
        ('{"tokens": [[1, -2]]}', r"tokens\[0\] makes -2 tokens"),
        ('{"tokens": [2147483648]}', r"tokens\[0\] is 2147483648, but tokens are from -2147483648 to 2147483647"),
        ('{"tokens": [1], "output": -1}', "output is -1"),
        ('{"tokens": [1], "salt": 0}', "a request has no 'salt'; there are tokens, output, namespace, priority"),
    ],
)
def test_a_line_that_is_no_request_is_named(line, fault):
    Path("t").write_text('{"tokens": [1]}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=f"^t, line 3: {fault}"):
        list(read(Path("t")))


def test_ctrl_c_shows_what_there_is_so_far(monkeypatch):
    write("t", *({"tokens": [[0, 10]]} for _ in range(4)))
    serve = Simulation.serve

    def interrupted(simulation, request):
        if simulation.requests == 2:
            raise KeyboardInterrupt
        serve(simulation, request)

    monkeypatch.setattr(Simulation, "serve", interrupted)
    code, report = simulated("t", "t", "--policy", "lru,lfu", "--capacity", "100")
    assert (code, report["complete"], len(report["traces"])) == (130, False, 1)
    assert {row["requests"] for row in report["traces"][0]["rows"]} == {2}


def imported(kind, text, *words):
    """Import a public trace, and return its requests as (prompt, output)."""
    Path("public").write_text(text)
    make_traces.main([kind, "public", "-o", "t.jsonl", *words])
    return [(each.tokens.tolist(), each.output.tolist()) for each in read(Path("t.jsonl"))]


def test_prompts_of_mooncake_have_their_lengths_and_share_their_blocks():
    rows = [(10, 3, [46, "a0", 7]), (8, 0, [46, "a0"]), (9, 2, [46, 7, 8]), (3, 1, [5])]
    text = "\n".join(json.dumps(dict(zip(("input_length", "output_length", "hash_ids"), r, strict=True))) for r in rows)
    prompts, outputs = zip(*imported("mooncake", text, "--block", "4"), strict=True)
    assert prompts == ([*range(10)], [*range(8)], [0, 1, 2, 3, 8, 9, 10, 11, 12], [16, 17, 18])
    assert [len(output) for output in outputs] == [3, 0, 2, 1]
    assert len(imported("mooncake", text, "--block", "4", "--requests", "2")) == 2


def talk(*turns):
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def test_a_reply_is_a_request_the_next_prompt_begins_with_it_and_conversations_take_turns():
    first = talk(("human", "Hi."), ("gpt", "Yes?"), ("human", "And?"), ("gpt", "No."))
    second = talk(("system", "Be."), ("human", "Short?"), ("gpt", ""), ("human", "Nobody answers."))
    requests = imported("sharegpt", json.dumps([first, talk(), second]), "--tokens", "bytes")
    assert [tuple(bytes(part).decode() for part in request) for request in requests] == [
        ("<human>Hi.<gpt>", "Yes?"),
        ("<system>Be.<human>Short?<gpt>", ""),
        ("<human>Hi.<gpt>Yes?<human>And?<gpt>", "No."),
    ]
    words = imported("sharegpt", json.dumps(talk(("human", "to be, or not to be"), ("gpt", "be"))))
    assert words == [([0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 0, 9, 2], [10])], "' be' is another word than 'be'"


ROW = {"input_length": 600, "output_length": 1, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("mooncake", "{", "line 1: not JSON"),
        ("mooncake", "\n7", "object 1: 7 is not an object"),
        ("mooncake", json.dumps({**ROW, "input_length": None}), "object 1: input_length is None"),
        ("mooncake", json.dumps({**ROW, "hash_ids": [[1], [2]]}), "hash_ids is .* but must be a list"),
        ("mooncake", json.dumps({**ROW, "hash_ids": [1]}), "input_length is 600, but there are 1 hash_ids"),
        ("sharegpt", json.dumps([talk(("human", "x")), {"id": 1}]), "object 2: conversations is None"),
        ("sharegpt", json.dumps([talk(("human", 3))]), "'value' of a turn is 3, but must be text"),
    ],
)
def test_what_is_not_in_the_format_is_named(kind, text, fault):
    with pytest.raises(ValueError, match=f"^public, .*{fault}"):
        imported(kind, text)
    assert not Path("t.jsonl").exists()
