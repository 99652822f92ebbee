"""`commlib bench OP --phases` and `commlib plan explain`: where the time of a call goes, and what it should take."""

import pytest

from commlib.tools.bench import phases
from commlib.tools.bench.phases_report import KIND
from commlib.tools.cli.plan_paths import KIND as EXPLAINED
from commlib.tools.timing import Measurement
from tests.cli.bench_documents import LIMIT, WAYS, document, saved
from tests.cli.calls import exit_code, written

ON_SHM = {"python", "native", "plan", "publish", "wait", "reduce", "copy"}


def are(expected, phases):
    """Say whether phases are those expected; a rank whose peers are there already has nothing to wait for."""
    return phases | {"wait"} == expected


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
        assert are(ON_SHM, {row["phase"] for row in rows})
        assert sum(row["us"] for row in rows) == pytest.approx(rank["sum_us"], rel=0.01)
        assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.01)
        assert rank["sum_us"] <= rank["stamped_us"], "what the stamps take is taken off"
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "# phases add up to" in done.stdout


def test_a_wrong_value_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(phases, "measure", lambda *_: [Measurement("shm", False, times_s=[1e-6], wrong=3)])
    assert exit_code("bench", "--phases", "--sizes", "64", "--time", "0.1", "--backend", "shm") == 1
    assert "# Out of bounds values : 3 FAILED" in capsys.readouterr().out


@pytest.fixture
def explain(call):
    """Explain calls; return the rows and the text."""

    def explain(*words):
        command = ("plan", "explain", "all_reduce", "--placement", "both", *words, "--backend", "shm")
        code, text, errors = call(*command)
        assert (code, max(map(len, text.splitlines())) <= 80) == (0, True), errors
        return written(call(*command, "--json")[1], EXPLAINED)["rows"], " ".join(text.split())

    return explain


def expected_us(algorithm, size):
    _, _, latency_us, gbps = WAYS[algorithm]
    return latency_us + size / gbps / 1e3


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
    assert {row["expected_us"] for row in rows} == {None}
    assert "copies: none: peers read and write the tensors where they lie" in text
    assert "expected" not in text and "limit" not in text


def test_times_and_the_limit_are_those_of_results(explain, tmp_path):
    results = saved(tmp_path, document(), "bench.json")
    rows, text = explain("--bytes", "64,96K", "--results", str(results))
    for row in rows:
        assert row["expected_us"] == pytest.approx(expected_us(row["algorithm"], row["size"]), rel=1e-3)
        assert row["limit_us"] == pytest.approx(max(row["size"] / LIMIT / 1e3, 0.3), abs=1e-3)
        assert row["times_from"] == "bench.json, float32"
        measured = expected_us(row["algorithm"], row["size"]) if row["size"] == 64 else None
        assert row["measured_us"] == (pytest.approx(measured, abs=1e-3) if measured else None)
    for others in (("-n", "3"), ("--dtype", "bf16")):
        of_others, _ = explain("--bytes", "64", "--results", str(results), *others)
        assert of_others[0]["expected_us"] is None
    assert "= 2.1 us + size / 3.3 GB/s, fitted to" in text
    assert "memory: copies of 64 MiB by 2 ranks at once" in text
