"""`commlib doctor` says what works, and its exit code says whether that is enough."""

import json
import sys

import pytest

from commlib.cli import checks, main
from commlib.cli import doctor as command
from commlib.cli.checks import GROUPS, Finding, Group
from commlib.cli.doctor import Probe


def doctor(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *args])
    return end.value.code, capsys.readouterr().out


def test_a_good_machine_passes(capsys):
    code, out = doctor(capsys, "--json")
    findings = [Finding(**entry) for entry in json.loads(out)]
    assert [f for f in findings if f.needed and f.state != "ok"] == []
    assert code == 0
    assert {"python", "cores", "torch", "native library", "two ranks", "mpi", "gpu"} <= {f.topic for f in findings}


@pytest.mark.parametrize(("address", "state"), [(None, "ok"), (1, "missing")])
def test_reading_the_memory_of_another_rank_is_tried(monkeypatch, address, state):
    if address:
        monkeypatch.setattr(checks.ctypes, "addressof", lambda buffer: address)
    finding = next(check() for check in checks.QUICK if check().topic == "peer memory")
    assert finding.state == state, finding
    assert ("Bad address" in finding.detail) == bool(address)


def test_what_takes_long_runs_side_by_side_while_the_rest_is_told(monkeypatch):
    started = []
    monkeypatch.setattr(command.subprocess, "Popen", lambda call, **_: started.append(call[-1]) or Ended())
    findings = command.run_all()
    assert next(findings).topic == "python"
    assert [name for name in GROUPS if f"report({name!r})" in "".join(started)] == list(GROUPS)
    findings.close()


class Ended:
    """A process that has ended."""

    def poll(self):
        return 0


@pytest.mark.parametrize(("needed", "code"), [(True, 1), (False, 0)])
def test_only_what_is_needed_decides_the_exit_code(monkeypatch, capsys, needed, code):
    finding = Finding("native library", "broken", "no symbol", "pip install .", needed)
    monkeypatch.setattr("commlib.cli.doctor.run_all", lambda: iter([finding]))
    seen, out = doctor(capsys)
    assert seen == code
    assert "no symbol" in out
    assert "→ pip install ." in out


def probe(script, *topics):
    group = Group(dict.fromkeys(topics), "reinstall it", True)
    return list(Probe(group, [sys.executable, "-c", script]).findings())


def test_a_probe_that_crashes_is_named_with_its_topic():
    script = 'import os; print(\'{"topic": "torch", "state": "ok", "detail": "2"}\', flush=True); os.abort()'
    found = probe(script, "torch", "native library", "gpu")
    assert [f.state for f in found] == ["ok", "broken"]
    assert (found[1].topic, found[1].detail) == ("native library", "died of SIGABRT")


def test_a_probe_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(command, "PROBE_TIMEOUT_S", 0.3)
    (found,) = probe("import time; time.sleep(600)", "two ranks")
    assert found.state == "broken"
    assert "no answer" in found.detail


def test_a_check_that_raises_is_broken_with_its_reason(monkeypatch, capsys):
    monkeypatch.setitem(GROUPS, "broken", Group({"torch": lambda: 1 / 0}, "reinstall it", True))
    checks.report("broken")
    found = Finding(**json.loads(capsys.readouterr().out))
    assert (found.topic, found.state, found.remedy, found.needed) == ("torch", "broken", "reinstall it", True)
    assert "division by zero" in found.detail


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
