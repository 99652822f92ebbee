"""`commlib bench` and its peers: what is measured and written, what is marked and skipped, exit codes; never a time."""

import csv
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import commlib
from commlib.collectives import COLLECTIVES, Call
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.baselines import load
from commlib.tools.baselines.peer import Peer
from commlib.tools.bench.result import KIND, measured
from commlib.tools.bench.view import BenchView
from commlib.tools.cli.options import python_file
from commlib.tools.timing import pinned
from tests.bootstrap.processes import MPIEXEC
from tests.cli.calls import Run, exit_code
from tests.on_ranks import on_ranks

QUICK = ("-b", "8", "-e", "4K", "-f", "512", "--time", "0.1", "--iters", "2")


PEER = """
from commlib.tools.baselines.peer import Peer
from commlib.tools.timing import Candidate


class Late(Peer):
    name, labels = "late", ("late", "probe")

    def join(self, comm):
        self.calls = {"all_reduce": lambda x, out, call: lambda: comm.all_reduce(x, out=out)}

    def candidates(self, comm, collective, in_place):
        probe = Candidate("probe", lambda x, out, call: comm.barrier, in_place, checked=False)
        return [*super().candidates(comm, collective, in_place), probe]


make = Late
"""


@pytest.fixture(scope="module")
def document(command: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run on two ranks that most tests look at."""
    file = tmp_path_factory.mktemp("bench") / "report.json"
    peer = file.with_name("late.py")
    peer.write_text(PEER)
    words = ("all_reduce,broadcast", "all_gatherv", "barrier", "-n", "2", "--peers", "torch,nccl", "--peer", str(peer))
    result = command("bench", *words, *QUICK, "-f", "8", "-o", str(file))
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    found = KIND.read(file)
    assert sum(bool(line) and not line.startswith("#") for line in lines) == len(measured(found["rows"]))
    return found


def test_the_document_names_job_plan_choices_and_what_a_peer_lacks(document: dict[str, Any]) -> None:
    assert (document["complete"], document["ended"]) == (True, "")
    assert document["command"].startswith("commlib bench all_reduce,broadcast")
    assert {"cpu", "cores", "kernel", "torch", "commlib", "settings"} <= set(document["fingerprint"])
    config = {"ranks": 2, "backend": "shm", "mode": "eager", "sizes": [8, 64, 512, 4096], "iterations": 2}
    assert config.items() <= document["config"].items()
    assert document["config"]["peers"] == ["torch", "late"]
    assert re.fullmatch(r"[0-9a-f]{12}", document["plan"]["digest"])
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    for op in ("all_reduce", "broadcast", "barrier"):
        chosen = [row for row in document["rows"] if row["op"] == op and row["chosen"]]
        assert chosen
        assert all(row["rule"] in row["why"] and f" runs {row['algorithm']}" in row["why"] for row in chosen)
    assert {row["why"] for row in document["rows"] if not row["chosen"]} == {None}
    names = {row["algorithm"] for row in measured(document["rows"])}
    assert {"shm_oneshot", "shm_twoshot", "shm_symmetric", "torch"} <= names
    skipped = {(row["op"], row["algorithm"]): row["skipped"] for row in document["rows"] if "skipped" in row}
    assert skipped["all_gatherv", "torch"] == "torch.distributed with gloo has no all_gatherv"
    assert not any(row["algorithm"] == "nccl" for row in document["rows"])
    assert document["notes"] == ["skipped: peer nccl: NCCL needs GPUs; this job is on cpu"]


def test_a_file_is_one_more_peer_and_its_probe_is_not_compared(document: dict[str, Any]) -> None:
    rows = [row for row in document["rows"] if row["algorithm"] in ("late", "probe") and row["op"] != "broadcast"]
    wrong = {row["algorithm"]: row["wrong"] for row in measured(rows)}
    assert wrong == {"late": 0, "probe": None}
    skipped = {(row["op"], row["skipped"]) for row in rows if "skipped" in row}
    assert skipped == {("barrier", "late has no barrier"), ("all_gatherv", "late has no all_gatherv")}
    rows = BenchView(document).items(document["rows"])
    assert {row["speedup"]["over"] for row in rows if row["speedup"]} <= {"late", "torch"}  # the probe is no rival


def test_a_row_carries_percentiles_and_nccl_tests_figures(document: dict[str, Any]) -> None:
    row = next(row for row in document["rows"] if row["op"] == "all_reduce" and row["size"] == 4096)
    assert (row["count"], row["type"], row["redop"], row["root"], row["wrong"]) == (1024, "float32", "sum", None, 0)
    times = [row["time_us"][name] for name in ("p0", "p10", "p50", "p90", "p100")]
    assert times == sorted(times)
    assert row["algbw"] == pytest.approx(4096 / row["time_us"]["p50"] / 1e3, rel=1e-3)
    assert row["busbw"] == pytest.approx(row["algbw"])  # 2 (n - 1) / n of two ranks


def test_wrong_values_fail_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = Communicator.all_reduce

    def forgetful(self: Communicator, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        result = right(self, x, *args, **options)
        result[-1] = 77
        return result

    monkeypatch.setattr(Communicator, "all_reduce", forgetful)
    assert exit_code("bench", "all_reduce", "--backend", "shm", "--peers", "none", *QUICK) == 1
    assert re.search(r"# Out of bounds values : [1-9]\d* FAILED", capsys.readouterr().out)


def test_without_matplotlib_a_picture_is_refused_before_anything_is_measured(monkeypatch, call) -> None:
    monkeypatch.setattr("commlib.tools.report.chart.importlib.util.find_spec", lambda name: None)
    code, out, errors = call("bench", "barrier", "--peers", "none", "--plot", "curves.png", *QUICK)
    assert (code, out, "pip install matplotlib" in errors) == (2, "", True)


class Broken(Peer):
    """Cannot start on the last rank."""

    name, labels = "broken", ("broken",)

    def join(self, comm: Communicator) -> None:
        if comm.rank == comm.size - 1:
            raise RuntimeError("no engine\nat all")


FOLDER = Path(__file__).resolve().parents[2] / "benchmarks/peers"


def made(name: str) -> Peer:
    """Return a peer of the table, of a file beside the benchmarks, or the broken one."""
    if (FOLDER / f"{name}.py").exists():
        return python_file(FOLDER / f"{name}.py", "make").make()
    return Broken() if name == "broken" else load(name)


@on_ranks(2)
def test_a_peer_that_cannot_start_says_why_on_every_rank(comm: Communicator) -> None:
    for names, reason in [
        ("broken", "broken did not start: no engine"),
        ("nccl nccl_windows newer_nccl newer_nccl_windows", "NCCL needs GPUs; this job is on cpu"),
        ("symm flashinfer sglang", "torch's symmetric memory is on GPUs; this job is on cpu"),
    ]:
        for peer in map(made, names.split()):
            peer.start(comm, graph=False)
            peer.stop()
            assert peer.reason == reason


@pytest.mark.slow
def test_under_mpirun_mpi_makes_every_call_in_every_form_and_is_right() -> None:
    pytest.importorskip("mpi4py", reason="`pip install mpi4py mpich` to test MPI")
    if not MPIEXEC.exists():
        pytest.skip("no mpiexec beside python: `pip install mpich`")
    words = "-b 8 -e 64 -f 8 --time 0.1 --iters 1 --root 1 --algorithms auto --peers mpi --format csv"
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "commlib", "bench", *words.split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    rows = [row for row in csv.DictReader(result.stdout.splitlines()) if row["algorithm"] == "mpi"]
    made = {(row["op"], row["in_place"]) for row in rows if not row["skipped"]}
    assert {op for op, _ in made} == set(COLLECTIVES) - {"all_reduce_rms_norm"}
    skipped = {(row["op"], row["in_place"]) for row in rows if row["skipped"]}
    skipped -= {("all_reduce_rms_norm", form) for form in ("true", "false")}
    assert skipped == {("reduce_scatter", "true"), ("reduce_scatterv", "true")}
    assert {row["wrong"] for row in rows if not row["skipped"]} == {"0"}


def test_what_cannot_work_in_place_is_not_measured_there() -> None:
    spec, x = COLLECTIVES["all_to_all"], torch.zeros(8)
    row = replace(spec.algorithm("shm_oneshot"), in_place=False)
    with commlib.init(backend="shm") as comm:
        call = Call(0, 1, 8, x.dtype)
        pinned(comm, spec, row, comm.plan, in_place=False).prepare(x, x.clone(), call)
        with pytest.raises(Unsupported, match="cannot work in place"):
            pinned(comm, spec, row, comm.plan, in_place=True).prepare(x, x, call)
