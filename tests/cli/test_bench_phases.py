"""`commlib bench OP --phases` and `commlib plan explain`: where the time of a call goes, and what runs it."""

import json

import pytest

from commlib.tools.bench import phases
from commlib.tools.cli.bench.phases import KIND
from commlib.tools.timing import Measurement
from tests.cli.calls import exit_code, written

ON_SHM = {"python", "native", "plan", "publish", "wait", "reduce", "copy"}


def test_the_phases_of_each_rank_add_up_to_its_call(command, tmp_path):
    output = tmp_path / "comm.json"
    words = ("--sizes", "16K", "-o", str(output), "--time", "0.2", "--backend", "shm")
    done = command("bench", "--phases", "-n", "2", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = written(output, KIND)
    assert (found["config"]["ranks"], found["config"]["size"], found["wrong"]) == (2, 16 << 10, 0)
    assert found["choice"]["algorithm"].startswith("shm_")
    for rank in found["ranks"]:
        rows = [row for row in found["rows"] if row["rank"] == rank["rank"]]
        # A rank whose peers are there already has nothing to wait for.
        assert {row["phase"] for row in rows} | {"wait"} == ON_SHM
        assert sum(row["us"] for row in rows) == pytest.approx(rank["sum_us"], rel=0.01)
        assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.01)
        assert rank["sum_us"] <= rank["stamped_us"], "what the stamps take is taken off"
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\n# phases add up to" in done.stdout


@pytest.mark.parametrize(("form", "start"), [("table", "#"), ("md", "-")])
def test_a_wrong_value_fails_the_run_in_each_form(form, start, monkeypatch, capsys):
    monkeypatch.setattr(phases, "measure", lambda *_: [Measurement("shm", False, times_s=[1e-6], wrong=3)])
    assert exit_code("bench", "--phases", "--sizes", "64", "--time", "0.1", "--backend", "shm", "--format", form) == 1
    assert f"\n{start} Out of bounds values : 3 FAILED" in capsys.readouterr().out


@pytest.fixture
def explain(call):
    """Explain calls; return the rows and the text."""

    def explain(*words):
        command = ("plan", "explain", "all_reduce", "--placement", "both", *words, "--backend", "shm")
        code, text, errors = call(*command)
        assert (code, max(map(len, text.splitlines())) <= 80) == (0, True), errors
        return json.loads(call(*command, "--json")[1])["rows"], " ".join(text.split())

    return explain


def test_the_choice_for_each_type_of_memory_is_the_plan_s(explain):
    rows, text = explain("--bytes", "4K,1M")
    assert [(row["size"], row["placement"], row["algorithm"]) for row in rows] == [
        (4096, "plain", "shm_oneshot"),
        (4096, "symmetric", "shm_symmetric"),
        (1 << 20, "plain", "shm_twoshot"),
        (1 << 20, "symmetric", "shm_symmetric"),
    ]
    assert rows[0]["params"] == {"chunk_bytes": 128 << 10, "hot": 1}
    assert "for sizes above 8K" in rows[2]["why"]
    assert "parameters: chunk_bytes 131072, hot 1" in text
