"""Time vLLM or SGLang with and without commlib, in turns: tokens per second, on GPUs or, vLLM, on two cores.

    .venv-engines/bin/python benchmarks/engine_throughput.py -o vllm.json      # on CPUs, after make test-engines
    python benchmarks/engine_throughput.py --engine sglang --batches 1,16,64 --turns 1 -o sglang.json     # on GPUs

Each turn is a process of its own, which generates with a Llama of random weights, tensor parallel. On GPUs it is as
wide as one of 8 billion parameters, deep and narrow inside, compiled and in graphs; commlib also takes a turn with the
sums alone, and vLLM one without FlashInfer, which joins sums and norms for it where it is installed. On CPUs it is wide
and its matrices are narrow, so it communicates much for what it computes, and the share of all_reduce is measured. The
tokens of all turns must be equal, but for those of a sum and a norm in one kernel, which round once less: that may turn
a close choice, as another batch size does in the engine alone. So may the times at which the requests of one batch
reach the engine: on GPUs only the median of a batch's requests must be equal.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from written import command_line, head, whole_numbers, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines import vllm_model  # noqa: E402

GPU = torch.cuda.is_available()
OF_CPUS = {
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
TOKENS, RUNS, MOST_TOKENS, SEED = 100, 5, 256, 7
TURN_S = 900.0  # a turn that takes longer hangs
ALONE, APART, SUMS, FUSED = "alone", "alone, no FlashInfer", "commlib, sums alone", "commlib"


class Engine(NamedTuple):
    """An engine with a model: what makes its sums, whether norms join them, and tokens that follow each prompt."""

    sums: str
    joins_norms: bool
    generate: Callable[[list[list[int]], int], list[list[int]]]
    share: Callable[[Callable[[], Any]], float] | None = None  # of all_reduce in the time of that


class Timed:
    """Methods of vLLM's workers."""

    def sums(self) -> str:
        """Name what makes the all-reduces."""
        from vllm.distributed import get_tp_group

        communicator = get_tp_group().device_communicator
        return type(getattr(communicator, "ca_comm", None) or communicator).__module__

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


def vllm(folder: str, ranks: int, batches: tuple[int, ...], way: str) -> Engine:
    """Start vLLM."""
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {"enforce_eager": not GPU, "max_num_seqs": max(batches), "seed": SEED}
    options |= {"max_model_len": MOST_TOKENS, "enable_prefix_caching": False, "skip_tokenizer_init": True}
    if GPU:
        apart = {"pass_config": {"fuse_allreduce_rms": False}} if way in (APART, SUMS) else {}
        options["compilation_config"] = {"cudagraph_capture_sizes": list(batches), **apart}
        options["max_num_batched_tokens"] = 8192  # one range to compile, in which FlashInfer joins norms, too
    worker = "benchmarks.engine_throughput.Timed"
    llm = LLM(folder, tensor_parallel_size=ranks, worker_extension_cls=worker, **options)

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        results = llm.generate([{"prompt_token_ids": each} for each in prompts], greedy, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def share(work: Callable[[], Any]) -> float:
        llm.collective_rpc("time_all_reduce")
        start = time.perf_counter()
        work()
        return float(min(llm.collective_rpc("spent")) / (time.perf_counter() - start))  # the other rank waits longer

    joins = llm.llm_engine.vllm_config.compilation_config.pass_config.fuse_allreduce_rms
    return Engine(llm.collective_rpc("sums")[0], bool(joins), generate, None if GPU else share)


def sglang(folder: str, ranks: int, batches: tuple[int, ...], way: str) -> Engine:
    """Start SGLang."""
    import sglang

    options: dict[str, Any] = {"tp_size": ranks, "skip_tokenizer_init": True, "disable_radix_cache": True}
    options |= {"context_length": MOST_TOKENS, "random_seed": SEED, "max_running_requests": max(batches)}
    options |= {"cuda_graph_bs_decode": list(batches), "cuda_graph_max_bs_decode": max(batches)}
    options |= {"disable_prefill_cuda_graph": True, "sampling_backend": "pytorch", "grammar_backend": "none"}
    if way == FUSED:
        options["flashinfer_allreduce_fusion_backend"] = "auto"
    engine = sglang.Engine(model_path=folder, log_level="info", **options)

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        greedy = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        return [list(result["output_ids"]) for result in engine.generate(input_ids=prompts, sampling_params=greedy)]

    return Engine("", way == FUSED, generate)


def parts_of(model: dict[str, Any]) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Yield the names and shapes of a Llama's weights, in parts."""
    width, inner, head = model["hidden_size"], model["intermediate_size"], model["head_dim"]
    heads, both = model["num_attention_heads"] * head, model["num_key_value_heads"] * head
    for at in range(model["num_hidden_layers"]):
        attention = {"q_proj": (heads, width), "k_proj": (both, width), "v_proj": (both, width)}
        attention["o_proj"] = (width, heads)
        shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}": shape for name, shape in attention.items()}
        ways = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
        shapes |= {f"mlp.{name}": shape for name, shape in ways.items()}
        shapes |= {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
        yield f"layer{at}", {f"model.layers.{at}.{name}.weight": shape for name, shape in shapes.items()}
    words = (model["vocab_size"], width)
    yield "rest", {"model.embed_tokens.weight": words, "model.norm.weight": (width,), "lm_head.weight": words}


def write_model(folder: Path, model: dict[str, Any]) -> None:
    """Write a Llama of random weights, with which tokens are not alike."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(model))
    device = "cuda" if GPU else "cpu"
    draw = torch.Generator(device).manual_seed(SEED)

    def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=draw, device=device)
        scale = 3.0 if "embed_tokens" in name else shape[-1] ** -0.5
        return (values * scale if len(shape) > 1 else 1 + values / 10).to(getattr(torch, model["torch_dtype"])).cpu()

    for part, shapes in parts_of(model):
        save_file({name: drawn(name, shape) for name, shape in shapes.items()}, folder / f"{part}.safetensors")


def generate(engine: Engine, batches: tuple[int, ...]) -> dict[str, Any]:
    """Return for each batch the seconds of runs, of runs of one token, and the tokens; on CPUs all_reduce's share."""
    result: dict[str, Any] = {"sums": engine.sums, "joins_norms": engine.joins_norms, "rows": []}

    def run(batch: int, tokens: int = TOKENS) -> tuple[float, list[list[int]]]:
        prompts = [[5 + i, 7, 11, 13] for i in range(batch)]
        start = time.perf_counter()
        found = engine.generate(prompts, tokens)
        return time.perf_counter() - start, found

    for batch in batches:
        run(batch)
        seconds, tokens = zip(*(run(batch) for _ in range(RUNS)), strict=True)
        first = [run(batch, 1)[0] for _ in range(RUNS)]
        steady = sum(all(run[i] == tokens[0][i] for run in tokens) for i in range(batch))
        row = {"batch": batch, "seconds": seconds, "first": first, "alike_in_all_runs": steady, "tokens": tokens[-1]}
        result["rows"].append(row)
    if engine.share:
        result["share"] = engine.share(lambda: run(batches[-1]))
    return result


def turn(folder: str, options: Any, way: str) -> dict[str, Any]:
    """Generate in a process of its own, and return what it measured."""
    words = ["--engine", options.engine, "--ranks", str(options.ranks), "--way", way]
    command = [sys.executable, __file__, *words, "--batches", ",".join(map(str, options.batches)), "--generate", folder]
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = vllm_model.variables(options.ranks, options.engine if way in (SUMS, FUSED) else "")
    environment = os.environ | variables | {"PYTHONPATH": path}
    environment |= {"VLLM_ALLREDUCE_USE_FLASHINFER": "0"} if way == APART else {}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=TURN_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    served = f"{options.ranks} ranks on commlib" in done.stdout + done.stderr
    if not lines or served != (way in (SUMS, FUSED)):
        sys.exit(f"{way}: on commlib {served}\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
    result: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    return result


def alike(some: list[list[int]], others: list[list[int]]) -> float:
    """Return how many tokens are equal before the first that is not, the median of all requests that both have."""
    pairs = [list(zip(*both, strict=True)) for both in zip(some, others)]  # noqa: B905
    return statistics.median(next((i for i, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs)


def main() -> int:
    """Take turns, print and write the speeds."""
    parser = command_line(__doc__)
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=whole_numbers, default=(64,))
    parser.add_argument("--layers", type=int, help="of the model")
    parser.add_argument("--generate", metavar="FOLDER", help="the model of one turn")
    parser.add_argument("--way", help="of that turn")
    options = parser.parse_args()
    if options.generate:
        start = {"vllm": vllm, "sglang": sglang}[options.engine]
        engine = start(options.generate, options.ranks, options.batches, options.way)
        print("result", json.dumps(generate(engine, options.batches)))
        return 0
    model: dict[str, Any] = dict(OF_GPUS if GPU else OF_CPUS)
    model |= {"num_hidden_layers": options.layers} if options.layers else {}
    flashinfer = options.engine == "vllm" and find_spec("flashinfer") is not None
    ways = [ALONE, FUSED, *[APART] * flashinfer, SUMS] if GPU else [ALONE, FUSED]
    rows, wrong = [], False
    speeds: dict[tuple[str, int], list[float]] = {}
    chosen: dict[int, list[list[int]]] = {}  # the tokens of the first turn
    apart: dict[int, list[list[int]]] = {}  # of the first one that does not join sums and norms
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), vllm_model.CONFIG | model)
        for way in ways * options.turns:
            last = turn(folder, options, way)
            for row in last["rows"]:
                batch, tokens = row["batch"], row.pop("tokens")
                same = alike(chosen.setdefault(batch, tokens), tokens)
                if not last["joins_norms"]:
                    expected = apart.setdefault(batch, tokens)
                    wrong |= alike(expected, tokens) < TOKENS if GPU else expected != tokens
                each = [batch * (TOKENS - 1) / (s - statistics.median(row["first"])) for s in row["seconds"]]
                speeds.setdefault((way, batch), []).extend(each)
                made = {key: last[key] for key in ("sums", "joins_norms", "share") if key in last}
                rate = round(statistics.median(each), 1)
                rows.append({"way": way, **made, **row, "tokens_alike": same, "tokens_per_s": rate})
                share = f", all_reduce {last['share']:.0%} of the time" if "share" in last else ""
                told = f"{rate:8.1f} tokens/s, the first {same:g} of {TOKENS} alike{share}"
                print(f"{way:20} batch {batch:3}: {told}", flush=True)
            middle = {key: statistics.median(found) for key, found in speeds.items()}
            for row in rows:
                row["of_alone"] = round(middle[row["way"], row["batch"]] / middle[ALONE, row["batch"]], 4)
            few, many = sorted(chosen)[-2:][0], max(chosen)
            rounding = {f"{few}, {many}": alike(chosen[few], chosen[many])}
            settings = {"model": model, "tokens": TOKENS, "alike_in_batches": rounding}
            begun = head(f"{options.engine}_throughput", options.ranks, "nccl" if GPU else "shm")
            write(options.output, {**begun, **settings, "rows": rows})
    told = {f"{row['way']}, batch {row['batch']} {row['of_alone']:.3f}": 0 for row in rows if row["way"] != ALONE}
    print("of the engine alone:", "; ".join(told))  # all turns of a way together
    print("alike at first in two batches of the engine alone:", rounding)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
