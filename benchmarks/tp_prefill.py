"""Time a layer of prompts between two attentions: calls after the products, and next to them, in chunks of tokens.

    export COMMLIB_MAX_BYTES=1G                                                # tokens lie there twice, for engines
    commlib run -n 2 python benchmarks/tp_prefill.py -o tp_prefill.json        # on GPUs: a layer of Llama 2 70B
    commlib run -n 2 python benchmarks/tp_prefill.py --tokens 64,256           # without GPUs: a small one

`fused` is commlib's all-reduce with residual and norm in one call; `scattered` the sequence-parallel form; both make
their calls after the products, on all multiprocessors. `4 × 8` has four chunks, whose calls take 8 multiprocessors at
most; the rows of `1:2:1 × engines` copy engines move, in a long chunk between two of half its length. `none` makes no
calls, and `none 4` makes none in four chunks, whose products are smaller. All take turns, eagerly or, with --graph, in
CUDA graphs. `hidden` is the share of what the calls cost the faster of the first two that a way saves, with its 95 %
interval. First all values are compared. In the end `tune_pipeline` measures a rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import numpy
import torch
from torch import Tensor
from tp_decode import DEFAULTS, FAR, SHAPES, DeviceWeights, config_of
from written import command_line, figures, head, joined, whole_numbers, write

from commlib.communicator import Communicator
from commlib.redops import torch_name
from commlib.tools.timing import Measurement, Protocol, measure_calls, separate_stream
from commlib.tools.tune.pipeline import CHUNKS, tune_pipeline
from commlib.tp import Pipeline
from commlib.tp.norm import FusedResidualNorm
from commlib.tp.pipeline import WAITS_SMS, Chunks
from commlib.tp.shard import shard
from examples.llama import Llama  # tp_decode has added the root of the checkout to the path

FUSED, SCATTERED, NONE, ENGINES = "fused", "scattered", "none", "engines"
RESAMPLES = 1000


class Made:
    """Stands in for the work of a call that was never made."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def result(self) -> Tensor:
        """Return what there is."""
        return self.value

    def wait(self) -> None:
        """Wait for nothing."""


class Silent:
    """Stands in for the communicator of a model's norms and chunks: every rank keeps what it has."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.size, self.device = comm.rank, comm.size, comm.device

    def reduce_scatter_tensor(self, out: Tensor, x: Tensor, *sizes: object, async_op: bool = False, **_: int) -> Any:
        """Return this rank's rows of x."""
        part = shard(len(x), self.rank, self.size)
        rows = x[part.start : part.start + part.length]
        return Made(rows) if async_op else rows

    def all_gather_into_tensor(self, out: Tensor, x: Tensor, *sizes: object, async_op: bool = False, **_: int) -> Any:
        """Return `out` as it is."""
        return Made(out) if async_op else out

    reduce_scatterv, all_gatherv = reduce_scatter_tensor, all_gather_into_tensor


class Prefill:
    """A model of one layer whose calls are made in any way."""

    def __init__(self, comm: Communicator, options: argparse.Namespace) -> None:
        self.comm, self.dtype = comm, getattr(torch, options.dtype)
        self.pipeline = Pipeline(comm, engines=True)
        most = {"max_tokens": max(options.tokens), "pipeline": self.pipeline}
        self.model = Llama(comm, config_of(options), dtype=self.dtype, **most)
        self.model.load(DeviceWeights(comm.device))
        self._norms = [module for module in self.model.modules() if isinstance(module, FusedResidualNorm)]
        plain = {FUSED: (comm, False), SCATTERED: (comm, True), NONE: (Silent(comm), True)}
        self.chunks: dict[str, tuple[Any, ...]] = {
            f"{name_of(chunks)} × {sms}": (chunks, sms) for sms, chunks in product(options.sms, options.chunks)
        }
        self.chunks |= {f"{name_of(chunks)} × {ENGINES}": (chunks, WAITS_SMS, True) for chunks in options.chunks}
        self.enters = {label: partial(self._use, *how) for label, how in plain.items()}
        self.enters |= {label: partial(self._use, comm, False, *how) for label, how in self.chunks.items()}
        silent = {f"{NONE} {name_of(chunks)}": (chunks, 0) for chunks in options.chunks}
        self.enters |= {label: partial(self._use, Silent(comm), False, *how) for label, how in silent.items()}
        self.chunks |= silent

    def _use(self, comm: Any, scattered: bool, chunks: Chunks = 1, sms: int = 0, engines: bool = False) -> None:
        self.pipeline.comm, self.pipeline.engines = comm, engines
        for norm in self._norms:
            norm.comm, norm.sequence_parallel = comm, scattered
        self.pipeline.rule, self.pipeline.max_sms = {0: chunks}, sms

    def apart(self, label: str, tokens: int) -> float:
        """Return how far the rows of a way are from those of the fused call, on the worst rank."""
        run, found = self.model.between(tokens), []
        for way in (FUSED, label):
            self.enters[way]()
            run()
            found.append(self.model.buffer[:tokens].double())
        own = float((found[1] - found[0]).norm() / found[0].norm())
        return max(self.comm.all_gather_object(own))

    def measure(self, tokens: int, protocol: Protocol) -> list[Measurement]:
        """Time all ways."""
        run = self.model.between(tokens)
        calls = {label: [run] for label in self.enters if self._has(label, tokens)}
        enters: Any = {label: self.enters[label] for label in calls}
        found = measure_calls(self.comm, calls, protocol, f"{tokens} tokens", enters)
        return [result for result in found if not result.skipped]

    def _has(self, label: str, tokens: int) -> bool:
        self.enters[label]()
        return label not in self.chunks or len(self.pipeline.cuts(tokens)) == count_of(self.chunks[label][0])

    def tune(
        self, tokens: Sequence[int], how: int | str, chunks: Sequence[Chunks], seconds: float
    ) -> dict[int, Chunks]:
        """Measure a rule next to the fused call, of calls on so many multiprocessors or of engines."""
        engines = how == ENGINES
        self._use(self.comm, False, sms=WAITS_SMS if engines else int(how), engines=engines)
        return tune_pipeline(self.pipeline, self.model.between, tokens, chunks, seconds)


def chunks_of(text: str) -> tuple[Chunks, ...]:
    """Read an option that is a list of numbers of chunks, or of their shares: 2,1:2:1,4."""
    return tuple(tuple(map(int, word.split(":"))) if ":" in word else int(word) for word in text.split(","))


def name_of(chunks: Chunks) -> str:
    """Return what chunks_of reads."""
    return str(chunks) if isinstance(chunks, int) else ":".join(map(str, chunks))


def count_of(chunks: Chunks) -> int:
    """Return how many there are."""
    return chunks if isinstance(chunks, int) else len(chunks)


def hidden(way: Measurement, after: Measurement, none: Measurement, seed: int = 0) -> dict[str, float]:
    """Return the share of the calls' cost that a way saves, with the interval that drawing the blocks anew gives."""
    generator = numpy.random.default_rng(seed)
    drawn = [generator.choice(each.times_s, (RESAMPLES, len(each.times_s))) for each in (way, after, none)]
    mine, most, least = (numpy.median(times, axis=1) for times in drawn)
    low, high = numpy.quantile((most - mine) / (most - least), [0.025, 0.975])
    share = (after.median_s - way.median_s) / (after.median_s - none.median_s)
    return {"share": round(share, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def rows_of(tokens: int, found: list[Measurement]) -> list[dict[str, Any]]:
    """Return the figures of each way."""
    by_label = {result.label: result for result in found}
    after = min((by_label[label] for label in (FUSED, SCATTERED)), key=lambda result: result.median_s)
    return [
        {"tokens": tokens, "way": result.label, **figures(result)}
        | {"faster": round(after.median_s / result.median_s, 4), "hidden": hidden(result, after, by_label[NONE])}
        for result in found
    ]


def page(rows: list[dict[str, Any]]) -> str:
    """Return one number of tokens as text."""
    lines = ["", f"{rows[0]['tokens']} tokens", f"{'way':16}{'µs':>10}{'×':>8}  hidden %"]
    for row in rows:
        share, low, high = (f"{row['hidden'][name] * 100:.0f}" for name in ("share", "low", "high"))
        lines.append(f"{row['way']:16}{row['us']:10.1f}{row['faster']:8.3f}  {share} ({low}–{high})")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line; what is not given depends on the device."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="without it, GPUs where every rank has one")
    parser.add_argument("--tokens", type=whole_numbers, default=(512, 1024, 2048, 4096, 8192, 16384))
    parser.add_argument("--sms", type=whole_numbers, default=(8, 16, 32), help="multiprocessors of the calls; 0: all")
    parser.add_argument("--chunks", type=chunks_of, default=CHUNKS, help="how many, or their shares: 2,1:2:1,4,8")
    parser.add_argument("--graph", action="store_true", help="in CUDA graphs")
    for name in SHAPES["cpu"]:
        if name != "layers":
            parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--dtype", type=torch_name, choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--time", type=float, default=4.0, help="seconds for a number of tokens")
    parser.add_argument("--blocks", type=int, default=25, help="of each line, at most")
    return parser.parse_args()


def main() -> int:
    """Compare and measure every number of tokens, print it, and write the figures after each."""
    options = arguments()
    with joined(options.device) as comm, torch.no_grad():
        device = comm.device.type
        for name, value in {**SHAPES[device], **DEFAULTS[device], "layers": 1, "vocab": 2048}.items():
            if getattr(options, name, None) is None:
                setattr(options, name, value)
        say = print if comm.rank == 0 else lambda *_, **__: None
        protocol = Protocol(blocks=(5, options.blocks), budget_s=options.time, graph=options.graph)
        shape = {name: getattr(options, name) for name in (*SHAPES["cpu"], "dtype")}
        rows: list[dict[str, Any]] = []
        wrong: dict[str, float] = {}
        with separate_stream(comm.device) if device == "cuda" else nullcontext():
            prefill = Prefill(comm, options)
            facts: dict[str, Any] = {"shape": shape, "wrong": wrong, "rules": {}}
            document = head("tp_prefill", comm.size, comm.backend, launched=True)
            for tokens in options.tokens:
                apart = {label: prefill.apart(label, tokens) for label in prefill.enters if not label.startswith(NONE)}
                wrong |= {f"{label}, {tokens}": off for label, off in apart.items() if not off <= FAR[prefill.dtype]}
                found = rows_of(tokens, prefill.measure(tokens, protocol))
                say(page(found), flush=True)
                rows += found
                write(options.output if comm.rank == 0 else None, {**document, **facts, "rows": rows})
            for how in (*options.sms, ENGINES):
                facts["rules"][how] = prefill.tune(options.tokens, how, options.chunks, options.time / 4)
                say(f"rule of {how}{'' if how == ENGINES else ' multiprocessors'}: {facts['rules'][how]}", flush=True)
            write(options.output if comm.rank == 0 else None, {**document, **facts, "rows": rows})
        say("\n".join(f"# WRONG: {label}: {off:.2g} of its size away" for label, off in wrong.items()), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
