"""Time the calls of vLLM's tensor-parallel group on GPUs, by its own libraries and on commlib, in turns; check values.

    python benchmarks/vllm_groups.py -o vllm_groups.json

Only vLLM's Python is needed. Each turn is a job of its own: `tensor_model_parallel_all_reduce` of rows of a model, and
with the residual and the norm that follow, in a graph of 20 that vLLM's `graph_capture` encloses. On commlib the fused
operator makes the latter, as vLLM's graphs have it once our pass has run; otherwise a norm that torch compiled follows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor
from written import command_line, head, whole_numbers, write

from commlib.collectives.reference import ordered

HIDDEN, CALLS, REPLAYS, BLOCKS, EPS = 8192, 20, 20, 15, 1e-5


def drawn(seed: int, *shape: int) -> Tensor:
    """Return numbers that every rank can draw."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def normalised(total: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm of a sum and the residual, and that sum."""
    h = total + residual
    rows = h.float()
    factor = torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPS)
    return (rows * factor).bfloat16() * weight, h


class Group:
    """This rank's group of vLLM's, and what it calls."""

    def __init__(self) -> None:
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import parallel_state
        from vllm.plugins import load_general_plugins

        self.state, self.rank, self.size = parallel_state, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", self.rank)
        torch.cuda.set_device(self.device)
        load_general_plugins()
        with set_current_vllm_config(VllmConfig()):
            parallel_state.init_distributed_environment(self.size, self.rank, "env://", self.rank, backend="nccl")
            parallel_state.initialize_model_parallel(self.size)
        self.group = parallel_state.get_tp_group()
        self.calls = self.group.device_communicator.ca_comm
        self.on_commlib = type(self.calls).__module__.startswith("commlib")
        if self.on_commlib:
            from commlib.engines import vllm_fusion  # noqa: F401  # defines the fused operator
        self.norm = torch.compile(normalised)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up all ranks' rows as a layer of vLLM's does."""
        from vllm.distributed import tensor_model_parallel_all_reduce

        total: Tensor = tensor_model_parallel_all_reduce(x)
        return total

    def with_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Do so, add the residual and normalise."""
        if self.on_commlib:
            name = self.group.unique_name
            y, h = torch.ops.commlib.vllm_all_reduce_rms_norm(x, residual, weight, EPS, name)
            return y, h
        y, h = self.norm(self.all_reduce(x), residual, weight)
        return y, h

    def microseconds(self, call: Any) -> float:
        """Return the time of a call among others in a graph, the slowest rank's, the median of blocks."""
        with self.state.graph_capture(device=self.device) as context:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=context.stream):
                for _ in range(CALLS):
                    call()
        times = []
        for _ in range(BLOCKS):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            graph.replay()
            torch.cuda.synchronize()
            self.group.barrier()
            events[0].record()
            for _ in range(REPLAYS):
                graph.replay()
            events[1].record()
            torch.cuda.synchronize()
            times.append(events[0].elapsed_time(events[1]) * 1e3 / (CALLS * REPLAYS))
        everyone: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(everyone, times, group=self.group.cpu_group)
        return statistics.median(map(max, zip(*everyone, strict=True)))


def measure(tokens: int, group: Group) -> dict[str, Any]:
    """Check the values of both calls, and time them."""
    parts = [drawn(rank, tokens, HIDDEN) for rank in range(group.size)]
    x, residual, weight = (
        each.to(group.device) for each in (parts[group.rank], drawn(90, tokens, HIDDEN), drawn(91, HIDDEN))
    )
    wanted = ordered(parts, "sum")
    total = group.all_reduce(x)
    torch.testing.assert_close(total.cpu(), wanted)
    y, h = group.with_norm(x, residual, weight)
    for made, right in zip((y, h), normalised(wanted, drawn(90, tokens, HIDDEN), drawn(91, HIDDEN)), strict=True):
        torch.testing.assert_close(made.cpu(), right, rtol=3e-2, atol=3e-2)
    return {
        "tokens": tokens,
        "same_bits": bool(torch.equal(total.cpu(), wanted)),
        "all_reduce_us": round(group.microseconds(lambda: group.all_reduce(x)), 3),
        "with_norm_us": round(group.microseconds(lambda: group.with_norm(x, residual, weight)), 3),
    }


def run_rank(tokens: tuple[int, ...]) -> None:
    """Be one rank of a turn; rank 0 prints what it measured."""
    group = Group()
    rows = [measure(each, group) for each in tokens]
    if group.rank == 0:
        print("result", json.dumps({"class": type(group.calls).__module__, "rows": rows}))
    group.group.barrier()
    group.state.destroy_model_parallel()
    group.state.destroy_distributed_environment()


def turn(ranks: int, engines: str) -> dict[str, Any]:
    """Run the ranks of one turn."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *sys.argv]
    environment = os.environ | {"COMMLIB_ENGINES": engines, "COMMLIB_LOG": "info"}
    done = subprocess.run([*command, "--rank"], env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    if not lines:
        sys.exit(done.stdout[-3000:] + done.stderr[-6000:])
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    if result["class"].startswith("commlib") != bool(engines):
        sys.exit(f"{engines or 'vLLM alone'} ran by {result['class']}:\n{done.stderr[-6000:]}")
    return result


def main() -> int:
    """Take turns, print and write the times."""
    parser = command_line(__doc__)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=whole_numbers, default=(1, 16, 64, 256, 1024))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rank", action="store_true", help="be one rank of a turn")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.tokens)
        return 0
    rows = []
    for library, engines in [("vllm", ""), ("commlib", "vllm")] * options.turns:
        result = turn(options.ranks, engines)
        for row in result["rows"]:
            rows.append({"library": library, "class": result["class"], **row})
            print(
                f"{library:8} {row['tokens']:5} tokens: {row['all_reduce_us']:8.2f} us, "
                f"with residual and norm {row['with_norm_us']:8.2f} us",
                flush=True,
            )
    write(options.output, {**head("vllm_groups", options.ranks, "nccl"), "hidden": HIDDEN, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
