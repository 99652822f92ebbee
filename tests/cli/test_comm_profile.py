"""`commlib profile comm`: phases that add up, a trace and a picture of them, and what is refused; never a time."""

from __future__ import annotations

import json
import os
import subprocess
from importlib import resources
from itertools import pairwise

import jsonschema
import pytest
import torch

from commlib.bench import phases
from commlib.cli import main
from commlib.report.view import grouped
from commlib.timing import Measurement

SCHEMA = json.loads((resources.files("commlib.cli.profile") / "comm_schema.json").read_text(encoding="utf-8"))
ON_SHM = {"python", "native", "plan", "publish", "wait", "reduce", "copy"}


@pytest.fixture(scope="module")
def profile(quick_python):
    def profile(*words):
        command = [str(quick_python), "-m", "commlib", "profile", "comm", *words, "--time", "0.2", "--backend", "shm"]
        environment = {**os.environ, "COLUMNS": "80"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return profile


def alone(monkeypatch, *words):
    """Run in this process, with one rank."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        main(["profile", "comm", *words])
    return end.value.code


def written(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def are(expected, phases):
    """Say whether phases are those expected; a rank whose peers are there already has nothing to wait for."""
    return phases | {"wait"} == expected


def test_the_phases_of_each_rank_add_up_to_its_call(profile, tmp_path):
    output, trace, picture = (tmp_path / name for name in ("comm.json", "trace.json", "comm.svg"))
    text = profile("-n", "2", "--bytes", "16K", "-o", str(output), "--trace", str(trace), "--plot", str(picture))
    found = written(output)
    assert (found["config"]["ranks"], found["config"]["size"], found["wrong"]) == (2, 16 << 10, 0)
    assert found["choice"]["algorithm"].startswith("shm_")
    for rank in found["ranks"]:
        rows = [row for row in found["rows"] if row["rank"] == rank["rank"]]
        assert are(ON_SHM, {row["phase"] for row in rows})
        assert sum(row["us"] for row in rows) == pytest.approx(rank["sum_us"], rel=0.01)
        assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.01)
        assert rank["sum_us"] <= rank["stamped_us"], "what the stamps take is taken off"
    assert {bar["rank"] for bar in found["timeline"]} == {0, 1}
    assert picture.read_text(encoding="utf-8").count("publish") > 0
    assert max(map(len, text.splitlines())) <= 80
    assert "# phases add up to" in text
    check_trace(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])


def check_trace(events):
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"rank 0", "rank 1", "host"}
    spans = [event for event in events if event["ph"] == "X"]
    assert min(span["ts"] for span in spans) == 0
    for of_call in grouped(spans, lambda span: (span["pid"], span["args"]["call"])):
        assert are(ON_SHM, {span["name"] for span in of_call})
        for one, following in pairwise(of_call):
            assert one["ts"] + one["dur"] == pytest.approx(following["ts"], abs=0.002), "no time is left out"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("all_gather", "--algorithm", "shm_symmetric"), ON_SHM - {"reduce"}),
        (("all_reduce_rms_norm", "-d", "bf16"), ON_SHM),
        (("barrier",), ON_SHM - {"reduce"}),
        (("send_recv", "--bytes", "1K"), {"python", "native", "wait", "copy"}),
    ],
)
def test_every_kind_of_call_has_its_phases(profile, tmp_path, words, expected):
    output = tmp_path / "comm.json"
    profile(*words, "-n", "2", "-o", str(output))
    found = written(output)
    assert are(expected, {row["phase"] for row in found["rows"]})
    wanted = words[words.index("--algorithm") + 1] if "--algorithm" in words else found["choice"]["algorithm"]
    assert found["choice"]["algorithm"] == wanted
    assert found["config"]["placement"] == ("symmetric" if wanted == "shm_symmetric" else "plain")


def test_a_rank_alone_has_phases_too(monkeypatch, capsys):
    assert alone(monkeypatch, "--bytes", "64", "--time", "0.1", "--backend", "shm") == 0
    assert "1 rank on shm" in capsys.readouterr().out


def test_a_wrong_value_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(phases, "measure", lambda *_: [Measurement("shm", False, times_s=[1e-6], wrong=3)])
    assert alone(monkeypatch, "--bytes", "64", "--time", "0.1", "--backend", "shm") == 1
    assert "# Out of bounds values : 3 FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_reduced",), "no collective 'all_reduced'"),
        (("--algorithm", "shm_none"), "no algorithm of all_reduce 'shm_none'"),
        (("--redop", "median"), "no reduction 'median'"),
        (("--graph",), "--graph needs GPUs"),
        (("barrier", "--in-place"), "barrier has no in-place form"),
        (("-d", "bf16", "--redop", "bor"), "all_reduce has no such reduction of this element type"),
        (("broadcast", "-n", "2", "-r", "2"), "--root 2 is no rank; the last one is 1"),
        (("--trace", "/nowhere/trace.json"), "there is no folder /nowhere"),
        (("--plot", "phases.pdf"), "no .png or .svg file"),
        (("--algorithm", "lsa_oneshot", "--backend", "shm"), "has no algorithm"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(monkeypatch, capsys, words, said):
    assert alone(monkeypatch, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
