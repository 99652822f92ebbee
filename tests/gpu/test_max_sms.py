"""max_sms: no kernel of a call has more blocks than that, and every value is right with as few as one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commlib import env
from commlib.communicator import Communicator
from commlib.testing import Ranks
from tests.gpu.fresh import fresh
from tests.gpu.steady import KERNELS, Steady, first, pinned

COUNTS = (1, 5003, 1 << 20)


def on_few(comm: Communicator, max_sms: int) -> str:
    """Every kernel of ours, eager and in a graph."""
    found = []
    with fresh(comm, max_sms=max_sms) as few:
        for name, algorithm in KERNELS:
            with pinned(few, name, algorithm):
                for count in COUNTS:
                    call = Steady(few, name, count)
                    call.load(1)
                    call.run()
                    found.append(call.wrong(1))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    call.run()
                for step in range(3):
                    call.load(step)
                    graph.replay()
                    found.append(call.wrong(step))
    return first(found)


@pytest.mark.parametrize("max_sms", [1, 3, 16])
def test_every_kernel_is_right_on_few_multiprocessors(nccl_ranks: Ranks, max_sms: int) -> None:
    assert set(nccl_ranks.run(on_few, max_sms)) == {""}


@pytest.mark.parametrize(("algorithm", "size"), [("lsa_ll128_oneshot", "256K"), ("lsa_twoshot", "16M")])
def test_a_large_call_has_no_more_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, size: str
) -> None:
    monkeypatch.setenv(env.MAX_SMS.name, "5")
    trace = tmp_path / "trace.json"
    words = ["profile", "comm", "all_reduce", "--backend", "nccl", "--algorithm", algorithm, "--bytes", size]
    ranks = [sys.executable, "-m", "commlib", "run", "-n", "2", "--no-prefix", sys.executable, "-m", "commlib"]
    command = [*ranks, *words, "--time", "1", "--trace", str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {name for name in threads if name.startswith("block ")} == {f"block {at}" for at in range(5)}
