"""`commlib bench index`, `store`, `metadata`, `attention` and `radix`: a kernel next to other libraries."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from commlib.env import parse_bytes
from commlib.tools.baselines.kernels import KERNELS
from commlib.tools.cli.options import EXISTING, FILE, POSITIVE, picture
from commlib.tools.cli.ranks import RankCommand
from commlib.tools.report import nsight

SECONDS, SWEEP_SECONDS = 10.0, 60.0
HEADS, TOKENS = click.IntRange(1, 1024), 1 << 24
COMPILE = "Measure torch.compile.  [default: on GPUs]"
TIME = f"Seconds to measure, approximately.  [default: {SECONDS:g}; with --sweep {SWEEP_SECONDS:g}]"


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers above 0, such as 1,64,16K, each once."""

    name = "a,b"

    def __init__(self, high: int = 1 << 40) -> None:
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            numbers = tuple(dict.fromkeys(parse_bytes(item.strip()) for item in str(value).split(",")))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers; write 1,64,16K", param, ctx)
        if not 0 < min(numbers) <= max(numbers) <= self.high:
            self.fail(f"{value!r} has a number that is not above 0, or above {self.high}", param, ctx)
        return numbers


def _choice(name: str, flags: Mapping[str, str]) -> list[click.Parameter]:
    """Return flags of which one sets `name`; without any it is None."""
    return [click.Option([f"--{flag}", name], flag_value=flag, default=None, help=text) for flag, text in flags.items()]


def _measured() -> list[click.Parameter]:
    """Return the options of all kernels but the cache: how long, next to whom, where the result goes."""
    return [
        click.Option(["--dtype"], help="Element types a,b (bf16, half … too)."),
        click.Option(["--sweep"], is_flag=True, help="Measure many sizes."),
        click.Option(["--compile/--no-compile", "compile_"], default=None, help=COMPILE),
        click.Option(["--peer"], type=EXISTING, multiple=True, help="File with candidates(kernel, case, inputs)."),
        click.Option(["--time", "seconds"], type=POSITIVE, help=TIME),
        click.Option(["--device"], default="auto", show_default=True, help="cpu, cuda, cuda:1 …"),
        *_written(),
        *_choice("tool", nsight.HELP),
        click.Option(["--once"], is_flag=True, hidden=True, help="Make one call of ours: what --ncu looks at."),
    ]


def _written() -> list[click.Parameter]:
    return [
        click.Option(["--seed"], default=0, show_default=True, help="Seed of block order and intervals."),
        click.Option(["-o", "--output"], type=FILE, help="Also write to FILE: JSON, or .csv, .md by its suffix."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON in place of the table."),
    ]


def _rows(name: str) -> list[click.Parameter]:
    """Return the options of a kernel of rows."""
    kernel = KERNELS[name]
    hidden = len(kernel.patterns) == 1
    chosen = click.Choice(kernel.patterns)
    return [
        click.Option(["--dims", "--dim"], type=Numbers(), help="Elements per row; of metadata new tokens per request."),
        click.Option(["-n", "--rows"], type=Numbers(), help="Number of ids, tokens or requests."),
        click.Option(["--pattern"], type=chosen, hidden=hidden, help="Order of ids or slots.  [default: random]"),
        click.Option(["--compare-patterns"], is_flag=True, hidden=hidden, help="Measure all patterns, side by side."),
        *_choice("heat", {"cold": "Rotate sets of tensors that exceed the cache.  [default]", "hot": "Use one set."}),
        *_choice("variant", kernel.variants),
        click.Option(["--flush"], is_flag=True, help="Empty the cache before each replay, also for small sets."),
        click.Option(["--plot"], **picture(f"bench-{name}.png", "latency and share of the copy")),
        *_measured(),
    ]


ATTENTION: list[click.Parameter] = [
    click.Option(["--phase"], type=click.Choice(["decode", "prefill"]), default="decode", show_default=True),
    click.Option(["-b", "--batch"], type=Numbers(TOKENS), help="Number of requests."),
    click.Option(["-l", "--length"], type=Numbers(TOKENS), help="Tokens of each request."),
    click.Option(["--heads"], type=HEADS, help="Heads of queries.  [default: 64; on a CPU 8]"),
    click.Option(["--kv-heads"], type=HEADS, help="Heads of K and V.  [default: 8; on a CPU 1]"),
    click.Option(["--dim"], type=click.IntRange(1, 256), default=128, show_default=True, help="Features of a head."),
    click.Option(["--page-size"], type=Numbers(TOKENS), help="Tokens of a page of the cache.  [default: 16]"),
    click.Option(["--fp8"], is_flag=True, help="Cache of float8_e4m3fn, with scales."),
    click.Option(["--ragged"], is_flag=True, help="Lengths from 1 to twice --length."),
    click.Option(["--compare"], is_flag=True, help="Measure torch, FlexAttention, flash-attn and FlashInfer, too."),
    *_measured(),
]
RADIX: list[click.Parameter] = [
    click.Option(["--leaves"], default=100_000, type=click.IntRange(200), help="Leaves of the evicting tree."),
    click.Option(["--time", "seconds"], type=POSITIVE, default=SECONDS, help="Seconds to measure, approximately."),
    *_written(),
]


def _run(name: str, **options: Any) -> None:
    """Measure, or show how another tool does."""
    from commlib.tools.cli.bench.kernels_run import command, main, once, read_job

    context = click.get_current_context()
    options["seconds"] = options["seconds"] or (SWEEP_SECONDS if options["sweep"] else SECONDS)
    job = read_job(name, options)
    if options.get("once"):
        context.exit(once(job.cases[0], job.settings.device))
    if options.get("tool"):
        context.exit(nsight.run(command(options["tool"], job.cases[0], context.meta["words"])))
    context.exit(main(job, options, shlex.join(["commlib", "bench", name, *context.meta["words"]])))


def _command(name: str, params: Sequence[click.Parameter]) -> click.Command:
    return RankCommand(
        name, callback=partial(_run, name), params=list(params), help=f"Time a kernel. {KERNELS[name].help}"
    )


index, metadata, store = (_command(name, _rows(name)) for name in ("index", "metadata", "store"))
attention, radix = _command("attention", ATTENTION), _command("radix", RADIX)
