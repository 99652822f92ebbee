"""`commlib bench index`, `store`, `metadata`, `attention` and `radix`: a kernel next to other libraries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from commlib.tools.cli.options import EXISTING, FILE, Numbers, Seconds, check_files, python_file, read_dtypes
from commlib.tools.cli.run import command_line

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.case import Case

Sizes = tuple[int, ...]
PATTERNS = ("sequential", "random")  # of ids and slots
SECONDS, SWEEP_SECONDS = 10.0, 60.0
HEADS, TOKENS = click.IntRange(1, 1024), 1 << 24
TIME = "How long to measure: 5, 5s, 2m.  [default: 10s; with --sweep 1m]"


@dataclass(frozen=True)
class Kernel:
    """A row of the table: what its command needs before torch is loaded; --sweep has its own sizes."""

    help: str
    dims: Sizes = ()
    rows: Sizes = ()
    sweep_dims: Sizes = ()
    sweep_rows: Sizes = ()
    dtype: str = "bfloat16"
    variant: tuple[str, str] = ("", "")  # an option that changes the call, and its help
    patterns: bool = True  # it takes ids in an order


KERNELS = {
    "index": Kernel(
        "Row gather: n rows of a table; --masked: of a quarter of the vocabulary.",
        dims=(4096, 8192),
        rows=(1, 64, 1024, 16384),
        sweep_dims=(4096, 7168, 8192),
        sweep_rows=(1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384),
        variant=("masked", "Ids of a whole vocabulary, a quarter of them in the shard here."),
    ),
    "metadata": Kernel(
        "Lengths and positions of n requests, as attention needs them.",
        dims=(8,),
        rows=(1, 16, 64, 512),
        sweep_dims=(8,),
        sweep_rows=(1, 4, 16, 64, 128, 512),
        dtype="int32",
        patterns=False,
    ),
    "store": Kernel(
        "K and V of n tokens into their slots; --fp8 quantises on the way.",
        dims=(128, 1024),
        rows=(1, 64, 512, 4096, 32768),
        sweep_dims=(128, 256, 512, 1024),
        sweep_rows=(1, 16, 64, 256, 512, 1024, 4096, 16384, 32768),
        variant=("fp8", "Caches of float8_e4m3fn, with scales."),
    ),
    "attention": Kernel("Attention of single queries over a paged cache, next to a ceiling."),
    "radix": Kernel("RadixCache and prefix_match from Python on the CPU."),
}


def _rows(name: str) -> list[click.Parameter]:
    """Return the options of a kernel of rows."""
    kernel = KERNELS[name]
    variant, text = kernel.variant
    return [
        click.Option(["--dims", "--dim"], type=Numbers(), help="Elements per row; of metadata new tokens per request."),
        click.Option(["--rows"], type=Numbers(), help="Number of ids, tokens or requests."),
        click.Option(
            ["--pattern"],
            type=click.Choice(PATTERNS),
            default="random",
            hidden=not kernel.patterns,
            help="Order of ids or slots.",
        ),
        click.Option(["--hot/--cold"], default=None, help="One set of tensors, or sets that exceed the cache."),
        *([click.Option([f"--{variant}", "variant"], flag_value=variant, help=text)] * bool(variant)),
        *MEASURED,
    ]


WRITTEN: list[click.Parameter] = [
    click.Option(["-o", "--output"], type=FILE, help="Also write to FILE: JSON, or .csv, .md by its suffix."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print JSON in place of the table."),
]
MEASURED: list[click.Parameter] = [
    click.Option(["-d", "--dtype"], help="Element types a,b (bf16, half … too)."),
    click.Option(["--sweep"], is_flag=True, help="Measure many sizes."),
    click.Option(["--peer"], type=EXISTING, multiple=True, help="File with candidates(kernel, case, inputs)."),
    click.Option(["--time", "seconds"], type=Seconds(), help=TIME),
    *WRITTEN,
]
ATTENTION: list[click.Parameter] = [
    click.Option(["--batch"], type=Numbers(TOKENS), help="Number of requests."),
    click.Option(["--length"], type=Numbers(TOKENS), help="Tokens of each request."),
    click.Option(["--heads"], type=HEADS, help="Heads of queries.  [default: 64; on a CPU 8]"),
    click.Option(["--kv-heads"], type=HEADS, help="Heads of K and V.  [default: 8; on a CPU 1]"),
    click.Option(["--dim"], type=click.IntRange(1, 256), default=128, help="Features of a head."),
    click.Option(["--page-size"], type=Numbers(TOKENS), help="Tokens of a page of the cache.  [default: 16]"),
    click.Option(["--fp8"], is_flag=True, help="Cache of float8_e4m3fn, with scales."),
    *MEASURED,
]
RADIX: list[click.Parameter] = [
    click.Option(["--leaves"], type=click.IntRange(200), default=100_000, help="Leaves of the evicting tree."),
    click.Option(["--time", "seconds"], type=Seconds(), default=SECONDS, help="How long to measure."),
    *WRITTEN,
]


def _run(name: str, **options: Any) -> None:
    """Measure until the end, an error or Ctrl-C, and report what was measured."""
    import torch

    from commlib.tools.baselines.kernels.measure import measure_case
    from commlib.tools.bench.kernels import KernelReport, KernelView
    from commlib.tools.report.run import Output, until_it_ends

    context = click.get_current_context()
    seconds = options["seconds"] or (SWEEP_SECONDS if options["sweep"] else SECONDS)
    on_gpu = torch.cuda.is_available() and name != "radix"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if not on_gpu:
        torch.set_num_threads(1)  # as ours has: several stall where cores are few
    check_files(options["output"], None)
    cases = _cases(name, device.type, options)
    files = {path.stem: python_file(path, "candidates").candidates for path in options.get("peer", ())}
    report = KernelReport(cases, device, seconds, command_line(context))
    output = Output(KernelView, "json" if options["as_json"] else "table", options["output"])

    def measure() -> None:
        output.open(report, len(cases))
        for done, each in enumerate(cases):
            output.show(done, str(each))
            output.rows(report.add(each, *measure_case(each, device, files, seconds / len(cases))))

    code = until_it_ends(measure, output.finish)
    context.exit(code or int(report.failed))


def _cases(name: str, device: str, options: Mapping[str, Any]) -> list[Case]:
    module = import_module(f"commlib.tools.baselines.kernels.{name}")
    if name == "radix":
        return list(module.cases(options["leaves"]))
    kernel, sweeps = KERNELS[name], options["sweep"]
    dtypes = read_dtypes(options["dtype"] or kernel.dtype)
    if name == "attention":
        return [module.Attention(dtype=dtype, **of) for dtype in dtypes for of in _attention(module, device, options)]
    dims = options["dims"] or (kernel.sweep_dims if sweeps else kernel.dims)
    rows = options["rows"] or (kernel.sweep_rows if sweeps else kernel.rows)
    heats = ((False, True) if sweeps else (False,)) if options["hot"] is None else (options["hot"],)
    same = {"pattern": options["pattern"], "variant": options.get("variant") or ""}
    every = itertools.product(dtypes, dims, heats, rows)
    return [getattr(module, name.capitalize())(n, dim, dtype, hot=hot, **same) for dtype, dim, hot, n in every]


def _attention(module: Any, device: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a case has: requests, their tokens, the size of a page, and heads."""
    of_queries, of_keys = module.HEADS[device]
    heads, kv_heads = options["heads"] or of_queries, options["kv_heads"] or of_keys
    if heads % kv_heads:
        raise click.UsageError(f"--heads {heads} is no multiple of --kv-heads {kv_heads}")
    n, length = module.DEFAULT[device]
    sizes = (module.SWEEPS if options["sweep"] else module.SIZES)[device]
    if options["batch"] or options["length"]:
        sizes = tuple(itertools.product(options["batch"] or (n,), options["length"] or (length,)))
    same = {"dim": options["dim"], "heads": heads, "kv_heads": kv_heads, "variant": "decode" + " fp8" * options["fp8"]}
    for (n, length), page in itertools.product(sizes, options["page_size"] or (module.PAGE,)):
        yield {"n": n, "length": length, "page_size": page, **same}


def _command(name: str, params: Sequence[click.Parameter]) -> click.Command:
    text = f"Time a kernel. {KERNELS[name].help}"
    return click.Command(name, callback=partial(_run, name), params=list(params), help=text)


index, metadata, store = (_command(name, _rows(name)) for name in ("index", "metadata", "store"))
attention, radix = _command("attention", ATTENTION), _command("radix", RADIX)
