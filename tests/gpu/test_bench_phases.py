"""`commlib bench OP --phases` on GPUs: by marks inside of the kernels; also ranks of one GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.commands import on_two_ranks

IN_KERNEL = {"publish", "wait", "copy", "idle"}  # of every kernel; "start" may be too short to be seen
ON_HOST = {"python", "native", "plan", "launch"}


def profiled(tmp_path: Path, *words: str) -> dict[str, Any]:
    output = tmp_path / "comm.json"
    words = (*words, "--backend", "nccl", "--time", "1", "-o", str(output))
    on_two_ranks("-m", "commlib", "bench", "--phases", *words)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    for rank in found["ranks"]:
        of_rank = [row for row in found["rows"] if row["rank"] == rank["rank"]]
        assert sum(row["us"] for row in of_rank) == pytest.approx(rank["sum_us"], rel=0.01)
    return found


def phases(found: dict[str, Any], place: str) -> set[str]:
    return {row["phase"] for row in found["rows"] if row["place"] == place}


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [("lsa_ll_oneshot", "8K"), ("lsa_ll128_oneshot", "64K"), ("lsa_lamport_twoshot", "256K"), ("lsa_twoshot", "4M")],
)
def test_an_eager_call_has_phases_on_the_host_and_in_the_kernel(tmp_path: Path, algorithm: str, size: str) -> None:
    found = profiled(tmp_path, "all_reduce", "--algorithms", algorithm, "--sizes", size, "-d", "bf16")
    assert (found["choice"]["algorithm"], found["wrong"]) == (algorithm, 0)
    assert phases(found, "host") == ON_HOST
    assert phases(found, "gpu") - {"start"} == IN_KERNEL | {"reduce", "gap"}
    assert all(rank["blocks"] > 0 for rank in found["ranks"])


# In the name of a test, for ranks of one GPU leave NCCL's out.
@pytest.mark.parametrize(
    ("op", "algorithm", "size"), [("all_gather", "engine_pull", "4M"), ("all_reduce", "nccl_direct", "64K")]
)
def test_of_a_call_without_a_kernel_of_ours_the_gpu_has_one_phase(
    tmp_path: Path, op: str, algorithm: str, size: str
) -> None:
    found = profiled(tmp_path, op, "--algorithms", algorithm, "--sizes", size)
    assert (found["choice"]["algorithm"], found["wrong"]) == (algorithm, 0)
    assert (phases(found, "host"), phases(found, "gpu")) == (ON_HOST, {"device"})
    assert {rank["blocks"] for rank in found["ranks"]} == {0}
