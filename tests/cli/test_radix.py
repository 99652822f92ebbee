"""`commlib radix` as a user meets it: traces made, read, refused and simulated; never a time."""

from __future__ import annotations

import csv
import json
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from commlib.cli import main
from commlib.radix import POLICIES
from commlib.radix.simulate import Simulation
from commlib.radix.trace import Request, Trace
from commlib.traces.workloads import WORKLOADS

SCHEMA = json.loads((resources.files("commlib.cli.radix") / "schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Call `commlib radix` in a folder of its own, on a terminal of 80 columns; returns code, output, errors."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def call(*words):
        with pytest.raises(SystemExit) as end:
            main(["radix", *map(str, words)])
        output = capsys.readouterr()
        return end.value.code, output.out, output.err

    return call


def write(name: str, *requests: dict[str, Any]) -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def document(path: str = "report.json") -> dict[str, Any]:
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def request(*tokens: int, output: tuple[int, ...] = ()) -> Request:
    return Request(np.array(tokens, np.int32), np.array(output, np.int32))


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_made_up_trace_is_simulated_under_every_policy(run, kind):
    assert run("generate", kind, "-o", "t.jsonl", "--requests", 60, "--seed", 1) == (0, "", "")
    code, output, _ = run("simulate", "t.jsonl", "--capacity", "50k,100k", "--page-size", 16, "--json", "report.json")
    assert code == 0
    found = document()
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


@pytest.mark.parametrize(
    ("kind", "name", "prompts"), [("mooncake", "mooncake.jsonl", 4637), ("sharegpt", "sharegpt.json", 66)]
)
def test_an_imported_trace_is_simulated(run, kind, name, prompts):
    source = Path(__file__).parents[1] / "traces" / name
    assert run("import", kind, source, "-o", "t.jsonl") == (0, "", "")
    assert run("import", kind, source, "-o", "short.jsonl", "--requests", 2) == (0, "", "")
    code, _, _ = run("simulate", "t.jsonl", "short.jsonl", "--policy", "lru", "--json", "report.json")
    assert code == 0
    assert [trace["requests"] for trace in document()["traces"]] == [4, 2]
    assert document()["traces"][0]["prompt_tokens"] == prompts


def test_a_public_trace_that_is_none_leaves_no_file(run):
    Path("bad.json").write_text("[1]")
    code, _, errors = run("import", "sharegpt", "bad.json", "-o", "t.jsonl")
    assert code != 0
    assert "bad.json, object 1: 1 is no object of a trace" in errors
    assert [path.name for path in Path().iterdir()] == ["bad.json"]


def test_the_same_seed_makes_the_same_trace(run):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("generate", "multi-turn", "-o", name, "--requests", 40, "--seed", seed)
    assert Path("a").read_text() == Path("b").read_text() != Path("c").read_text()


def test_conversations_find_all_that_they_began_with(run):
    run("generate", "multi-turn", "-o", "t", "--requests", 30, "--conversations", 1, "--turns", 99, "--system", 10)
    requests = list(Trace(Path("t")))
    for before, after in pairwise(requests):
        whole = np.concatenate([before.tokens, before.output])
        assert np.array_equal(after.tokens[: len(whole)], whole)


def test_hits_and_evictions_are_those_of_a_count_by_hand():
    simulation = Simulation("lru", 8)
    for tokens in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 9, 9), (5, 6, 7, 8), (1, 2, 3, 4)):
        simulation.serve(request(*tokens))
    row = simulation.row()
    # Found: 0, then 3 of 4 (the last token is computed), then 2, then nothing, for which 3 4 and then 9 9 go; then 2.
    assert (row["prompt_tokens"], row["cached_tokens"], row["evicted_tokens"]) == (20, 0 + 3 + 2 + 0 + 2, 4)
    assert (row["requests"], row["too_large"]) == (5, 0)


def test_output_is_found_by_the_next_turn_and_a_number_of_tokens_by_nobody(run):
    shared = {"tokens": [[0, 10]], "output": [[10, 10]]}
    write("t", shared, {"tokens": [[0, 25]]}, {"tokens": [7], "output": 5}, {"tokens": [7, 8, 9], "output": 5})
    run("simulate", "t", "--json", "report.json", "--policy", "lru")
    (row,) = [row for row in document()["traces"][0]["rows"] if row["capacity"] == 100_000]
    assert row["cached_tokens"] == 20 + 1


def test_every_slot_is_free_or_in_the_tree(run):
    run("generate", "scan", "-o", "t", "--requests", 80, "--document", 300, "--once", 200, "--documents", 5)
    for eviction in ("leaf", "tail"):
        simulation = Simulation("slru", 3001, 16, eviction)
        for each in Trace(Path("t")):
            simulation.serve(each)
            assert simulation._slots.free + simulation._cache.evictable_size == 3001 - 3001 % 16
        simulation._cache.check()


def test_requests_that_do_not_fit_are_counted_and_left_out(run):
    write("t", {"tokens": [[0, 90]], "output": 20}, {"tokens": [[0, 50]]}, {"tokens": [[0, 50]], "priority": 3})
    code, output, _ = run("simulate", "t", "--capacity", "100", "--policy", "priority", "--json", "report.json")
    assert code == 0
    (row,) = document()["traces"][0]["rows"]
    assert (row["requests"], row["too_large"], row["cached_tokens"]) == (2, 1, 49)
    assert "100 priority*" in output


def test_namespaces_share_nothing(run):
    prompt = {"tokens": [[0, 10]]}
    spaces = (None, "a", 7, ["a", 7], None, ["a", 7])
    write("t", *({**prompt, "namespace": space} for space in spaces))
    run("simulate", "t", "--policy", "lru", "--json", "report.json")
    assert document()["traces"][0]["rows"][0]["cached_tokens"] == 2 * 9


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON: "),
        ("[1]", "a request is an object with tokens, not [1]"),
        ("{}", "a request needs the key tokens"),
        ('{"tokens": []}', "tokens is empty"),
        ('{"tokens": 3}', "tokens is 3, not a list of numbers"),
        ('{"tokens": [1, "2"]}', 'tokens[1] is "2", not a number or a pair'),
        ('{"tokens": [true]}', "tokens[0] is true, not a number"),
        ('{"tokens": [[1, 2, 3]]}', "tokens[0] is [1, 2, 3], not a number or a pair"),
        ('{"tokens": [[1, -2]]}', "tokens[0] makes -2 tokens"),
        ('{"tokens": [[1, 99999999999]]}', "tokens[0] makes 99999999999 tokens"),
        ('{"tokens": [2147483648]}', "tokens[0] is 2147483648, but tokens are from -2147483648 to 2147483647"),
        ('{"tokens": [1], "output": -1}', "output is -1"),
        ('{"tokens": [1], "output": "x"}', 'output is "x", not a list'),
        ('{"tokens": [1], "namespace": {}}', "namespace is {}, not text"),
        ('{"tokens": [1], "priority": 0.5}', "priority is 0.5, not a 64-bit integer"),
        ('{"tokens": [1], "salt": 0}', "a request has no 'salt'; there are tokens, output, namespace, priority"),
    ],
)
def test_a_line_that_is_no_request_is_named(run, line, fault):
    Path("t").write_text('{"tokens": [1]}\n\n' + line + "\n")
    code, _, error = run("simulate", "t")
    assert (code, error.count("\n")) == (2, 1)
    assert f"commlib: t, line 3: {fault}" in error


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--policy", "lru,best"), "no policy 'best'; there are all, lru, lfu"),
        (("--capacity", "10x"), "'10x' is no number of tokens; write 5000, 100k or 1M"),
        (("--capacity", "0.5"), "'0.5' is not a whole number from 1"),
        (("--capacity", "nan"), "'nan' is not a whole number"),
        (("--capacity", "10", "--page-size", "16"), "--capacity 10 has no room for a page of 16 tokens"),
        (("--plot", "x.pdf"), "--plot x.pdf is no .png or .svg file"),
        (("--json", "no/x.json"), "there is no folder no; make it first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_that_make_no_sense_are_refused_in_one_line(run, words, fault):
    write("t", {"tokens": [1]})
    code, output, error = run("simulate", "t", *words)
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert fault in error


def test_json_on_stdout_stands_alone(run):
    write("t", {"tokens": [1, 2]})
    _, output, _ = run("simulate", "t", "--policy", "lru", "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(output))


def test_a_file_of_another_name_is_csv_or_markdown(run):
    write("t", {"tokens": [[0, 10]]}, {"tokens": [[0, 10]]})
    for name in ("found.csv", "found.md"):
        assert run("simulate", "t", "t", "--policy", "lru,lfu", "--capacity", "100", "-o", name)[0] == 0
    rows = list(csv.DictReader(Path("found.csv").read_text().splitlines()))
    assert [(row["trace"], row["policy"], row["cached_tokens"]) for row in rows] == 2 * [
        ("t", "lru", "9"),
        ("t", "lfu", "9"),
    ]
    text = Path("found.md").read_text()
    assert text.count("### t: 2 requests, 20 prompt tokens, limit 45.0 %") == 2
    assert text.count("| 100 | lfu* | 45.0 | 100.0 |") == 2


def test_a_trace_that_cannot_be_written_is_refused(run):
    code, _, error = run("generate", "scan", "-o", "no/t", "--requests", 3)
    assert code == 2
    assert "there is no folder no; make it first" in error


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
    found = document()
    assert (found["complete"], found["ended"], len(found["traces"])) == (False, "interrupted", 1)
    assert {row["requests"] for row in found["traces"][0]["rows"]} == {2}
    assert "interrupted: not complete" in output


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(run, suffix):
    pytest.importorskip("matplotlib")
    run("generate", "scan", "-o", "t", "--requests", 20)
    code, _, _ = run("simulate", "t", "t", "--eviction", "both", "--policy", "lru,slru", "--plot", f"p{suffix}")
    assert code == 0
    assert Path(f"p{suffix}").stat().st_size > 1000
