"""`commlib doctor` says what works, and its exit code says whether the main job will run."""

import json
import os
import subprocess
import sys
from importlib import resources

import jsonschema
import pytest

from commlib.cli import doctor as package
from commlib.cli import main
from commlib.cli.doctor import GROUPS, QUICK, finding, machine, probes
from commlib.cli.doctor.command import verdict
from commlib.cli.doctor.finding import Check, Finding, broken, from_json, main_job, missing, ok, warning
from commlib.cli.doctor.probes import Probe
from tests.pages import blocks_of

SCHEMA = json.loads((resources.files("commlib.cli.doctor") / "schema.json").read_text(encoding="utf-8"))


def doctor(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *args])
    return end.value.code, capsys.readouterr().out


def test_a_good_machine_passes(capsys):
    code, out = doctor(capsys, "--json")
    document = json.loads(out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    findings = [from_json(entry) for entry in document["findings"]]
    assert [found for found in findings if found.fails] == []
    assert (code, document["runs"]) == (0, True)
    checks = [*QUICK, *(check for group in GROUPS.values() for check in group)]
    made = {check.topic for check in checks if check.job != "nccl" or document["job"] == "nccl"}
    assert {found.topic for found in findings} == made


def test_without_a_home_that_can_be_written_the_job_runs_and_lines_fit_80_columns():
    environment = {name: value for name, value in os.environ.items() if name != "COMMLIB_CACHE_DIR"}
    environment |= {"COLUMNS": "80"} | {f"XDG_{kind}_HOME": "/proc/none" for kind in ("CACHE", "CONFIG", "STATE")}
    command = [sys.executable, "-m", "commlib", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    (cache,) = [line for line in done.stdout.splitlines() if line.startswith("cache")]
    assert cache.split()[1] == "warning"
    assert "/proc/none/commlib cannot be written" in " ".join(done.stdout.split())
    assert "COMMLIB_CACHE_DIR=FOLDER" in done.stdout


@pytest.mark.parametrize(("address", "state"), [(None, "ok"), (1, "warning")])
def test_reading_the_memory_of_another_rank_is_tried(monkeypatch, address, state):
    if address:
        monkeypatch.setattr(machine.ctypes, "addressof", lambda buffer: address)
    found = machine.peer_memory()
    assert found.state == state, found
    assert ("Bad address" in found.detail) == bool(address)


def test_what_takes_long_runs_side_by_side_while_the_rest_is_told(monkeypatch):
    started = []
    monkeypatch.setenv("COMMLIB_BACKEND", "nccl")  # which needs every group
    monkeypatch.setattr(probes.subprocess, "Popen", lambda call, **_: started.append(call[-1]) or Ended())
    findings = probes.run_all()
    assert next(findings).topic == "python"
    assert [name for name in GROUPS if f"report({name!r})" in "".join(started)] == list(GROUPS)
    findings.close()


class Ended:
    """A process that has ended."""

    def poll(self):
        return 0


def test_the_document_of_the_docs_follows_the_schema():
    (block,) = [block for block in blocks_of("docs/operations.md") if "commlib.doctor" in block.text]
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(block.text))


# What is needed, by the main job.


@pytest.mark.parametrize(("devices", "hidden", "asked", "job"), [
    ([], None, None, "shm"),
    (["nvidia0", "nvidiactl"], None, None, "nccl"),
    (["nvidiactl"], None, None, "shm"),
    (["nvidia0"], "", None, "shm"),
    (["nvidia0"], "-1", None, "shm"),
    (["nvidia0"], "0", None, "nccl"),
    (["nvidia0"], None, "shm", "shm"),
    ([], None, "nccl", "nccl"),
    ([], None, "unknown", "shm"),
])  # fmt: skip
def test_the_main_job_is_on_the_gpus_that_are_shown_unless_the_environment_says_another(
    monkeypatch, tmp_path, devices, hidden, asked, job
):
    for name, value in (("CUDA_VISIBLE_DEVICES", hidden), ("COMMLIB_BACKEND", asked)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    for device in devices:
        (tmp_path / device).touch()
    monkeypatch.setattr(finding, "DEVICES", tmp_path)
    assert main_job() == job


@pytest.mark.parametrize(("needs", "make", "code"), [
    ("any", broken, 1), ("any", missing, 1), ("any", warning, 0), ("any", ok, 0),
    ("shm", broken, 1), ("nccl", broken, 0), ("", broken, 0),
])  # fmt: skip
def test_only_what_the_main_job_needs_decides_the_exit_code(monkeypatch, capsys, needs, make, code):
    (found,) = Check("native library", lambda: make("no symbol", "pip install ."), needs).findings("shm")
    monkeypatch.setattr(probes, "run_all", lambda: iter([found]))
    monkeypatch.setenv("COMMLIB_BACKEND", "shm")
    seen, out = doctor(capsys)
    assert seen == code
    assert "no symbol" in out
    assert "→ pip install ." in out
    assert ("will not run before this is put right: native library" in out) == bool(code)


def test_what_only_gpus_need_is_not_looked_at_without_them():
    checks = [Check("two ranks", ok, "shm"), Check("nccl", ok, "nccl"), Check("mpi", ok)]
    assert [check.topic for check in probes._made(checks, "shm")] == ["two ranks", "mpi"]
    assert [check.topic for check in probes._made(checks, "nccl")] == ["two ranks", "nccl", "mpi"]


def test_the_verdict_names_the_job_and_what_keeps_it_from_running():
    found = [Finding("broken", "no", topic="gpu", needed=True), Finding("broken", "no", topic="mpi")]
    assert verdict(found, "nccl") == "The main job, ranks on GPUs,\nwill not run before this is put right: gpu."
    assert verdict(found[1:], "shm") == "The main job, ranks on CPUs over shared memory, will run."


# How a line is shown.


def test_a_line_is_folded_beside_its_topic_and_a_table_is_not():
    found = Finding("ok", "word " * 20, "do " * 30, ("a  b", "1  2"), topic="clocks")
    lines = found.lines(80)
    assert lines[0].startswith("clocks           ok      word word")
    assert all(len(line) <= 80 and line[:24].strip() in ("", "clocks           ok") for line in lines)
    table = lines.index(" " * 25 + "a  b")
    assert lines[table + 1].strip() == "1  2"
    assert lines[table + 2].strip().startswith("→ do do")
    assert lines[table + 3].startswith(" " * 27 + "do do")


def test_the_home_folder_is_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/someone")
    assert "~/.cache/commlib" in Finding("ok", "/srv/someone/.cache/commlib").lines(80)[0]


# Checks that crash, hang or raise.


def probe(script, *topics):
    checks = [Check(topic, ok, "any", "reinstall it") for topic in topics]
    return list(Probe(checks, [sys.executable, "-c", script], "shm").findings())


def test_a_probe_that_crashes_is_named_with_its_topic():
    told = [{"topic": "torch", "state": "ok", "detail": "2", "remedy": "", "table": [], "needed": True}]
    found = probe(f"import os; print({json.dumps(told)!r}, flush=True); os.abort()", "torch", "native library", "gpu")
    assert [f.state for f in found] == ["ok", "broken"]
    assert (found[1].topic, found[1].detail, found[1].needed) == ("native library", "died of SIGABRT", True)


def test_a_probe_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 0.3)
    (found,) = probe("import time; time.sleep(600)", "two ranks")
    assert found.state == "broken"
    assert "no answer" in found.detail


def test_a_check_that_raises_is_broken_with_its_reason(monkeypatch, capsys):
    monkeypatch.setitem(GROUPS, "broken", (Check("torch", lambda: 1 / 0, "any", "reinstall it"),))
    probes.report("broken")
    (told,) = json.loads(capsys.readouterr().out)
    found = from_json(told)
    assert (found.topic, found.state, found.remedy, found.needed) == ("torch", "broken", "reinstall it", True)
    assert "division by zero" in found.detail


def test_every_check_has_a_topic_of_its_own_that_fits_its_column():
    checks = [*QUICK, *(check for group in package.GROUPS.values() for check in group)]
    topics = [check.topic for check in checks]
    assert len(set(topics)) == len(topics)
    assert max(map(len, topics)) <= finding.TOPIC


# The machine and the environment.


def test_a_misspelt_variable_is_found(monkeypatch):
    monkeypatch.setenv("COMMLIB_TIMEOUT", "3")
    found = machine.environment()
    assert found.state == "warning"
    assert "COMMLIB_TIMEOUT" in found.detail


def test_a_variable_that_cannot_be_read_keeps_the_job_from_running(monkeypatch):
    monkeypatch.setenv("COMMLIB_TIMEOUT_S", "soon")
    (check,) = [check for check in QUICK if check.topic == "environment"]
    (found,) = check.findings("shm")
    assert found.fails
    assert "COMMLIB_TIMEOUT_S='soon'" in found.detail


@pytest.mark.parametrize(("files", "said", "state"), [
    ({"cpu.max": "150000 100000"}, "1.5 of 8 usable (cgroup quota; affinity allows 4)", "warning"),
    ({"cpu.max": "max 100000"}, "4 of 8 usable (affinity)", "ok"),
    ({"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, "3 of 8 usable (cgroup quota", "ok"),
    ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, "4 of 8 usable", "ok"),
    ({}, "4 of 8 usable", "ok"),
])  # fmt: skip
def test_cores_are_those_of_the_affinity_that_the_quota_leaves(monkeypatch, tmp_path, files, said, state):
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(machine, "groups", lambda controller: iter([tmp_path]))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
    found = machine.cores()
    assert found.detail.startswith(said)
    assert found.state == state


@pytest.mark.parametrize(("nodes", "ours", "said", "lines"), [
    (["0-3"], {0, 1}, "1 node", 0),
    (["0-1,4", "2-3"], {0, 2}, "2 nodes; this process may run on 2 of them", 2),
    (["0-1,4", "2-3"], {2, 3}, "2 nodes; this process may run on node 1 alone", 2),
    ([], {0}, "nodes cannot be read", 0),
])  # fmt: skip
def test_numa_nodes_are_those_that_this_process_may_run_on(monkeypatch, tmp_path, nodes, ours, said, lines):
    for number, cpus in enumerate(nodes):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    monkeypatch.setattr(machine, "NODES", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: ours)
    found = machine.numa()
    assert found.detail.startswith(said)
    assert len(found.table) == lines
