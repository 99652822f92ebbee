"""Time the calls of an engine's tensor-parallel group on GPUs, by its own libraries and on commlib; check values.

    python benchmarks/engine_groups.py --engine vllm -o vllm_groups.json

Only the engine's Python is needed. Each turn is a job of its own, with or without commlib: the group's all_reduce of
rows of a model, and with the residual and the norm that follow, in a graph of 20 that its `graph_capture` encloses. The
latter is one kernel where the engine has one; otherwise a norm that torch compiled follows. `class` is what made the
sums: nccl where the engine's own kernels are missing. vLLM's are in its CUDA library, and where FlashInfer is installed
it takes that one's; SGLang compiles its all-reduce with nvcc, ninja and tvm-ffi, and its fused norm needs FlashInfer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from written import command_line, head, whole_numbers, write

from commlib.collectives.reference import ordered

HIDDEN, CALLS, REPLAYS, BLOCKS, EPS = 8192, 20, 20, 15, 1e-5
TURN_S = 300.0  # a turn that takes longer hangs


class Joined(NamedTuple):
    """An engine's group of ranks, what makes its sums outside NCCL, its fused norm, and how to leave it."""

    group: Any
    calls: Any
    fused: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor] | None]
    leave: Callable[[], None]


def vllm(rank: int, size: int) -> Joined:
    """Join vLLM's group."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(size, rank, "env://", rank, backend="nccl")
        parallel_state.initialize_model_parallel(size)
    group = parallel_state.get_tp_group()
    communicator = group.device_communicator
    flashinfer = communicator.fi_ar_comm
    calls = flashinfer if flashinfer and not flashinfer.disabled else communicator.ca_comm
    if on_commlib(calls):
        from commlib.engines import vllm_fusion  # noqa: F401  # defines the fused operator
    from vllm.model_executor.layers import fused_allreduce_gemma_rms_norm as joined

    def fused(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        if on_commlib(calls):
            y, h = torch.ops.commlib.vllm_all_reduce_rms_norm(x, residual, weight, EPS, group.unique_name)
            return y, h
        by_flashinfer, tokens = joined._can_use_flashinfer(x, size) if calls is flashinfer else (False, 0)
        if not by_flashinfer:
            return None
        y = torch.empty_like(x)
        how = (True, True, tokens, joined._AR_RESIDUAL_RMS_NORM)  # as vLLM's pass: starts early, adds in float32
        joined.flashinfer_trtllm_fused_allreduce_norm(x, residual, weight, EPS, size, *how, norm_out=y)
        return y, x

    def leave() -> None:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()

    return Joined(group, calls, fused, leave)


def sglang(rank: int, size: int) -> Joined:
    """Join SGLang's group."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import flashinfer_comm_fusion
    from sglang.srt.plugins import load_plugins
    from sglang.srt.utils import monkey_patch_p2p_access_check

    load_plugins()
    monkey_patch_p2p_access_check()  # as its server does
    parallel_state.init_distributed_environment(size, rank, "env://", rank, backend="nccl")
    group = parallel_state.init_model_parallel_group([list(range(size))], rank, "nccl", group_name="tp")
    # A server's ranks find the group through their configuration, which there is none of.
    flashinfer_comm_fusion.resolve_fusion_group = lambda *, use_attn_tp_group: (size, rank, group)

    def fused(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        y, h = flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm(x, residual, weight, EPS)
        return None if y is None else (y, h)

    def leave() -> None:
        if group.ca_comm is not None:
            group.ca_comm.close()
        group.destroy()
        parallel_state.destroy_distributed_environment()

    return Joined(group, group.ca_comm, fused, leave)


ENGINES = {"vllm": vllm, "sglang": sglang}


def on_commlib(calls: Any) -> bool:
    """Say whether commlib makes a group's sums."""
    return type(calls).__module__.startswith("commlib")


def drawn(seed: int, *shape: int) -> Tensor:
    """Return numbers that every rank can draw."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def normalised(total: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm of a sum and the residual, and that sum."""
    h = total + residual
    rows = h.float()
    factor = torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPS)
    return (rows * factor).bfloat16() * weight, h


class Rank:
    """This rank of an engine's group, and what it calls."""

    def __init__(self, engine: str) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", self.rank)
        torch.cuda.set_device(self.device)
        self.group, self.calls, self.fused, self.leave = ENGINES[engine](self.rank, self.size)
        self.norm = torch.compile(normalised)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up all ranks' rows as a layer of the engine does; the sum may be in the place of x."""
        total: Tensor = self.group.all_reduce(x)
        return total

    def with_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Do so, add the residual and normalise."""
        y, h = self.fused(x, residual, weight) or self.norm(self.all_reduce(x), residual, weight)
        return y, h

    def microseconds(self, call: Any) -> float:
        """Return the time of a call among others in a graph, the slowest rank's, the median of blocks."""
        with self.group.graph_capture() as context:
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


def measure(tokens: int, rank: Rank) -> dict[str, Any]:
    """Check the values of both calls, and time them."""
    parts = [drawn(each, tokens, HIDDEN) for each in range(rank.size)]
    x, residual, weight = (
        each.to(rank.device) for each in (parts[rank.rank], drawn(90, tokens, HIDDEN), drawn(91, HIDDEN))
    )
    wanted = ordered(parts, "sum")
    total = rank.all_reduce(x.clone())
    torch.testing.assert_close(total.cpu(), wanted, rtol=3e-2, atol=5e-2)  # NCCL rounds after each rank
    y, h = rank.with_norm(x.clone(), residual, weight)
    for made, right in zip((y, h), normalised(wanted, drawn(90, tokens, HIDDEN), drawn(91, HIDDEN)), strict=True):
        torch.testing.assert_close(made.cpu(), right, rtol=3e-2, atol=5e-2)
    return {
        "tokens": tokens,
        "same_bits": bool(torch.equal(total.cpu(), wanted)),
        "one_kernel": rank.fused(x, residual, weight) is not None,
        "all_reduce_us": round(rank.microseconds(lambda: rank.all_reduce(x)), 3),
        "with_norm_us": round(rank.microseconds(lambda: rank.with_norm(x, residual, weight)), 3),
    }


@torch.no_grad()
def run_rank(engine: str, tokens: tuple[int, ...]) -> None:
    """Be one rank of a turn; rank 0 prints what it measured."""
    rank = Rank(engine)
    rows = [measure(each, rank) for each in tokens]
    if rank.rank == 0:
        calls = rank.calls
        name = "nccl" if calls is None or calls.disabled else type(calls).__module__
        print("result", json.dumps({"class": name, "rows": rows}))
    rank.group.barrier()
    rank.leave()


def turn(ranks: int, engines: str) -> dict[str, Any]:
    """Run the ranks of one turn."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *sys.argv]
    environment = os.environ | {"COMMLIB_ENGINES": engines, "COMMLIB_LOG": "info"}
    done = subprocess.run(
        [*command, "--rank"], env=environment, capture_output=True, text=True, check=False, timeout=TURN_S
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    if not lines:
        sys.exit(done.stdout[-3000:] + done.stderr[-6000:])
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    if result["class"].startswith("commlib") != bool(engines):
        sys.exit(f"{engines or 'the engine alone'} ran by {result['class']}:\n{done.stderr[-6000:]}")
    return result


def main() -> int:
    """Take turns, print and write the times."""
    parser = command_line(__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=whole_numbers, default=(1, 16, 64, 256, 1024))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rank", action="store_true", help="be one rank of a turn")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.engine, options.tokens)
        return 0
    rows = []
    for library, engines in [(options.engine, ""), ("commlib", options.engine)] * options.turns:
        result = turn(options.ranks, engines)
        for row in result["rows"]:
            rows.append({"library": library, "class": result["class"], **row})
            print(
                f"{library:8} {row['tokens']:5} tokens: {row['all_reduce_us']:8.2f} us, "
                f"with residual and norm {row['with_norm_us']:8.2f} us, by {result['class']}",
                flush=True,
            )
    about = {**head(f"{options.engine}_groups", options.ranks, "nccl"), "hidden": HIDDEN}
    write(options.output, {**about, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
