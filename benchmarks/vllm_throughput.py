"""Time vLLM with and without commlib, in turns: tokens per second, on two GPUs or on two cores.

    .venv-engines/bin/python benchmarks/vllm_throughput.py -o vllm.json      # on CPUs, after make test-engines
    python benchmarks/vllm_throughput.py --batches 1,16,64 --turns 1 -o vllm.json             # on GPUs, beside vLLM

Each turn is a process of its own, which generates with a Llama of random weights, tensor parallel on two ranks. On GPUs
it is half of one of 8 billion parameters, compiled and in graphs. On CPUs it is wide and its matrices are narrow, so it
communicates much for what it computes, and the share of all_reduce is measured. The tokens of all turns must be equal
on CPUs; on GPUs a sum and a norm in one kernel round once less, which may turn a close choice.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from written import command_line, head, whole_numbers, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines import vllm_model  # noqa: E402

GPU = torch.cuda.is_available()
MODEL = {
    "hidden_size": 8192,
    "head_dim": 32,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 12,
    "torch_dtype": "float32",
}
OF_GPUS = {
    "hidden_size": 4096,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_hidden_layers": 16,
    "vocab_size": 32000,
}
OPTIONS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": not GPU,
    "max_model_len": 256,
    "seed": 7,
    "enable_prefix_caching": False,
}
TOKENS, RUNS = 100, 5


class Timed:
    """Methods of vLLM's workers."""

    def draw_weights(self) -> str:
        """On GPUs replace the dummy weights, by which tokens are alike; return what makes the all-reduces."""
        from vllm.distributed import get_tp_group

        group = get_tp_group()
        named = self.model_runner.model.named_parameters() if GPU else ()  # type: ignore[attr-defined]
        for name, weights in named:
            of_name = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
            draw = torch.Generator(weights.device).manual_seed(
                of_name + (group.rank_in_group if weights.dim() > 1 else 0)
            )
            drawn = torch.randn(weights.shape, generator=draw, device=weights.device)
            cut = group.world_size if name.endswith(("o_proj.weight", "down_proj.weight")) else 1  # its inputs
            scale = 3.0 if "embed_tokens" in name else (cut * weights.shape[-1]) ** -0.5
            weights.data.copy_(drawn * scale if weights.dim() > 1 else 1 + drawn / 10)
        made_by = getattr(group.device_communicator, "ca_comm", None) or group.device_communicator
        return type(made_by).__module__

    def time_all_reduce(self) -> None:
        """Time all calls from now on, from the call to its end."""
        from vllm.distributed import get_tp_group

        communicator = get_tp_group().device_communicator
        original = communicator.all_reduce
        self.seconds = 0.0

        def timed(input_: Any) -> Any:
            start = time.perf_counter()
            result = original(input_)
            self.seconds += time.perf_counter() - start
            return result

        communicator.all_reduce = timed

    def spent(self) -> float:
        """Return the seconds since."""
        return self.seconds


def generate(folder: str, batches: tuple[int, ...]) -> None:
    """Print for each batch the seconds of runs, of runs of one token, and the tokens; on CPUs all_reduce's share."""
    from vllm import LLM, SamplingParams

    extension = {"worker_extension_cls": "benchmarks.vllm_throughput.Timed", "max_num_seqs": max(batches)}
    llm = LLM(folder, tensor_parallel_size=2, **OPTIONS, **extension)
    result: dict[str, Any] = {"class": llm.collective_rpc("draw_weights")[0], "rows": []}

    def run(batch: int, tokens: int = TOKENS) -> tuple[float, list[list[int]]]:
        greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": [5 + i, 7, 11, 13]} for i in range(batch)]
        start = time.perf_counter()
        results = llm.generate(prompts, greedy, use_tqdm=False)
        return time.perf_counter() - start, [list(result.outputs[0].token_ids) for result in results]

    for batch in batches:
        run(batch)
        seconds, tokens = zip(*(run(batch) for _ in range(RUNS)), strict=True)
        first = [run(batch, 1)[0] for _ in range(RUNS)]
        result["rows"].append({"batch": batch, "seconds": seconds, "first": first, "tokens": tokens[-1]})
    if not GPU:
        llm.collective_rpc("time_all_reduce")
        whole, _ = run(batches[-1])
        result["share"] = min(llm.collective_rpc("spent")) / whole  # the other rank also waits for this one
    print("result", json.dumps(result))


def turn(folder: str, engines: str, batches: tuple[int, ...]) -> dict[str, Any]:
    """Run generate() in a process of its own, and return what it measured."""
    command = [sys.executable, __file__, "--generate", folder, "--batches", ",".join(map(str, batches))]
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | vllm_model.variables(2, engines) | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result ")) if lines else {"class": "none"}
    if not lines or result["class"].startswith("commlib") != bool(engines):
        sys.exit(
            f"{engines or 'vLLM alone'}: all_reduce by {result['class']}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        )
    return result


def main() -> int:
    """Take turns, print and write the speeds."""
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=whole_numbers, default=(64,))
    parser.add_argument("--layers", type=int, help="of the model")
    parser.add_argument("--generate", metavar="FOLDER", help="the model of one turn")
    options = parser.parse_args()
    if options.generate:
        generate(options.generate, options.batches)
        return 0
    model: dict[str, Any] = OF_GPUS if GPU else MODEL
    model = model | ({"num_hidden_layers": options.layers} if options.layers else {})
    rows, differ = [], 0
    speeds: dict[tuple[str, int], list[float]] = {}
    chosen: dict[int, list[list[int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(vllm_model.CONFIG | model))
        for name, engines in [("vllm", ""), ("commlib", "vllm")] * options.turns:
            last = turn(folder, engines, options.batches)
            for row in last["rows"]:
                batch, tokens = row["batch"], row.pop("tokens")
                pairs = zip(chosen.setdefault(batch, tokens), tokens, strict=True)
                other = sum(a != b for one, two in pairs for a, b in zip(one, two, strict=True))
                each = [batch * (TOKENS - 1) / (s - statistics.median(row["first"])) for s in row["seconds"]]
                speeds.setdefault((name, batch), []).extend(each)
                rows.append({"library": name, "class": last["class"], **row, "other_tokens": other})
                differ += other
                share = f", all_reduce {last['share']:.0%} of the time" if "share" in last else ""
                told = f"{statistics.median(each):8.1f} tokens/s, {other} of {batch * TOKENS} differ{share}"
                print(f"{name:8} batch {batch:3}: {told}", flush=True)
    ratios = {
        b: statistics.median(speeds["commlib", b]) / statistics.median(speeds["vllm", b]) for b in options.batches
    }
    print("commlib / vLLM:", ", ".join(f"{ratio:.3f} at batch {batch}" for batch, ratio in ratios.items()))
    settings = {"model": model, "tokens": TOKENS, "ratios_of_medians": ratios}
    write(options.output, {**head("vllm_throughput", 2, "nccl" if GPU else "shm"), **settings, "rows": rows})
    return int(differ > 0 and not GPU)


if __name__ == "__main__":
    sys.exit(main())
