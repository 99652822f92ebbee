"""From the options of `commlib bench KERNEL` to its cases, and the run; faults are raised before it measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import torch

from commlib.errors import Unsupported
from commlib.tools.baselines.kernels import BASELINES, FLOATS, KERNELS, attention, case, load, radix
from commlib.tools.baselines.kernels.attention import Attention
from commlib.tools.baselines.kernels.case import OURS, Case
from commlib.tools.baselines.kernels.file import File
from commlib.tools.baselines.kernels.measure import Settings, measure_case
from commlib.tools.bench.kernels import KernelConfig, KernelReport
from commlib.tools.cli.bench.kernels_view import KernelView
from commlib.tools.cli.options import check_files, python_file, read_dtypes
from commlib.tools.report import nsight
from commlib.tools.report.run import Output, until_it_ends

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    cases: Sequence[Case]  # of one kernel
    settings: Settings
    config: KernelConfig


def read_job(name: str, options: Options) -> Job:
    """Turn options into a job, or raise what is wrong with them."""
    device = read_device(options.get("device", "cpu"))
    check_files(options["output"], options.get("plot"))
    if options.get("flush") and device.type != "cuda":
        raise click.UsageError("--flush is of graphs, which need a GPU; leave it out")
    cases = {"attention": _attention, "radix": _radix}.get(name, partial(_rows, name))(device.type, options)
    off = {"torch": (_no_compiling(device, options.get("compile_")),)}
    baselines = [load(place)(*off.get(baseline, ())) for baseline, place in BASELINES.items()]
    baselines = [baseline for baseline in baselines if hasattr(baseline, cases[0].method)]
    if name == "attention" and options["phase"] == "decode" and not options["compare"]:
        baselines = []
    baselines += [File(path.stem, python_file(path, "candidates").candidates) for path in options.get("peer", ())]
    settings = Settings(device, options["seed"], bool(options.get("flush")), baselines)
    config = KernelConfig(
        kernel=name,
        variant=cases[0].variant if name != "radix" else "",
        device=device.type,  # type: ignore[arg-type]
        threads=1 if device.type == "cpu" else torch.get_num_threads(),
        cases=len(cases),
        seconds=options["seconds"],
        seed=settings.seed,
        flush=settings.flush,
        cold_bytes=case.cold_bytes(device),
        max_sets=case.SETS[1],
        baselines=[baseline.name for baseline in baselines],
        compare_patterns=bool(options.get("compare_patterns")),
    )
    return Job(cases, settings, config)


def _no_compiling(device: torch.device, wanted: bool | None) -> str:
    if wanted or (wanted is None and device.type == "cuda"):
        return ""
    return "not asked for" if device.type == "cuda" else "takes long on the CPU; --compile"


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


def _rows(name: str, device: str, options: Options) -> list[Case]:
    kernel, sweeps, kind = KERNELS[name], options["sweep"], load(KERNELS[name].case)
    dims = options["dims"] or (kernel.sweep_dims if sweeps else kernel.dims)
    rows = options["rows"] or (kernel.sweep_rows if sweeps else kernel.rows)
    patterns = kernel.patterns if options["compare_patterns"] else (options["pattern"] or "random",)
    heats = {None: (False, True) if sweeps else (False,), "hot": (True,), "cold": (False,)}[options["heat"]]
    every = itertools.product(_dtypes(name, options["dtype"], kernel.dtypes), dims, heats, patterns, rows)
    return [kind(n, dim, dtype, pattern, options.get("variant") or "", hot) for dtype, dim, hot, pattern, n in every]


def _radix(device: str, options: Options) -> list[Case]:
    return list(radix.cases(options["leaves"]))


def _attention(device: str, options: Options) -> list[Case]:
    phase, default = options["phase"], attention.HEADS[device]
    heads, kv_heads = options["heads"] or default[0], options["kv_heads"] or default[1]
    if phase == "prefill" and (options["fp8"] or options["ragged"]):
        raise click.UsageError("--fp8 and --ragged are of decoding; leave them out, or --phase prefill")
    if heads % kv_heads:
        raise click.UsageError(f"--heads {heads} is no multiple of --kv-heads {kv_heads}")
    shape = {"heads": heads, "kv_heads": kv_heads, "ragged": options["ragged"]}
    every = itertools.product(_dtypes("attention", options["dtype"], FLOATS), _problems(device, phase, options))
    return [
        Attention(n, options["dim"], dtype, "random", phase + " fp8" * fp8, length=length, page_size=page, **shape)
        for dtype, (n, length, page, fp8) in every
    ]


def _problems(device: str, phase: str, options: Options) -> Iterator[tuple[int, int, int, bool]]:
    """Yield requests, tokens, the size of a page, and whether the cache has 8-bit floats."""
    batches, lengths, pages, sweeps = (options[name] for name in ("batch", "length", "page_size", "sweep"))
    n, length = attention.SWEPT_AT[device]
    sizes = (attention.SWEEPS if sweeps else attention.SIZES)[device, phase]
    if batches or lengths:
        sizes = list(itertools.product(batches or (n,), lengths or (length,)))
    for size, page in itertools.product(sizes, pages or (attention.PAGE,)):
        yield *size, page, options["fp8"]
    if sweeps and phase == "decode" and not (batches or lengths or pages):
        yield from ((n, length, page, options["fp8"]) for page in attention.SWEPT_PAGES)
        yield n, length, attention.PAGE, not options["fp8"]


def _dtypes(name: str, text: str | None, known: Sequence[str]) -> tuple[torch.dtype, ...]:
    dtypes = read_dtypes(known[0] if text is None else text)
    for other in map(case.type_name, dtypes):
        if other not in known:
            raise click.UsageError(f"{name} is measured for {', '.join(known)}, not {other}")
    return dtypes


def main(job: Job, options: Options, command_line: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    form = "json" if options["as_json"] else "table"
    output = Output(KernelView, form, options["output"], options.get("plot"))
    report = KernelReport(job.config, command_line)
    if job.settings.on_gpu:
        torch.cuda.set_device(job.settings.device)
    with one_thread(not job.settings.on_gpu):
        code = until_it_ends(partial(_measure, job, report, output), output.finish)
    return code or int(report.failed)


def _measure(job: Job, report: KernelReport, output: Output) -> None:
    lacking = output.lacks()
    output.open(report, len(job.cases))
    for done, each in enumerate(job.cases):
        output.show(done, str(each))
        measured = measure_case(each, job.settings, job.config.seconds / len(job.cases))
        report.notes = [*lacking, *(note for baseline in job.settings.baselines for note in baseline.notes())]
        output.rows(report.add(each, *measured))


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread, as ours does: several stall where cores are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- one call, for Nsight's tools


def command(tool: str, of: Case, typed: Sequence[str]) -> list[str]:
    """Return the exact command for one call of ours of the case, from what was typed to ask for the tool."""
    output = "-".join(filter(None, [of.kernel, *of.variant.split(), str(of.n), str(of.dim)]))
    launched = {"decode": "attend_spans", "prefill": ""}.get(of.method, of.kernel)  # prompts are torch's
    one = [f"--kernel-name=regex:{launched}", "--launch-count=1"] if launched else []
    call = ["--once" if word == f"--{tool}" else word for word in typed]
    return nsight.command(tool, output, ["bench", of.kernel, *call], ["--set=full", *one])


def once(of: Case, device: torch.device) -> int:
    """Make the call of ours a few times; a profiler looks at the last one only."""
    (inputs,) = of.inputs(1, device)
    ours = next(each for each in of.candidates() if each.role == OURS)
    if ours.prepare is None:
        raise Unsupported(ours.skipped)
    on_gpu = device.type == "cuda"
    rest = partial(torch.cuda.synchronize, device) if on_gpu else lambda: None
    nsight.look_at(ours.prepare(inputs), rest, looks=on_gpu)
    return 0
