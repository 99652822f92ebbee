"""Tokens per second of vLLM on CPUs with and without commlib, in turns, and the share of its time that is communication.

    python benchmarks/vllm_throughput.py -o benchmarks/results/vllm.json

Each turn is a process of its own: vLLM generates with a Llama of random weights, tensor parallel on two cores. The
model is small and deep, so that communication is a fifth of a step or more. The tokens of all turns must be equal.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines import vllm_model  # noqa: E402

MODEL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 16}
TOKENS = 100


class Timed:
    """Methods of vLLM's workers: they time each all_reduce from its call to its end."""

    def time_all_reduce(self) -> None:
        from vllm.distributed import get_tp_group

        communicator = get_tp_group().device_communicator
        original = communicator.all_reduce
        self.seconds = 0.0

        def timed(input_: Any) -> Any:
            begun = time.perf_counter()
            result = original(input_)
            self.seconds += time.perf_counter() - begun
            return result

        communicator.all_reduce = timed

    def spent(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def generate(folder: str, batch: int) -> None:
    """Print tokens, seconds and the share of all_reduce, each of five runs."""
    from vllm import LLM, SamplingParams

    options = vllm_model.OPTIONS | {"max_model_len": 256}
    llm = LLM(folder, tensor_parallel_size=2, worker_extension_cls="benchmarks.vllm_throughput.Timed", **options)
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [5 + i, 7, 11, 13]} for i in range(batch)]

    def run() -> tuple[float, list[list[int]]]:
        begun = time.perf_counter()
        results = llm.generate(prompts, greedy, use_tqdm=False)
        return time.perf_counter() - begun, [list(result.outputs[0].token_ids) for result in results]

    run()
    seconds, tokens = zip(*(run() for _ in range(5)), strict=True)
    llm.collective_rpc("time_all_reduce")
    whole, _ = run()
    shares = [spent / whole for spent in llm.collective_rpc("spent")]
    print("result", json.dumps({"seconds": seconds, "tokens": tokens[-1], "share": min(shares)}))


def turn(folder: str, engines: str, batch: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--generate", folder, "--batch", str(batch)]
    environment = os.environ | vllm_model.variables(2, engines) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    if not lines:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--generate", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        generate(options.generate, options.batch)
        return
    turns: dict[str, list[dict[str, Any]]] = {"vLLM": [], "commlib": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(vllm_model.CONFIG | MODEL))
        for _ in range(options.turns):
            for name, engines in (("vLLM", ""), ("commlib", "vllm")):
                turns[name].append(turn(folder, engines, options.batch))
                last = turns[name][-1]
                speed = options.batch * TOKENS / statistics.median(last["seconds"])
                print(f"{name:8} {speed:7.1f} tokens/s, all_reduce {last['share']:.0%} of the time", flush=True)
    if len({json.dumps(each["tokens"]) for each in turns["vLLM"] + turns["commlib"]}) != 1:
        sys.exit("the tokens differ")
    speeds = {
        name: [options.batch * TOKENS / second for each in all_turns for second in each["seconds"]]
        for name, all_turns in turns.items()
    }
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    shares = {name: statistics.median(each["share"] for each in all_turns) for name, all_turns in turns.items()}
    print(f"commlib / vLLM: {medians['commlib'] / medians['vLLM']:.3f}")
    if options.output:
        import vllm

        document = {
            "command": " ".join(["python", "benchmarks/vllm_throughput.py", *sys.argv[1:]]),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "vllm": vllm.__version__,
            "model": MODEL,
            "batch": options.batch,
            "tokens_equal": True,
            "all_reduce_share": shares,
            "tokens_per_s": speeds,
            "ratio_of_medians": medians["commlib"] / medians["vLLM"],
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
