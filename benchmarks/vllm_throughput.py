"""Time vLLM with and without commlib, in turns: tokens per second, on two GPUs or on two cores.

    .venv-engines/bin/python benchmarks/vllm_throughput.py -o vllm.json      # on CPUs, after make test-engines
    python benchmarks/vllm_throughput.py --batches 1,16,64 --turns 1 -o vllm.json             # on GPUs, beside vLLM

Each turn is a process of its own, which generates with a Llama of random weights, tensor parallel. On GPUs it is as
wide as one of 8 billion parameters, deep and narrow inside, compiled and in graphs; commlib also takes a turn with the
sums alone. On CPUs it is wide and its matrices are narrow, so it communicates much for what it computes, and the share
of all_reduce is measured. The tokens of all turns must be equal, but for those of a sum and a norm in one kernel, which
round once less: that may turn a close choice, as another batch size does in vLLM alone. So may the times at which the
requests of one batch reach vLLM: on GPUs only the median of a batch's requests must be equal.
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
    "intermediate_size": 4096,
    "num_hidden_layers": 64,
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
ALONE, SUMS, FUSED = "vllm", "commlib, sums alone", "commlib"


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


def generate(folder: str, ranks: int, batches: tuple[int, ...], way: str) -> None:
    """Print for each batch the seconds of runs, of runs of one token, and the tokens; on CPUs all_reduce's share."""
    from vllm import LLM, SamplingParams

    extension: dict[str, Any] = {
        "worker_extension_cls": "benchmarks.vllm_throughput.Timed",
        "max_num_seqs": max(batches),
    }
    if GPU:
        apart = {"pass_config": {"fuse_allreduce_rms": False}} if way == SUMS else {}
        extension["compilation_config"] = {"cudagraph_capture_sizes": list(batches), **apart}
        extension["max_num_batched_tokens"] = 8192  # one range to compile, in which FlashInfer joins norms, too
    llm = LLM(folder, tensor_parallel_size=ranks, **OPTIONS, **extension)
    joins = llm.llm_engine.vllm_config.compilation_config.pass_config.fuse_allreduce_rms
    result: dict[str, Any] = {"class": llm.collective_rpc("draw_weights")[0], "joins_norms": bool(joins), "rows": []}

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
        steady = sum(all(run[i] == tokens[0][i] for run in tokens) for i in range(batch))
        result["rows"].append(
            {"batch": batch, "seconds": seconds, "first": first, "alike_in_all_runs": steady, "tokens": tokens[-1]}
        )
    if not GPU:
        llm.collective_rpc("time_all_reduce")
        whole, _ = run(batches[-1])
        result["share"] = min(llm.collective_rpc("spent")) / whole  # the other rank also waits for this one
    print("result", json.dumps(result))


def turn(folder: str, ranks: int, batches: tuple[int, ...], way: str) -> dict[str, Any]:
    """Run generate() in a process of its own, and return what it measured."""
    options = ["--ranks", str(ranks), "--batches", ",".join(map(str, batches)), "--way", way]
    command = [sys.executable, __file__, "--generate", folder, *options]
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | vllm_model.variables(ranks, "" if way == ALONE else "vllm") | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result ")) if lines else {"class": "none"}
    if not lines or result["class"].startswith("commlib") != (way != ALONE):
        sys.exit(f"{way}: all_reduce by {result['class']}\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
    return result


def alike(some: list[list[int]], others: list[list[int]]) -> float:
    """Return how many tokens are equal before the first that is not, the median of all requests that both have."""
    pairs = [list(zip(*both, strict=True)) for both in zip(some, others)]  # noqa: B905
    return statistics.median(next((i for i, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs)


def main() -> int:
    """Take turns, print and write the speeds."""
    parser = command_line(__doc__)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=whole_numbers, default=(64,))
    parser.add_argument("--layers", type=int, help="of the model")
    parser.add_argument("--generate", metavar="FOLDER", help="the model of one turn")
    parser.add_argument("--way", help="of that turn")
    options = parser.parse_args()
    if options.generate:
        generate(options.generate, options.ranks, options.batches, options.way)
        return 0
    model: dict[str, Any] = OF_GPUS if GPU else MODEL
    model = model | ({"num_hidden_layers": options.layers} if options.layers else {})
    ways = [ALONE, SUMS, FUSED] if GPU else [ALONE, FUSED]
    rows, wrong = [], False
    speeds: dict[tuple[str, int], list[float]] = {}
    chosen: dict[int, list[list[int]]] = {}  # the tokens of the first turn
    apart: dict[int, list[list[int]]] = {}  # of the first one that does not join sums and norms
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(vllm_model.CONFIG | model))
        for way in ways * options.turns:
            last = turn(folder, options.ranks, options.batches, way)
            for row in last["rows"]:
                batch, tokens = row["batch"], row.pop("tokens")
                same = alike(chosen.setdefault(batch, tokens), tokens)
                if not last["joins_norms"]:
                    expected = apart.setdefault(batch, tokens)
                    wrong |= alike(expected, tokens) < TOKENS if GPU else expected != tokens
                each = [batch * (TOKENS - 1) / (s - statistics.median(row["first"])) for s in row["seconds"]]
                speeds.setdefault((way, batch), []).extend(each)
                made = {"library": way, "class": last["class"], "joins_norms": last["joins_norms"]}
                rows.append({**made, **row, "tokens_alike": same})
                share = f", all_reduce {last['share']:.0%} of the time" if "share" in last else ""
                told = f"{statistics.median(each):8.1f} tokens/s, the first {same:g} of {TOKENS} alike{share}"
                print(f"{way:19} batch {batch:3}: {told}", flush=True)
            middle = {key: statistics.median(found) for key, found in speeds.items()}
            ratios = {f"{key[0]}, batch {key[1]}": speed / middle[ALONE, key[1]] for key, speed in middle.items()}
            few, many = sorted(chosen)[-2:][0], max(chosen)
            rounding = {f"{few}, {many}": alike(chosen[few], chosen[many])}
            settings = {"model": model, "tokens": TOKENS, "ratios_to_vllm": ratios, "alike_in_batches": rounding}
            backend = "nccl" if GPU else "shm"
            write(options.output, {**head("vllm_throughput", options.ranks, backend), **settings, "rows": rows})
    print("of vLLM alone:", "; ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items() if ALONE not in name))
    print("alike at first in two batches of vLLM alone:", rounding)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
