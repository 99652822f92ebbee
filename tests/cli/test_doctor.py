"""`commlib doctor` says what works, on a machine whose GPUs, ranks and files the tests play."""

import json
from types import SimpleNamespace

import pytest
import torch

from commlib.errors import BuildFailed
from commlib.plan.search import fingerprint, shipped_plan, user_path
from commlib.tools import testing
from commlib.tools.cli.doctor import checks, command
from commlib.tools.cli.doctor.checks import Check, Finding, broken, main_job, ok, warning
from tests.cli.calls import tells
from tests.on_ranks import on_ranks


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    for name, value in (("COMMLIB_CACHE_DIR", "cache"), ("XDG_CONFIG_HOME", "config")):
        monkeypatch.setenv(name, str(tmp_path / value))
    for name in ("COMMLIB_BACKEND", "CUDA_VISIBLE_DEVICES", "COMMLIB_PLAN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checks, "DEVICES", tmp_path)
    return tmp_path


def finding_of(topic, job="shm"):
    (check,) = [check for group in checks.GROUPS.values() for check in group if check.topic == topic]
    (finding,) = check.findings(job)
    return finding


QUICK = {"machine": checks.GROUPS["machine"]}


@pytest.mark.parametrize("groups", [QUICK, pytest.param(checks.GROUPS, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_a_good_machine_passes_within_80_columns(call, monkeypatch, groups):
    monkeypatch.setattr(command, "GROUPS", groups)
    code, out, _ = call("doctor", "--json")
    document = json.loads(out)
    made = {check.topic for group in groups.values() for check in group if check.job != "nccl"}
    assert {finding["topic"] for finding in document["findings"]} == made
    assert (code, document["job"], document["runs"]) == (0, "shm", True)
    lines = [line for fields in document["findings"] for line in Finding(**fields).lines(80)]
    assert max(map(len, lines)) <= 80


def test_the_main_job_is_on_the_gpus_that_are_shown_unless_the_environment_says_another(monkeypatch, folders):
    for gpu, hidden, backend, job in (
        (False, "0", "", "shm"),
        (False, "0", "nccl", "nccl"),
        (True, "0", "", "nccl"),
        (True, "", "", "shm"),
        (True, "0", "shm", "shm"),
        (True, "0", "unreadable", "nccl"),
    ):
        monkeypatch.setenv("COMMLIB_BACKEND", backend)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        (folders / ("nvidia0" if gpu else "null")).touch()
        assert main_job() == job


def test_only_what_the_main_job_needs_decides_the_exit_code(monkeypatch, call, tmp_path):
    monkeypatch.setenv("COMMLIB_BACKEND", "shm")
    cases = [("any", broken, 1), ("any", warning, 0), ("any", ok, 0), ("shm", broken, 1)]
    for needs, make, code in [*cases, ("", broken, 0)]:
        findings = Check("libraries", lambda make=make: make("no symbol", "pip install ."), needs).findings("shm")
        monkeypatch.setattr(command, "run_all", lambda job, findings=findings: iter(findings))
        seen, out, _ = call("doctor", "-o", "report.txt")
        assert (seen, "no symbol" in out, "→ pip install ." in out) == (code, True, True)
        assert "\x1b" not in (tmp_path / "report.txt").read_text(encoding="utf-8"), "colours are of terminals"
        assert ("cannot run commlib before this is mended: libraries" in out) == bool(code)
    assert Check("nccl", lambda: broken("none"), "nccl").findings("shm") == []
    (finding,) = Check("torch", lambda: 1 / 0, "any", "reinstall it").findings("shm")
    tells(finding, "broken", "division by zero", "reinstall it")


def test_a_probe_that_crashes_or_hangs_is_named_with_its_topic(monkeypatch):
    group = [Check(topic, ok, "any", "reinstall it") for topic in ("libraries", "nccl", "gpu")]
    monkeypatch.setattr(command, "GROUPS", {"group": group})
    line = json.dumps([{"topic": "libraries", "state": "ok", "detail": "2"}]).replace("{", "{{").replace("}", "}}")
    for program, timeout_s, reason in [
        ("import os; os.abort()", 60, "died of SIGABRT"),
        ("import time; time.sleep(600)", 3, "no answer within 3 s"),
        ("raise SystemExit('no libcuda')", 60, "no libcuda"),
    ]:
        monkeypatch.setattr(command, "PROBE", f"print({line!r}, flush=True); {program}")
        monkeypatch.setattr(command, "PROBE_TIMEOUT_S", timeout_s)
        first, second = command.run_all("shm")
        assert (first.state, second.topic, second.needed) == ("ok", "nccl", True)
        tells(second, "broken", reason, "reinstall it")


def test_a_variable_that_cannot_be_read_keeps_the_job_from_running_and_a_misspelt_one_does_not(monkeypatch):
    monkeypatch.setenv("COMMLIB_TIMEOUTS", "1")
    tells(finding_of("environment"), "warning", "did you mean COMMLIB_TIMEOUT_S")
    monkeypatch.setenv("COMMLIB_TIMEOUT_S", "soon")
    tells(finding_of("environment"), "broken", "COMMLIB_TIMEOUT_S='soon'")
    assert finding_of("environment").needed


def test_cores_are_those_of_the_affinity_that_the_quota_leaves(monkeypatch, tmp_path):
    monkeypatch.setattr(checks.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(checks.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(checks, "CPU_MAX", tmp_path / "cpu.max")
    tells(finding_of("machine"), "ok", "4 of 8 cores usable (affinity)")
    for text, detail, state in [
        ("150000 100000", "1.5 of 8 cores usable (cgroup quota)", "warning"),
        ("max 100000", "4 of 8 cores usable (affinity)", "ok"),
    ]:
        checks.CPU_MAX.write_text(f"{text}\n")
        tells(finding_of("machine"), state, detail)


def test_without_a_gpu_it_says_what_runs_and_what_to_do_if_one_was_expected(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    tells(finding_of("gpu"), "ok", "no NVIDIA GPU: ranks use CPUs", "if there should be one: install the driver")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    tells(finding_of("gpu"), "ok", "CUDA_VISIBLE_DEVICES hides all GPUs")
    monkeypatch.setenv("COMMLIB_BACKEND", "nccl")
    tells(finding_of("gpu"), "broken", "COMMLIB_BACKEND asks for ranks on GPUs")


def test_a_gpu_is_described_or_keeps_the_job_from_running(monkeypatch, folders):
    (folders / "nvidia0").touch()
    monkeypatch.setattr(torch.version, "cuda", None)
    tells(finding_of("gpu", "nccl"), "broken", "torch is a CPU build")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((138 - device) << 30, 139 << 30))
    here = {"gpu": "NVIDIA H200", "gpus": 2, "driver": "580.95.05", "cuda": "13.0"}
    monkeypatch.setattr("commlib.plan.search.fingerprint", lambda backend: here)
    tells(finding_of("gpu", "nccl"), "ok", "2 × NVIDIA H200, 139 GiB each, 137 GiB or more free; driver 580.95.05")
    monkeypatch.setattr(torch.cuda, "init", lambda: torch.zeros(1).view(2))
    tells(finding_of("gpu", "nccl"), "broken", "RuntimeError: ", "nvidia-fabricmanager")
    assert finding_of("gpu", "nccl").needed


def test_live_ranks_must_sum_plain_and_symmetric_tensors(monkeypatch):
    class Ranks(testing.Ranks):
        restart = close = lambda self: None

        def run(self, function):
            if self.results:
                return self.results
            raise testing.RankError({1: SimpleNamespace(trace="\n  …\nCommTimeout: hung\n", error=self.error)})

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(testing, "Ranks", Ranks)
    compiler = "g++ cannot compile /p/mine.cc:\nIn file included …\n/p/mine.cc:3:1: error: no ';'\nto repeat it: g++ …"
    for Ranks.error in (None, BuildFailed(compiler)):
        ranks_are_checked(Ranks, "mine.cc:3:1: error: no ';'" if Ranks.error else "CommTimeout: hung")


def ranks_are_checked(Ranks, failure):
    for Ranks.results, state, detail in [
        ([([3.0], "")] * 2, "ok", "2 ranks started"),
        ([([3.0], "no symmetric memory: no peer access")] * 2, "warning", "no peer access"),
        ([([3.0], ""), ([2.0, 3.0], "")], "broken", "all_reduce gave [2.0, 3.0] where [3.0]"),
        ([], "broken", failure),
    ]:
        for topic, job in (("two ranks", "shm"), ("gpu ranks", "nccl")):
            tells(finding_of(topic, job), state, detail)
            assert finding_of(topic, job).needed


def test_a_version_that_mends_a_fault_does_not_have_it(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "allreduce:tree")
    for row in checks.KNOWN_FAULTS:
        for version, has in ((row.first, True), (row.fixed, False)):
            here = {row.library: version}
            monkeypatch.setattr(checks, "version_of", lambda library, here=here: here.get(library, ()))
            assert any(row.fault in finding.detail for finding in checks.known_faults()) == has, row
    monkeypatch.setenv("NCCL_ALGO", "ring,tree;allreduce:tree")
    assert [row.first for row in checks.KNOWN_FAULTS if row.library == "NCCL" and not row.happens()] == [(2, 31)]


def test_the_cache_says_its_size_or_which_variable_names_another(monkeypatch, folders):
    assert "holds 0 files (0.0 MiB)" in finding_of("cache").detail
    (folders / "cache" / "kernel").write_bytes(bytes(1 << 20))
    tells(finding_of("cache"), "ok", "holds 1 file (1.0 MiB)")
    monkeypatch.setenv("COMMLIB_CACHE_DIR", "/dev/null")
    tells(finding_of("cache"), "broken", "/dev/null", "COMMLIB_CACHE_DIR=FOLDER")
    assert not finding_of("cache").needed


def test_a_plan_says_how_well_it_fits_or_what_is_wrong_with_it(monkeypatch, folders):
    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    head = {**fingerprint("shm"), "backend": "shm", "kernel": "4.4.0"}
    path.write_text(json.dumps({**shipped_plan("shm").document, "fingerprint": head}))
    tells(finding_of("plan"), "ok", f"{path} for 2 ranks: match ", "commlib tune -n 2")
    assert "kernel 4.4.0, here" in finding_of("plan").detail
    path.write_text("{")
    tells(finding_of("plan"), "warning", "it is ignored; plans/shm.json")
    monkeypatch.setenv("COMMLIB_PLAN", str(folders / "none.json"))
    tells(finding_of("plan"), "broken", "none.json", "correct or unset COMMLIB_PLAN")


@on_ranks(2)
def test_live_ranks_sum_plain_and_symmetric_tensors(comm):
    assert checks.sums(comm) == ([3.0], "")
