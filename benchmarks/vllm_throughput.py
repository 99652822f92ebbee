"""Time vLLM on two cores with and without commlib, in turns: tokens per second, and the share of all_reduce.

    .venv-engines/bin/python benchmarks/vllm_throughput.py -o vllm.json      # after make test-engines

Each turn is a process of its own, which generates with a Llama of random weights, tensor parallel on two ranks. The
model is wide and its matrices are narrow, so it communicates much for what it computes. The tokens of all turns must be
equal.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from written import command_line, head, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines import vllm_model  # noqa: E402

MODEL = {
    "hidden_size": 8192,
    "head_dim": 32,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 12,
    "torch_dtype": "float32",
}
TOKENS, RUNS = 100, 5


class Timed:
    """Methods of vLLM's workers: they time each all_reduce from its call to its end."""

    def time_all_reduce(self) -> None:
        """Time all calls from now on."""
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


def generate(folder: str, batch: int) -> None:
    """Print the seconds of each run, the tokens, and the share of all_reduce in one more run, the faster rank's."""
    from vllm import LLM, SamplingParams

    options = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 256,
        "seed": 7,
    }
    llm = LLM(folder, tensor_parallel_size=2, worker_extension_cls="benchmarks.vllm_throughput.Timed", **options)
    greedy = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [5 + i, 7, 11, 13]} for i in range(batch)]

    def run() -> tuple[float, list[list[int]]]:
        start = time.perf_counter()
        results = llm.generate(prompts, greedy, use_tqdm=False)
        return time.perf_counter() - start, [list(result.outputs[0].token_ids) for result in results]

    run()
    seconds, tokens = zip(*(run() for _ in range(RUNS)), strict=True)
    llm.collective_rpc("time_all_reduce")
    whole, _ = run()
    share = min(llm.collective_rpc("spent")) / whole  # the other rank also waits for this one
    print("result", json.dumps({"seconds": seconds, "tokens": tokens[-1], "share": share}))


def turn(folder: str, engines: str, batch: int) -> dict[str, Any]:
    """Run generate() in a process of its own, and return what it measured."""
    command = [sys.executable, __file__, "--generate", folder, "--batch", str(batch)]
    environment = os.environ | vllm_model.variables(2, engines) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    if not lines:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    return result


def main() -> int:
    """Take turns, print and write the speeds."""
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--generate", metavar="FOLDER", help="the model of one turn")
    options = parser.parse_args()
    if options.generate:
        generate(options.generate, options.batch)
        return 0
    turns: dict[str, list[dict[str, Any]]] = {"vllm": [], "commlib": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(vllm_model.CONFIG | MODEL))
        for name in [*turns] * options.turns:
            last = turn(folder, {"vllm": "", "commlib": "vllm"}[name], options.batch)
            turns[name].append(last)
            speed = options.batch * TOKENS / statistics.median(last["seconds"])
            print(f"{name:8} {speed:7.1f} tokens/s, all_reduce {last['share']:.0%} of the time", flush=True)
    rows = [
        {
            "library": name,
            "tokens_per_s": [options.batch * TOKENS / seconds for one in each for seconds in one["seconds"]],
            "all_reduce_share": [one["share"] for one in each],
        }
        for name, each in turns.items()
    ]
    theirs, ours = (statistics.median(row["tokens_per_s"]) for row in rows)
    print(f"commlib / vLLM: {ours / theirs:.3f}")
    settings = {"model": MODEL, "batch": options.batch, "tokens": TOKENS, "ratio_of_medians": ours / theirs}
    write(options.output, {**head("vllm_throughput", 2, "shm"), **settings, "rows": rows})
    equal = len({json.dumps(one["tokens"]) for each in turns.values() for one in each}) == 1
    print("the tokens are equal" if equal else "the tokens differ")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
