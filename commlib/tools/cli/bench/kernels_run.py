"""From the options of `commlib bench KERNEL` to its cases, and the run; faults are raised before it measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import click
import torch

from commlib.tools.baselines.kernels import KERNELS, attention, radix
from commlib.tools.baselines.kernels.case import Case, type_name
from commlib.tools.baselines.kernels.measure import measure_case
from commlib.tools.bench.kernels import KernelReport, KernelView
from commlib.tools.cli.options import check_files, python_file, read_dtypes
from commlib.tools.report.run import Output, until_it_ends

Options = Mapping[str, Any]


def main(name: str, options: Options, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    on_gpu = torch.cuda.is_available() and name != "radix"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if not on_gpu:
        torch.set_num_threads(1)  # as ours has: several stall where cores are few
    check_files(options["output"], None)
    cases = read_cases(name, device.type, options)
    files = {path.stem: python_file(path, "candidates").candidates for path in options.get("peer", ())}
    report = KernelReport(cases, device, options["seconds"], command)
    output = Output(KernelView, "json" if options["as_json"] else "table", options["output"])

    def measure() -> None:
        output.open(report, len(cases))
        for done, each in enumerate(cases):
            output.show(done, str(each))
            output.rows(report.add(each, *measure_case(each, device, files, options["seconds"] / len(cases))))

    code = until_it_ends(measure, output.finish)
    return code or int(report.failed)


def read_cases(name: str, device: str, options: Options) -> list[Case]:
    if name == "radix":
        return list(radix.cases(options["leaves"]))
    dtypes = _dtypes(name, options["dtype"])
    if name == "attention":
        return list(_attention(device, dtypes, options))
    kernel, sweeps = KERNELS[name], options["sweep"]
    kind = getattr(import_module(f"commlib.tools.baselines.kernels.{name}"), kernel.case)
    dims = options["dims"] or (kernel.sweep_dims if sweeps else kernel.dims)
    rows = options["rows"] or (kernel.sweep_rows if sweeps else kernel.rows)
    heats = ((False, True) if sweeps else (False,)) if options["hot"] is None else (options["hot"],)
    every = itertools.product(dtypes, dims, heats, rows)
    same = {"pattern": options["pattern"], "variant": options.get("variant") or ""}
    return [kind(n, dim, dtype, hot=hot, **same) for dtype, dim, hot, n in every]


def _dtypes(name: str, text: str | None) -> tuple[torch.dtype, ...]:
    known = KERNELS[name].dtypes
    dtypes = read_dtypes(known[0] if text is None else text)
    for other in map(type_name, dtypes):
        if other not in known:
            raise click.UsageError(f"{name} is measured for {', '.join(known)}, not {other}")
    return dtypes


def _attention(device: str, dtypes: Sequence[torch.dtype], options: Options) -> Iterator[Case]:
    default = attention.HEADS[device]
    heads, kv_heads = options["heads"] or default[0], options["kv_heads"] or default[1]
    if heads % kv_heads:
        raise click.UsageError(f"--heads {heads} is no multiple of --kv-heads {kv_heads}")
    same = {"heads": heads, "kv_heads": kv_heads, "ragged": options["ragged"]}
    same["variant"] = "decode" + " fp8" * options["fp8"]
    for dtype, (n, length, page) in itertools.product(dtypes, _problems(device, options)):
        yield attention.Attention(n, options["dim"], dtype, length=length, page_size=page, **same)


def _problems(device: str, options: Options) -> Iterator[tuple[int, int, int]]:
    """Yield requests, tokens, and the size of a page."""
    batches, lengths, pages = (options[name] for name in ("batch", "length", "page_size"))
    n, length = attention.DEFAULT[device]
    sizes = (attention.SWEEPS if options["sweep"] else attention.SIZES)[device]
    if batches or lengths:
        sizes = tuple(itertools.product(batches or (n,), lengths or (length,)))
    yield from ((*size, page) for size, page in itertools.product(sizes, pages or (attention.PAGE,)))
