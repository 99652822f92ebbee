"""Time all_reduce_rms_norm by each algorithm next to all_reduce and a norm, and next to other libraries.

    commlib run -n 2 python benchmarks/norms.py -o norms.json
    commlib run -n 2 python benchmarks/norms.py --tokens 1,16,256 --widths 8192 --quant fp8_token

Every line works in place, as a model does; all take turns, in CUDA graphs on GPUs. `fused` is the plan's choice, and
`× sglang` the faster of SGLang's two lines. First each line's values are compared with what torch makes of all ranks'
rows in float64. torchrun can start it, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from reduce_norm import EPILOGUE, SHOTS, Way, Ways, algorithms_of, fastest
from torch import Tensor
from written import command_line, figures, head, joined, ratio, ratio_text, whole_numbers, write

from commlib.collectives.all_reduce_rms_norm import GROUP, normalised
from commlib.communicator import Communicator
from commlib.redops import torch_name
from commlib.tools.report.formats import size_text
from commlib.tools.timing import Protocol, Run, graph, measure_calls, separate_stream

EPS = 1e-6
SETS = 3  # of tensors, in rotation
BASELINES = ("sglang", "flashinfer_early", "nccl", "gloo", "unfused", "flashinfer")  # the first three are in the table
DTYPES = {"cuda": "bfloat16", "cpu": "float32"}


class Rows(NamedTuple):
    """What a call takes."""

    x: Tensor
    residual: Tensor
    weight: Tensor


def filled(comm: Communicator, rows: Rows, rank: int) -> Rows:
    """Give the tensors the values that a rank has; the residual and the weight are the same on all."""
    own, shared = (torch.Generator(comm.device).manual_seed(seed) for seed in (rank + 1, 0))
    rows.x.normal_(generator=own)
    rows.residual.normal_(generator=shared)
    rows.weight.normal_(1, 0.1, generator=shared)
    return rows


def made(comm: Communicator, way: Way, tokens: int, width: int, dtype: torch.dtype) -> Rows:
    """Allocate and fill what a way takes."""
    x = way.empty(tokens * width, dtype).view(tokens, width)
    plain = partial(torch.empty, dtype=dtype, device=comm.device)
    return filled(comm, Rows(x, plain(tokens, width), plain(width)), comm.rank)


def expected(comm: Communicator, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the norm and the sum with the residual, of every rank's values."""
    plain = partial(torch.empty, dtype=dtype, device=comm.device)
    total = torch.zeros(shape, dtype=torch.float64, device=comm.device)
    for rank in range(comm.size):
        rows = filled(comm, Rows(plain(shape), plain(shape), plain(shape[1])), rank)
        total += rows.x
    h = total.to(dtype) + rows.residual
    return normalised(h.double(), rows.weight, EPS, 0.0, None, False), h


def apart(found: Sequence[Tensor], truth: tuple[Tensor, Tensor]) -> float:
    """Return how far a norm and a sum are from the truth, as a share of their size."""
    y, h, *scales = found
    wide = y.double()
    if scales:
        scale = scales[0].double()
        wide = wide * (scale.repeat_interleave(GROUP, -1) if scale.shape[-1] > 1 else scale)
    pairs = zip((wide, h.double()), (each.double() for each in truth), strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def check(comm: Communicator, way: Way, rows: Rows, truth: tuple[Tensor, Tensor]) -> float:
    """Return how far a call, eager and in a graph, is from the truth."""
    way.enter()
    found = [apart(way.run(*filled(comm, rows, comm.rank), EPS), truth)]
    if comm.device.type == "cuda":
        kept: list[tuple[Tensor, ...]] = []
        replayed = graph.capture([lambda: kept.append(way.run(*rows, EPS))])
        filled(comm, rows, comm.rank)
        replayed.replay()
        found.append(apart(kept[0], truth))
        torch.cuda.synchronize()
        replayed.reset()
    return max(found)


def measure(
    comm: Communicator, ways: Ways, shape: tuple[int, int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Check and time all ways on rows of one shape; return a row for each."""
    dtype, gpu = getattr(torch, options.dtype), comm.device.type == "cuda"
    truth, said = expected(comm, shape, dtype), f"{shape[0]} × {shape[1]}"
    far = 0.04 if options.quant else 4 * torch.finfo(dtype).eps
    calls: dict[str, list[Run]] = {}
    off = {}
    for way in ways.found:
        sets = [made(comm, way, *shape, dtype) for _ in range(SETS)]
        label = f"{way.label} of {said}"
        found = ways.tried(label, partial(check, comm, way, sets[0], truth), far)
        if found is not None:
            off[label] = found
            calls[label] = [partial(way.run, *rows, EPS) for rows in sets]
    enters = {f"{way.label} of {said}": way.enter for way in ways.found}
    protocol = Protocol(blocks=(5, options.blocks), budget_s=options.time, graph=gpu)
    timed = {result.label: result for result in ways.timed(measure_calls(comm, calls, protocol, said, enters))}
    baselines = {name: timed.get(f"{name} of {said}") for name in (f"{comm.backend}_composed", *BASELINES)}
    baselines["sglang"] = fastest(timed.get(f"{name} of {said}") for name in SHOTS)
    return [
        {"tokens": shape[0], "width": shape[1], "bytes": shape[0] * shape[1] * dtype.itemsize}
        | {"way": label.partition(" of ")[0], **figures(result), "apart": off[label]}
        | {"over": {name: ratio(theirs, result) for name, theirs in baselines.items() if theirs is not None}}
        for label, result in timed.items()
    ]


def page(rows: list[dict[str, Any]]) -> str:
    """Return the rows of one shape as text."""
    first = rows[0]
    names = list(first["over"])[:4]
    title = f"{first['tokens']} × {first['width']}, {size_text(first['bytes'])}B"
    lines = ["", f"{title:18}{'µs':>8} " + " ".join(f"{f'× {name}':>16}" for name in names)]
    for row in rows:
        cells = " ".join(f"{ratio_text(row['over'][name]):>16}" for name in names)
        lines.append(f"{row['way']:18}{row['us']:8.2f} {cells}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="without it, GPUs where every rank has one")
    parser.add_argument("--tokens", type=whole_numbers, default=(1, 2, 4, 16, 64, 128, 256, 2048))
    parser.add_argument("--widths", type=whole_numbers, default=(8192, 4096, 5120, 7168))
    parser.add_argument("--dtype", type=torch_name, choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--quant", choices=["fp8", "fp8_token", "fp8_group"], help="commlib's lines alone")
    parser.add_argument("--alone", action="store_true", help="commlib's lines alone")
    parser.add_argument("--algorithms", help="of the fused call, besides the plan's choice; default: all, and epilogue")
    parser.add_argument("--norm", choices=["triton", "torch"], default="triton", help="behind others' all-reduces")
    parser.add_argument("--time", type=float, default=1.0, help="seconds for a shape")
    parser.add_argument("--blocks", type=int, default=25, help="of each line, at most")
    return parser.parse_args()


def main() -> int:
    """Measure every shape, print it, and write the figures after each."""
    options = arguments()
    with joined(options.device) as comm:
        device = comm.device.type
        options.dtype = options.dtype or DTYPES[device]
        every = [*algorithms_of(comm), *([] if options.quant else [EPILOGUE])]
        names = options.algorithms.split(",") if options.algorithms else every
        rows: list[dict[str, Any]] = []
        say = print if comm.rank == 0 else lambda *_, **__: None
        stream = separate_stream(comm.device) if device == "cuda" else nullcontext()
        with stream, Ways(comm, names, options.norm, options.quant, options.alone) as ways:
            say(f"# {options.dtype}, quant {options.quant}; norms behind all-reduces: {ways.norm}", flush=True)
            for width, tokens in product(options.widths, options.tokens):
                of_shape = measure(comm, ways, (tokens, width), options)
                say(page(of_shape), flush=True)
                rows += of_shape
                facts = {"dtype": options.dtype, "quant": options.quant, "norm": ways.norm, "missing": ways.missing}
                document = head("norms", comm.size, comm.backend, launched=True)
                write(
                    options.output if comm.rank == 0 else None, {**document, **facts, "wrong": ways.wrong, "rows": rows}
                )
            say(ways.said(), flush=True)
    return int(bool(ways.wrong))


if __name__ == "__main__":
    sys.exit(main())
