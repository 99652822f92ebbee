"""From the options of `commlib bench KERNEL` to its cases, and the run; faults are raised before it measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import click
import torch

from commlib.tools.baselines.kernels import KERNELS, attention, radix
from commlib.tools.baselines.kernels.case import Case, type_name
from commlib.tools.baselines.kernels.measure import Settings, measure_case
from commlib.tools.bench.kernels import KernelReport, KernelView
from commlib.tools.cli.options import check_files, python_file, read_dtypes
from commlib.tools.report.run import Output, until_it_ends

Options = Mapping[str, Any]


def main(name: str, options: Options, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    device = read_device(options.get("device", "cpu"))
    check_files(options["output"], None)
    cases = read_cases(name, device.type, options)
    files = {path.stem: python_file(path, "candidates").candidates for path in options.get("peer", ())}
    compiles = options.get("compile_")
    not_compiled = "not asked for" if device.type == "cuda" else "takes long on the CPU; --compile"
    others = options.get("compare") is not False or options["phase"] == "prefill"
    not_compiled = "" if compiles or (compiles is None and device.type == "cuda") else not_compiled
    settings = Settings(device, options["seed"], others, not_compiled, files)
    report = KernelReport(cases, settings, options["seconds"], command)
    output = Output(KernelView, "json" if options["as_json"] else "table", options["output"])
    if settings.on_gpu:
        torch.cuda.set_device(device)
    with one_thread(not settings.on_gpu):
        code = until_it_ends(partial(_measure, cases, settings, report, output), output.finish)
    return code or int(report.failed)


def _measure(cases: Sequence[Case], settings: Settings, report: KernelReport, output: Output) -> None:
    output.open(report, len(cases))
    for done, each in enumerate(cases):
        output.show(done, str(each))
        output.rows(report.add(each, *measure_case(each, settings, report.config.seconds / len(cases))))


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread, as ours does: several stall where cores are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read_device(text: str) -> torch.device:
    """Return the device of a name; auto is the current GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    try:
        device = torch.device(("cuda" if has_gpu else "cpu") if text == "auto" else text)
    except RuntimeError:
        raise click.UsageError(f"--device {text!r} is none; write auto, cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise click.UsageError(f"--device {text} is not supported; write cpu or cuda")
    if device.type == "cuda" and not has_gpu:
        raise click.UsageError(f"--device {text}: torch finds no GPU here")
    here = device.type == "cuda" and device.index is None
    return torch.device("cuda", torch.cuda.current_device()) if here else device


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
    phase, default = options["phase"], attention.HEADS[device]
    heads, kv_heads = options["heads"] or default[0], options["kv_heads"] or default[1]
    if phase == "prefill" and (options["fp8"] or options["ragged"]):
        raise click.UsageError("--fp8 and --ragged are of decoding; leave them out, or --phase prefill")
    if heads % kv_heads:
        raise click.UsageError(f"--heads {heads} is no multiple of --kv-heads {kv_heads}")
    shape = {"heads": heads, "kv_heads": kv_heads, "ragged": options["ragged"]}
    for dtype, (n, length, page, fp8) in itertools.product(dtypes, _problems(device, phase, options)):
        sizes = {"length": length, "page_size": page, "variant": phase + " fp8" * fp8}
        yield attention.Attention(n, options["dim"], dtype, **sizes, **shape)


def _problems(device: str, phase: str, options: Options) -> list[tuple[int, int, int, bool]]:
    """Return requests, tokens, the size of a page, and whether the cache has 8-bit floats."""
    batches, lengths, pages, sweeps = (options[name] for name in ("batch", "length", "page_size", "sweep"))
    n, length = attention.SWEPT_AT[device]
    sizes = (attention.SWEEPS if sweeps else attention.SIZES)[device, phase]
    if batches or lengths:
        sizes = tuple(itertools.product(batches or (n,), lengths or (length,)))
    fp8, every = options["fp8"], itertools.product(sizes, pages or (attention.PAGE,))
    problems = [(*size, page, fp8) for size, page in every]
    if sweeps and phase == "decode" and not (batches or lengths or pages):
        problems += [(n, length, page, fp8) for page in attention.SWEPT_PAGES]
        problems += [(n, length, attention.PAGE, not fp8)]
    return problems
