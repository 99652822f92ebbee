"""What native code chooses for calls on GPUs, with and without a limit of multiprocessors; no GPU is needed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from commlib.collectives.facts import FACTS
from commlib.collectives.told import plan_text, rows_text
from commlib.plan import Plan, Query, shipped_plan
from commlib.plan.plan import HEAD

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[[Plan, list[str]], list[str]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return what asks the compiled table of a plan for two ranks."""
    folder = tmp_path_factory.mktemp("plan_choice")
    program = folder / "plan_choice"
    sources = ["tests/native/plan_choice.cc", "csrc/plan/table.cc", "csrc/plan/row.cc"]
    words = [os.environ.get("CXX", "c++"), "-std=c++17", "-Icsrc/include", "-Icsrc", *sources, "-o", str(program)]
    subprocess.run(words, cwd=ROOT, check=True)
    (folder / "rows").write_text(rows_text("nccl", 2), encoding="utf-8")

    def answers(plan: Plan, calls: list[str]) -> list[str]:
        (folder / "plan").write_text(plan_text(plan, 2, "nccl"), encoding="utf-8")
        given = [str(program), str(folder / "rows"), str(folder / "plan")]
        done = subprocess.run(given, input="\n".join(calls), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return answers


def call(op: str, num_bytes: int, max_sms: int = 0, symmetric: str = "no") -> str:
    return f"op={op} dtype=float32 bytes={num_bytes} symmetric={symmetric} max_sms={max_sms}"


TILES = {"threads": 384, "grain_bytes": 16, "tile_bytes": 16384}


def plan_of(*ranges: dict[str, object]) -> Plan:
    return Plan({**HEAD, "rules": [{"op": "all_gather", "ranges": list(ranges)}]}, "made up")


def test_native_code_and_explain_choose_alike(ask: Ask) -> None:
    plan, ops = shipped_plan("nccl-nvidia-h200"), ("all_reduce", "all_gather", "broadcast", "all_to_allv")
    kinds = [(op, 1 << shift) for op in ops for shift in range(30)]
    found = [words.split()[0] for words in ask(plan, [call(*kind) for kind in kinds])]
    assert found == [plan.decide(Query(op, size, "float32", "sum", 2), FACTS).entry.algorithm for op, size in kinds]


def test_a_kernel_is_cut_down_and_what_cannot_be_gives_way_to_the_nearest_that_can(ask: Ask) -> None:
    plan = plan_of(
        {"max_bytes": 1024, "algorithm": "lsa_ll_oneshot", "params": {"blocks": 8}},
        {"max_bytes": 1 << 20, "algorithm": "nccl_direct"},
        {"algorithm": "lsa_oneshot", "params": {"blocks": 64, **TILES}},
    )
    sizes = (512, 4096, 1 << 19, 1 << 24)
    assert [words.split()[0] for words in ask(plan, [call("all_gather", size, 4) for size in sizes])] == [
        "lsa_ll_oneshot",
        "lsa_ll_oneshot",
        "lsa_oneshot",
        "lsa_oneshot",
    ]
    # NCCL's kernels take 32 at most.
    assert ask(plan, [call("all_gather", 4096, 32)])[0].startswith("nccl_direct")


def test_where_all_there_is_cannot_be_limited_there_is_nothing(ask: Ask) -> None:
    plan = plan_of({"algorithm": "nccl_direct"})
    assert ask(plan, [call("all_gather", 4096, limit) for limit in (0, 8)])[1] == "nothing"
