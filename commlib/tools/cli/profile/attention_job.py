"""From the options of `commlib profile attention` to a job, and what is measured without them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import torch

from commlib.tools.baselines.kernels.attention import COMPARE, TUNE, AttentionCase
from commlib.tools.baselines.kernels.compiled import Compiler
from commlib.tools.baselines.kernels.measure import Settings
from commlib.tools.cli.options import check_files, read_dtypes
from commlib.tools.cli.profile.job import numbers, read_device

DTYPES = ("bfloat16", "float16", "float32")
MOST = 1 << 24
# (requests, tokens) that --sweep measures, and without it; the CPU has less.
SIZES = {
    ("cuda", "decode"): [(1, 4096), (64, 4096), (16, 16384)],
    ("cuda", "prefill"): [(1, 4096)],
    ("cpu", "decode"): [(1, 512), (4, 512)],
    ("cpu", "prefill"): [(1, 256)],
}
SWEEPS = {
    ("cuda", "decode"): [
        *((1, 1024), (1, 8192), (1, 65536), (8, 8192), (16, 16384), (32, 8192), (64, 1024), (64, 4096)),
        *((128, 4096), (256, 1024), (256, 4096)),
    ],
    ("cuda", "prefill"): [(1, 1024), (1, 4096), (1, 16384), (4, 4096), (16, 1024)],
    ("cpu", "decode"): [(1, 128), (1, 2048), (4, 512), (16, 512)],
    ("cpu", "prefill"): [(1, 64), (1, 512), (4, 128)],
}
SWEPT_AT = {"cuda": (64, 4096), "cpu": (4, 512)}  # where --sweep of decoding measures other pages and an 8-bit cache
PAGE, PAGES = 16, (1, 64)
HEADS = {"cuda": (64, 8), "cpu": (8, 1)}  # of queries, of K and V


@dataclass(frozen=True)
class AttentionJob:
    """What was asked for."""

    cases: tuple[AttentionCase, ...]
    settings: Settings
    seconds: float

    def config(self) -> dict[str, Any]:
        """Return what the document says of it."""
        case = self.cases[0]
        return {
            "phase": case.phase,
            "beside": case.beside,
            "device": self.settings.device.type,
            "threads": torch.get_num_threads(),
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "dim": case.dim,
            "ragged": case.ragged,
            "cases": len(self.cases),
            "seconds": self.seconds,
            "seed": self.settings.seed,
        }


def read_job(options: dict[str, Any]) -> AttentionJob:
    """Turn options into a job, or raise what is wrong with them."""
    device = read_device(options["device"])
    check_files(options["output"], None, "--json")
    phase, fp8 = options["phase"], options["fp8"]
    if phase == "prefill" and (fp8 or options["ragged"] or options["tune"]):
        raise click.UsageError("--fp8, --ragged and --tune are of decoding; leave them out, or --phase prefill")
    if options["compare"] and options["tune"]:
        raise click.UsageError("--tune measures ours alone; leave out --compare")
    compiles = device.type == "cuda" if options["compile_"] is None else options["compile_"]
    off = "" if compiles else "not asked for" if device.type == "cuda" else "takes long on the CPU; --compile"
    settings = Settings(device, options["seed"], compiler=Compiler(off))
    return AttentionJob(tuple(_cases(device.type, options)), settings, options["seconds"])


def _cases(device: str, options: dict[str, Any]) -> Iterator[AttentionCase]:
    phase, default = options["phase"], HEADS[device]
    heads, kv_heads = options["heads"] or default[0], options["kv_heads"] or default[1]
    if heads % kv_heads:
        raise click.UsageError(f"--heads {heads} is no multiple of --kv-heads {kv_heads}")
    for dtype in _dtypes(options["dtype"]):
        for (batch, length), page, fp8 in _problems(device, phase, options):
            yield AttentionCase(
                *("attention", batch, options["dim"], dtype, "random", f"{phase} fp8" if fp8 else phase, False),
                *(length, heads, kv_heads, page, options["ragged"]),
                COMPARE if options["compare"] else TUNE if options["tune"] else "",
            )


def _problems(device: str, phase: str, options: dict[str, Any]) -> Iterator[tuple[tuple[int, int], int, bool]]:
    """Yield (requests, tokens), the size of a page, and whether the cache has 8-bit floats."""
    batches, lengths = numbers("--batch", options["batch"]), numbers("--length", options["length"])
    pages = numbers("--page-size", options["page_size"]) or (PAGE,)
    for option, found in (("--batch", batches), ("--length", lengths), ("--page-size", pages)):
        if max(found, default=0) > MOST:
            raise click.UsageError(f"{option} has {max(found)}, but {MOST} is the most")
    sizes = (SWEEPS if options["sweep"] else SIZES)[device, phase]
    if batches or lengths:
        sizes = list(itertools.product(batches or (SWEPT_AT[device][0],), lengths or (SWEPT_AT[device][1],)))
    for size, page in itertools.product(sizes, pages):
        yield size, page, options["fp8"]
    if options["sweep"] and phase == "decode" and not (batches or lengths or options["page_size"]):
        at = SWEPT_AT[device]
        yield from ((at, page, options["fp8"]) for page in PAGES)
        yield at, PAGE, not options["fp8"]


def _dtypes(text: str | None) -> Sequence[torch.dtype]:
    found = read_dtypes("bfloat16" if text is None else text)
    for name in (str(dtype).removeprefix("torch.") for dtype in found):
        if name not in DTYPES:
            raise click.UsageError(f"attention is profiled for {', '.join(DTYPES)}, not {name}")
    return found
