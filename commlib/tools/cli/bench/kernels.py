"""`commlib bench index`, `store`, `metadata`, `attention` and `radix`: a kernel next to other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from commlib.tools.baselines.kernels import KERNELS, PATTERNS
from commlib.tools.cli.options import EXISTING, FILE, Numbers, Seconds
from commlib.tools.cli.ranks import command_line

SECONDS, SWEEP_SECONDS = 10.0, 60.0
HEADS, TOKENS = click.IntRange(1, 1024), 1 << 24
TIME = "How long to measure: 5, 5s, 2m.  [default: 10s; with --sweep 1m]"


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
    click.Option(["--ragged"], is_flag=True, help="Lengths from 1 to twice --length."),
    *MEASURED,
]
RADIX: list[click.Parameter] = [
    click.Option(["--leaves"], type=click.IntRange(200), default=100_000, help="Leaves of the evicting tree."),
    click.Option(["--time", "seconds"], type=Seconds(), default=SECONDS, help="How long to measure."),
    *WRITTEN,
]


def _run(name: str, **options: Any) -> None:
    from commlib.tools.cli.bench.kernels_run import main

    context = click.get_current_context()
    options["seconds"] = options["seconds"] or (SWEEP_SECONDS if options["sweep"] else SECONDS)
    context.exit(main(name, options, command_line(context)))


def _command(name: str, params: Sequence[click.Parameter]) -> click.Command:
    text = f"Time a kernel. {KERNELS[name].help}"
    return click.Command(name, callback=partial(_run, name), params=list(params), help=text)


index, metadata, store = (_command(name, _rows(name)) for name in ("index", "metadata", "store"))
attention, radix = _command("attention", ATTENTION), _command("radix", RADIX)
