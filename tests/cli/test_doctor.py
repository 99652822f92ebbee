"""`commlib doctor` says what works, on GPUs that torch and nvidia-smi play too; its exit code is for the main job."""

import json
import sys

import pytest
import torch

from commlib.tools.cli.doctor import GROUPS, QUICK, finding, gpus, known, machine, probes, ranks
from commlib.tools.cli.doctor.command import verdict
from commlib.tools.cli.doctor.finding import Check, broken, from_json, main_job, missing, ok, warning
from commlib.tools.cli.doctor.gpus import Copy
from commlib.tools.cli.doctor.probes import Probe
from tests.cli.calls import tells, written


@pytest.mark.parametrize("groups", [{}, pytest.param(GROUPS, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_a_good_machine_passes(call, monkeypatch, groups):
    """At the gate, the README's command makes all checks."""
    monkeypatch.setattr(probes, "GROUPS", groups)
    code, out, _ = call("doctor", "--json")
    document = written(out, "cli/doctor/schema.json")
    findings = [from_json(entry) for entry in document["findings"]]
    assert [found for found in findings if found.fails] == []
    assert (code, document["runs"]) == (0, True)
    checks = [*QUICK, *(check for group in groups.values() for check in group)]
    made = {check.topic for check in checks if check.job != "nccl" or document["job"] == "nccl"}
    assert {found.topic for found in findings} == made


def test_reading_the_memory_of_another_rank_is_tried(monkeypatch):
    tells(machine.peer_memory(), "ok", "")
    monkeypatch.setattr(machine.ctypes, "addressof", lambda buffer: 1)
    tells(machine.peer_memory(), "warning", "Bad address")


def test_the_main_job_is_on_the_gpus_that_are_shown_unless_the_environment_says_another(monkeypatch, tmp_path):
    monkeypatch.setattr(finding, "DEVICES", tmp_path)
    for gpu, hidden, asked, job in (
        (False, None, None, "shm"),
        (False, None, "nccl", "nccl"),
        (True, None, None, "nccl"),
        (True, "", None, "shm"),
        (True, "0", None, "nccl"),
        (True, None, "shm", "shm"),
    ):
        for name, value in (("CUDA_VISIBLE_DEVICES", hidden), ("COMMLIB_BACKEND", asked)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        if gpu:
            (tmp_path / "nvidia0").touch()
        assert main_job() == job


def test_only_what_the_main_job_needs_decides_the_exit_code(monkeypatch, call):
    for needs, make, code in [
        ("any", broken, 1), ("any", missing, 1), ("any", warning, 0), ("any", ok, 0),
        ("shm", broken, 1), ("nccl", broken, 0), ("", broken, 0),
    ]:  # fmt: skip
        (found,) = Check("native library", lambda make=make: make("no symbol", "pip install ."), needs).findings("shm")
        monkeypatch.setattr(probes, "run_all", lambda found=found: iter([found]))
        monkeypatch.setenv("COMMLIB_BACKEND", "shm")
        seen, out, _ = call("doctor")
        assert (seen, "no symbol" in out, "→ pip install ." in out) == (code, True, True)
        assert ("will not run before this is put right: native library" in out) == bool(code)


def probe(script, *topics):
    checks = [Check(topic, ok, "any", "reinstall it") for topic in topics]
    return list(Probe(checks, [sys.executable, "-c", script], "shm").findings())


def test_a_probe_that_crashes_or_hangs_is_named_with_its_topic(monkeypatch):
    told = [{"topic": "torch", "state": "ok", "detail": "2", "remedy": "", "table": [], "needed": True}]
    found = probe(f"import os; print({json.dumps(told)!r}, flush=True); os.abort()", "torch", "native library", "gpu")
    assert [f.state for f in found] == ["ok", "broken"]
    assert (found[1].topic, found[1].detail, found[1].needed) == ("native library", "died of SIGABRT", True)
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 0.3)
    (found,) = probe("import time; time.sleep(600)", "two ranks")
    tells(found, "broken", "no answer")


def test_a_check_that_raises_is_broken_with_its_reason(monkeypatch, capsys):
    monkeypatch.setitem(GROUPS, "broken", (Check("torch", lambda: 1 / 0, "any", "reinstall it"),))
    probes.report("broken")
    (told,) = json.loads(capsys.readouterr().out)
    found = from_json(told)
    assert (found.topic, found.needed) == ("torch", True)
    tells(found, "broken", "division by zero", "reinstall it")


def test_a_variable_that_cannot_be_read_keeps_the_job_from_running(monkeypatch):
    monkeypatch.setenv("COMMLIB_TIMEOUT_S", "soon")
    (check,) = [check for check in QUICK if check.topic == "environment"]
    (found,) = check.findings("shm")
    assert found.fails
    assert "COMMLIB_TIMEOUT_S='soon'" in found.detail


def test_cores_are_those_of_the_affinity_that_the_quota_leaves(monkeypatch, tmp_path):
    for number, (files, said, state) in enumerate([
        ({"cpu.max": "150000 100000"}, "1.5 of 8 usable (cgroup quota; affinity allows 4)", "warning"),
        ({"cpu.max": "max 100000"}, "4 of 8 usable (affinity)", "ok"),
        ({"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, "3 of 8 usable (cgroup quota", "ok"),
    ]):  # fmt: skip
        group = tmp_path / str(number)
        group.mkdir()
        for name, text in files.items():
            (group / name).write_text(f"{text}\n")
        monkeypatch.setattr(machine, "groups", lambda controller, group=group: iter([group]))
        monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
        monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
        tells(machine.cores(), state, said)


# What nvidia-smi prints for two GPUs, its first line underlined.
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-47\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n"
)
CLOCKS = "0, 1980, 1980, 34, 118.20, 700.00, 0x0000000000000001\n1, 345, 1980, 31, [N/A], 700.00, 0x0000000000000004\n"


@pytest.fixture
def smi(monkeypatch, tmp_path):
    """Return what puts a nvidia-smi on PATH that answers `topo` and queries, or fails."""

    def put(topo=MATRIX, code=0):
        (tmp_path / "topo").write_text(topo)
        (tmp_path / "clocks").write_text(CLOCKS)
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            "#!/bin/sh\n"
            f"[ {code} = 0 ] || {{ cat {tmp_path}/topo; exit {code}; }}\n"
            f'case "$1" in topo) cat {tmp_path}/topo;; *) cat {tmp_path}/clocks;; esac\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


@pytest.fixture
def box(monkeypatch, tmp_path, smi):
    """Return what makes this a machine with so many GPUs, on which everything works."""

    def make(count, cuda="13.0"):
        devices = tmp_path / "dev"
        devices.mkdir()
        for number in range(count):
            (devices / f"nvidia{number}").touch()
        smi()
        monkeypatch.setattr(finding, "DEVICES", devices)
        for name in ("COMMLIB_BACKEND", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(gpus, "_cuda_of_driver", lambda: (13, 0))
        fakes = {
            "init": lambda: None,
            "is_available": lambda: True,
            "device_count": lambda: count,
            "get_device_name": lambda device=0: "NVIDIA H200",
            "mem_get_info": lambda device: (138 << 30, 139 << 30),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(gpus, "_copied", lambda source, target: Copy(source, target, True, True, 391.0))
        totals = count * (count + 1) / 2
        monkeypatch.setattr(ranks, "_on_gpus", lambda: [(totals, totals)] * count)

    return make


def findings_of(*groups):
    return [found for group in groups for check in GROUPS[group] for found in check.findings(finding.main_job())]


def test_a_box_with_gpus_runs_the_job_on_them_and_fits_80_columns(box):
    box(2)
    found = findings_of("gpus", "gpu ranks")
    topics = ("driver", "gpu", "clocks", "topology", "peer access", "gpu ranks", "symmetric memory")
    assert {each.topic: each.state for each in found} == dict.fromkeys(topics, "ok")
    assert verdict(found, finding.main_job()) == "The main job, ranks on GPUs, will run."
    lines = [line for each in found for line in each.lines(80)]
    assert max(map(len, lines)) <= 80
    assert "2 × NVIDIA H200, 139 GiB each, 138 GiB or more free" in " ".join(" ".join(lines).split())


def test_the_driver_must_serve_the_cuda_of_torch(monkeypatch):
    for cuda, serves, state, said, remedy in [
        ("13.0", (13, 0), "ok", "serves CUDA 13.0; torch is built for 13.0", ""),
        (None, (13, 0), "ok", "serves CUDA 13.0", ""),
        ("13.0", (12, 8), "broken", "serves CUDA 12.8, but torch is built for CUDA 13.0", "580.65.06 or newer"),
        ("13.0", (12, 8), "broken", "", "torch built for CUDA 12"),
        ("13.0", None, "broken", "libcuda.so.1 cannot be loaded", ""),
    ]:
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(gpus, "_cuda_of_driver", lambda serves=serves: serves)
        tells(gpus.driver(), state, said, remedy)


def test_a_gpu_that_torch_cannot_use_keeps_the_job_from_running_and_says_the_reason(box, monkeypatch):
    box(2, cuda=None)
    (found,) = [each for each in findings_of("gpus") if each.topic == "gpu"]
    assert (found.fails, "torch is a CPU build" in found.detail) == (True, True)

    def init():
        raise RuntimeError("Error 802: system not yet initialized")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    tells(gpus.gpu(), "broken", "Error 802: system not", "nvidia-fabricmanager")


def test_without_a_gpu_it_says_what_runs_and_what_to_do_if_one_was_expected(box, monkeypatch):
    box(0)
    tells(gpus.gpu(), "ok", "no NVIDIA GPU: ranks use CPUs", "if there should be one: install the driver")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    tells(gpus.gpu(), "ok", "CUDA_VISIBLE_DEVICES hides all GPUs")
    monkeypatch.setenv("COMMLIB_BACKEND", "nccl")
    tells(gpus.gpu(), "broken", "COMMLIB_BACKEND asks for ranks on GPUs")


@pytest.mark.slow
def test_what_nvidia_smi_does_not_say_is_said_plainly(smi, monkeypatch, tmp_path):
    smi("Failed to initialize NVML: Driver/library version mismatch\n", code=18)
    for check in (gpus.topology, gpus.clocks):
        tells(check(), "warning", "cannot be read: nvidia-smi: Failed to")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    tells(gpus.topology(), "warning", "cannot be read: there is no nvidia-smi on PATH")


def test_copies_between_gpus_are_judged_by_their_data_first():
    for direct, right, state, said in [
        (True, True, "ok", "the data is right"),
        (False, True, "warning", "no peer access: 0 → 1, 1 → 0"),
        (True, False, "broken", "arrive with wrong data: 0 → 1, 1 → 0"),
    ]:  # fmt: skip
        found = gpus.judged([Copy(0, 1, direct, right, 391.2), Copy(1, 0, direct, right, 12.4)])
        tells(found, state, said)
        assert [line.split()[1:] for line in found.table[1:]] == [["-", "391"], ["12", "-"]]


def test_live_ranks_on_gpus_must_sum_plain_and_symmetric_tensors(box, monkeypatch):
    box(2)
    for sums, states in [
        ([(3.0, 3.0), (3.0, 3.0)], ["ok", "ok"]),
        ([(3.0, "no peer access between GPU 0 and GPU 1")] * 2, ["ok", "warning"]),
        ([(3.0, 3.0), (2.0, 3.0)], ["broken", "ok"]),
        ([(3.0, 3.0), (3.0, 2.0)], ["ok", "broken"]),
        ("CommTimeout: making the NCCL communicator hung", ["broken", "warning"]),
    ]:  # fmt: skip
        monkeypatch.setattr(ranks, "_on_gpus", lambda sums=sums: sums)
        assert [found.state for found in findings_of("gpu ranks")] == states


def test_a_version_that_mends_a_fault_does_not_have_it(monkeypatch):
    for row in known.KNOWN:
        for version, has in ((row.first, True), (row.fixed, False)):
            here = {row.library: version}
            monkeypatch.setattr(known, "installed", lambda library, here=here: here.get(library, ()))
            monkeypatch.setattr(known, "_packaged", lambda name, here=here: here.get(name, ()))
            details = [finding.detail for finding in known.faults()]
            assert any(row.fault in detail for detail in details) == (has and row.happens()), row


def test_a_right_sum_is_told_as_right_where_a_mean_is_rounded_as_on_a_gpu(monkeypatch):
    class Adds:
        rank, size, device = 0, 2, torch.device("cpu")

        def all_reduce(self, x: torch.Tensor) -> None:
            x += 2.0

    monkeypatch.setattr(torch.Tensor, "mean", lambda x: x.sum() * torch.tensor(1 / x.numel()))
    assert ranks.sum_of_ranks(Adds()) == 3.0
