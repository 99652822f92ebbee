"""`commlib doctor` says what works, and its exit code says whether that is enough."""

import json
import sys
import time

import pytest

from commlib.cli import checks, main
from commlib.cli.checks import Finding, Probe


def doctor(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *args])
    return end.value.code, capsys.readouterr().out


def test_a_good_machine_passes_within_seconds(capsys):
    start = time.perf_counter()
    code, out = doctor(capsys, "--json")
    spent = time.perf_counter() - start
    findings = [Finding(**entry) for entry in json.loads(out)]
    assert [f for f in findings if f.needed and f.state != "ok"] == []
    assert code == 0
    assert {"python", "cores", "torch", "native library", "two ranks", "mpi", "gpu"} <= {f.topic for f in findings}
    assert spent < 10  # five when nothing else runs


@pytest.mark.parametrize(("needed", "code"), [(True, 1), (False, 0)])
def test_only_what_is_needed_decides_the_exit_code(monkeypatch, capsys, needed, code):
    finding = Finding("native library", "broken", "no symbol", "pip install .", needed)
    monkeypatch.setattr("commlib.cli.doctor.run_all", lambda: iter([finding]))
    seen, out = doctor(capsys)
    assert seen == code
    assert "no symbol" in out
    assert "→ pip install ." in out


def test_a_probe_that_crashes_is_named_with_its_topic():
    script = 'import os; print(\'{"topic": "torch", "state": "ok", "detail": "2"}\', flush=True); os.abort()'
    found = list(checks._libraries(Probe(("torch", "native library"), [sys.executable, "-c", script])))
    assert [f.state for f in found] == ["ok", "broken"]
    assert (found[1].topic, found[1].detail) == ("native library", "died of SIGABRT")


def test_a_probe_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(checks, "PROBE_TIMEOUT_S", 0.3)
    found = checks._two_ranks(Probe(("two ranks",), [sys.executable, "-c", "import time; time.sleep(600)"]))
    assert found.state == "broken"
    assert "no answer" in found.detail


def test_a_misspelt_variable_is_found(monkeypatch):
    monkeypatch.setenv("COMMLIB_TIMEOUT", "3")
    found = checks._environment()
    assert found.state == "broken"
    assert "COMMLIB_TIMEOUT" in found.detail


def test_a_variable_that_cannot_be_read_is_needed(monkeypatch):
    monkeypatch.setenv("COMMLIB_TIMEOUT_S", "soon")
    found = checks._environment()
    assert found.needed
    assert "COMMLIB_TIMEOUT_S='soon'" in found.detail
