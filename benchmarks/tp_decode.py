"""Time decode steps of a Llama-shaped stack by how its layers add up and normalise, and where the time of a step goes.

    commlib run -n 2 python benchmarks/tp_decode.py -o tp_decode.json   # on GPUs: Llama 2 70B, cut to 8 layers
    commlib run -n 2 python benchmarks/tp_decode.py --batches 1,4       # without GPUs: a small one, by shm and gloo

The model of examples/llama with random weights makes the same step again and again; the ways of reduce_norm.py take
turns in it, in CUDA graphs on GPUs. First their logits are compared: a way that gives others is an error. The rest of a
step is the same for all ways, with the exchange of the next tokens, which is commlib's. torchrun can start it, too.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from reduce_norm import SHOTS, Way, Ways, algorithms_of, fastest
from torch import Tensor
from written import command_line, figures, head, joined, ratio, ratio_text, whole_numbers, write

from commlib.communicator import Communicator
from commlib.redops import torch_name
from commlib.tools.report.formats import ratio_text as value_text
from commlib.tools.timing import Measurement, Protocol, Run, graph, measure_calls, separate_stream
from commlib.tp import Shard
from commlib.tp.norm import FusedResidualNorm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.llama import KVCache, Llama, LlamaConfig, decode_batch, greedy

SHAPES = {
    "cuda": {"layers": 8, "hidden": 8192, "heads": 64, "kv_heads": 8, "intermediate": 28672, "vocab": 32000},
    "cpu": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "intermediate": 1408, "vocab": 2048},
}
DEFAULTS = {"cuda": {"dtype": "bfloat16", "context": 512}, "cpu": {"dtype": "float32", "context": 64}}
PAGE = 16
FAR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # the distance of logits over their size
STEP, NORMS, PRODUCTS, ATTENTION = "step", "norms", "products", "attention"
WITHOUT = "without"  # a step without communication and norms


class What(NamedTuple):
    """What is timed: a step or its communication and norms alone, by a way; or a part that is the same for all."""

    part: str
    way: str = ""


class DeviceWeights:
    """Random weights, made on the device: a part's depend on its name and place, so copies of it are the same."""

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator(device)

    def read(self, name: str, shape: tuple[int, ...], dim: int = 0, part: Shard | None = None) -> Tensor:
        """Return a matrix that keeps the size of its inputs, or a vector of about 1."""
        own = list(shape)
        if part is not None:
            own[dim] = part.length
        self.generator.manual_seed(zlib.crc32(f"{name} {part.start if part else 0}".encode()))
        made = torch.randn(own, generator=self.generator, device=self.generator.device)
        return made.mul_(shape[-1] ** -0.5) if len(shape) > 1 else made.div_(10).add_(1)


class Norms:
    """Stands in for the communicator of a model's norms: makes their call in the way that is set."""

    way: Way

    def all_reduce_rms_norm(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, weight_bias: float = 0.0
    ) -> tuple[Tensor, ...]:
        """Make the one call that FusedResidualNorm makes."""
        return self.way.run(x, residual, weight, eps)


def nothing(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Leave communication and norm out."""
    return x, x if residual is None else residual


class Decode:
    """A model and its cache, whose norms go any way."""

    def __init__(self, comm: Communicator, options: argparse.Namespace, ways: Ways) -> None:
        self.comm, self.context = comm, options.context
        self.dtype, self.most = getattr(torch, options.dtype), max(options.batches)
        self.model = Llama(comm, config_of(options), dtype=self.dtype, max_tokens=self.most)
        self.model.load(DeviceWeights(comm.device))
        self.norms = [module for module in self.model.modules() if isinstance(module, FusedResidualNorm)]
        self._way: Any = Norms()
        for norm in self.norms:
            norm.comm = self._way
        self.layers: list[Any] = list(self.model.layers)
        self._pages = -(-self.context // PAGE)
        self.cache = KVCache(self.model, self.most * self._pages, PAGE)
        generator = torch.Generator(comm.device).manual_seed(comm.rank)
        for values in (self.cache.k, self.cache.v):
            values.normal_(generator=generator)
        in_arena, width = self.model.buffer, self.model.config.hidden_size
        self.buffers = {
            way.label: in_arena if way.ours else way.empty(self.most * width, self.dtype).view(-1, width)
            for way in ways.found
        }
        self.buffers[WITHOUT] = in_arena

    def use(self, way: Way) -> None:
        """Let the norms go this way from now on."""
        way.enter()
        self._way.way, self.model.buffer = way, self.buffers[way.label]

    def inputs(self, batch: int) -> Tensor:
        """Return what decode_batch takes: each request has a token, its length, and pages of its own."""
        tables = torch.arange(batch * self._pages).view(batch, -1)
        tokens = torch.arange(batch)[:, None] * 37 % self.model.config.vocab_size
        rows = torch.cat([tokens, torch.full((batch, 1), self.context), tables], 1)
        return rows.to(self.comm.device, torch.int32)

    def step(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's logits, and the next tokens."""
        logits = self.model(decode_batch(inputs, PAGE), self.cache)
        return logits, greedy(self.comm, logits, self.model.config.vocab_size)

    def norms_alone(self, way: Way, batch: int) -> Run:
        """Return the communication and norms of a step, one after the other."""
        rows = self.buffers[way.label][:batch]

        def run() -> None:
            x, residual = rows, None
            for norm in self.norms:
                x, residual = norm(x, residual)

        return run

    def products(self, batch: int) -> Run:
        """Return the products of a step."""
        first = self.layers[0]
        widths = (self.model.config.hidden_size, first.attention.out.part.length, first.mlp.down.part.length)
        x, heads, middle = (torch.randn(batch, width, device=self.comm.device).to(self.dtype) for width in widths)
        out = torch.empty_like(x)

        def run() -> None:
            for layer in self.layers:
                layer.attention.qkv(x)
                layer.attention.out.partial(heads, out)
                layer.mlp.gate_up(x)
                layer.mlp.down.partial(middle, out)
            self.model.head(x)

        return run

    def attention(self, batch: int, inputs: Tensor) -> Run:
        """Return what a step does between the products of attention."""
        described = decode_batch(inputs, PAGE)
        rotary = self.model.rotary(described.positions)
        width = sum(self.layers[0].attention.qkv.lengths)
        qkv = torch.randn(batch, width, device=self.comm.device).to(self.dtype)
        of_layers = list(zip(self.layers, self.cache.k, self.cache.v, strict=True))

        def run() -> None:
            for layer, k, v in of_layers:
                layer.attention.mixed(qkv, described, rotary, (k, v))

        return run


def check(decode: Decode, ways: Ways, inputs: Tensor) -> dict[str, float]:
    """Return how far the logits of each way are, eager and in a graph, from those of all_reduce with a norm behind."""
    unfused = next(way for way in ways.found if way.label == "unfused")
    expected, _ = _stepped(decode, unfused, inputs)[0]

    def apart(way: Way) -> float:
        return max(_distance(logits, expected) for logits, _ in _stepped(decode, way, inputs))

    far, tokens = FAR[decode.dtype], len(inputs)
    found = {way.label: ways.tried(f"{way.label} of {tokens} tokens", partial(apart, way), far) for way in ways.found}
    return {label: off for label, off in found.items() if off is not None}


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).double().norm() / expected.double().norm())


def _stepped(decode: Decode, way: Way, inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
    decode.use(way)
    results = [decode.step(inputs)]
    if decode.comm.device.type == "cuda":
        made: list[tuple[Tensor, Tensor]] = []
        replayed = graph.capture([lambda: made.append(decode.step(inputs))])
        for _ in range(2):
            replayed.replay()
        logits, tokens = made[0]
        results.append((logits.clone(), tokens.clone()))
        torch.cuda.synchronize()
        replayed.reset()
    return results


@torch.no_grad()
def measure(decode: Decode, all_ways: Ways, batch: int, protocol: Protocol) -> list[dict[str, Any]]:
    """Check and time one batch; return a row for each thing that was timed."""
    inputs = decode.inputs(batch)
    apart = check(decode, all_ways, inputs)
    ways = [way for way in all_ways.found if way.label in apart]
    without = Way(WITHOUT, nothing, ways[0].empty)
    calls: dict[What, Run] = {What(STEP, way.label): partial(decode.step, inputs) for way in (*ways, without)}
    calls |= {What(NORMS, way.label): decode.norms_alone(way, batch) for way in ways}
    by_label = {way.label: way for way in (*ways, without)}
    enters = {str(what): partial(decode.use, by_label[what.way]) for what in calls}
    calls |= {What(PRODUCTS): decode.products(batch), What(ATTENTION): decode.attention(batch, inputs)}
    found = measure_calls(
        decode.comm, {str(what): [run] for what, run in calls.items()}, protocol, f"batch {batch}", enters
    )
    whats = {str(what): what for what in calls}
    timed = {whats[result.label]: result for result in all_ways.timed(found)}
    return [
        {"batch": batch, **what._asdict(), **figures(result)}
        | {"tokens_per_s": round(batch / result.median_s, 1) if what.part == STEP else None}
        | {"apart": apart.get(what.way), "over": _over(timed, what, [way.label for way in ways if not way.ours])}
        for what, result in timed.items()
    ]


def _over(timed: dict[What, Measurement], what: What, others: list[str]) -> dict[str, Any]:
    """Return how many times as fast as each of the others it is; SGLang is the faster of its two shots."""
    found = {other: timed.get(What(what.part, other)) for other in others if other not in SHOTS}
    found["sglang"] = fastest(timed.get(What(what.part, shot)) for shot in SHOTS)
    return {other: ratio(result, timed[what]) for other, result in found.items() if result is not None and what.way}


def config_of(options: argparse.Namespace) -> LlamaConfig:
    """Return the model's shape."""
    return LlamaConfig(
        vocab_size=options.vocab,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.hidden // options.heads,
        rms_norm_eps=1e-5,
        max_position_embeddings=options.context,
    )


def page(rows: list[dict[str, Any]]) -> str:
    """Return one batch as text: a line for each way, and where the time goes."""
    found = {What(row["part"], row["way"]): row for row in rows}
    step, of_step = rows[0], found.get(What(NORMS, rows[0]["way"]), {"over": {}})
    others = [label for label in step["over"] if label in of_step["over"]]
    other = others[0] if others else ""
    lines = [
        "",
        f"batch {rows[0]['batch']}: µs on the slowest rank, and × {other} with its 95 % interval",
        f"{'way':17}{'step':>8}{'tokens/s':>9} {f'× {other}':>16}{'norms':>8} {f'× {other}':>16}",
    ]
    for what, row in found.items():
        norms = found.get(What(NORMS, what.way))
        if what.part == STEP and norms:
            lines.append(
                f"{what.way:17}{row['us']:8.1f}{row['tokens_per_s']:9.0f} {ratio_text(row['over'].get(other)):>16}"
                f"{norms['us']:8.1f} {ratio_text(norms['over'].get(other)):>16}"
            )
    for label in others[1:]:
        by_step, by_norms = (ratio_text(row["over"].get(label)) for row in (step, of_step))
        lines.append(f"{step['way']} × {label}: step {by_step}, norms {by_norms}")
    return "\n".join([*lines, *_shares(found, step, other)])


def _shares(found: dict[What, dict[str, Any]], step: dict[str, Any], other: str) -> list[str]:
    """Return where the time of a step goes, and what a step would be at most."""
    parts = [found.get(what) for what in (What(STEP, WITHOUT), What(PRODUCTS), What(ATTENTION))]
    if not all(parts):
        return []
    without, products, attention = (row["us"] for row in parts if row)
    whole = step["us"]
    shares = {"products": products, "attention": attention, "rest": without - products - attention}
    shares["communication and norms"] = whole - without
    lines = [f"  {name:24}{us:9.1f}{us / whole * 100:6.0f} %" for name, us in shares.items()]
    theirs = found.get(What(STEP, other))
    if theirs:
        most = value_text(theirs["us"] / without)
        lines.append(f"with communication and norms that take no time it would be {most} × {other}")
    return [f"a step by {step['way']}:", *lines]


def arguments() -> argparse.Namespace:
    """Read the command line; what is not given depends on the device."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="without it, GPUs where every rank has one")
    parser.add_argument("--batches", type=whole_numbers, default=(1, 2, 4, 8, 16, 32, 64, 128, 256))
    parser.add_argument("--context", type=int, help="tokens of each request")
    for name in SHAPES["cpu"]:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--dtype", type=torch_name, choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--algorithms", help="of the fused call, besides the plan's choice; default: all")
    parser.add_argument("--norm", choices=["triton", "torch"], default="triton", help="behind others' all-reduces")
    parser.add_argument("--time", type=float, default=6.0, help="seconds for a batch")
    parser.add_argument("--blocks", type=int, default=25, help="of each line, at most")
    return parser.parse_args()


def completed(options: argparse.Namespace, comm: Communicator) -> argparse.Namespace:
    """Fill in what depends on the device."""
    device = comm.device.type
    for name, value in {**SHAPES[device], **DEFAULTS[device]}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.algorithms = options.algorithms.split(",") if options.algorithms else algorithms_of(comm)
    return options


def main() -> int:
    """Measure every batch, print it, and write the figures after each."""
    options = arguments()
    with joined(options.device) as comm:
        completed(options, comm)
        gpu = comm.device.type == "cuda"
        protocol = Protocol(blocks=(5, options.blocks), budget_s=options.time, graph=gpu)
        shape = {name: getattr(options, name) for name in (*SHAPES["cpu"], "dtype", "context")}
        rows: list[dict[str, Any]] = []
        say = print if comm.rank == 0 else lambda *_, **__: None
        stream = separate_stream(comm.device) if gpu else nullcontext()
        with stream, Ways(comm, options.algorithms, options.norm) as ways:
            say(f"# norms behind all-reduces: {ways.norm}", flush=True)
            decode = Decode(comm, options, ways)
            for batch in options.batches:
                of_batch = measure(decode, ways, batch, protocol)
                say(page(of_batch), flush=True)
                rows += of_batch
                facts = {"shape": shape, "norm": ways.norm, "missing": ways.missing, "wrong": ways.wrong}
                document = head("tp_decode", comm.size, comm.backend, launched=True)
                write(options.output if comm.rank == 0 else None, {**document, **facts, "rows": rows})
            say(ways.said(), flush=True)
    return int(bool(ways.wrong))


if __name__ == "__main__":
    sys.exit(main())
