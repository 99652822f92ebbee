"""What a user reads who types what does not exist: what replaces a command or an option, or the one that was meant."""

from __future__ import annotations

import click

from commlib import env
from commlib.errors import meant

REMOVED = {
    "profile": "`commlib bench index|store|metadata|attention|radix` measures kernels, "
    "`commlib bench OP --phases` one call, and `commlib plan explain` replaces --analyze",
    "radix": "run make_traces.py and simulate.py in benchmarks/radix of a checkout",
    "plan diff": "write both plans with `commlib plan show PLAN --json`, and compare the files with diff",
    "plan validate": "`commlib plan show FILE` names the first mistake of a file",
    "plan threshold": "write `Plan.threshold(…).file_text` of Python, or edit a copy of a shipped plan",
    "plan export": "read the sizes from `commlib plan show --json`",
}
"""A command, without the name of the program, and what does its work now."""
OF_OTHERS = {
    "-g": "a rank for each GPU: -n 8",
    "--ngpus": "a rank for each GPU: -n 8",
    "-i": "sizes grow by a factor (-f 2) or are named (--sizes 1M,2M,3M); iterations are --iters 100",
    "-x": "iterations before the clock are -w 5",
    "-m": "calls are not aggregated, each has its own place in line; sizes are -b 8 -e 1M",
    "-c": "values are always compared, unless --no-check is there",
    "-N": "for how long to measure is --time 60",
    "--op": "the reduction is --redop sum",
    "--datatype": "the element type is -d bf16",
    "-G": "replays of CUDA graphs are timed with --graph",
    "-T": f"the deadline of a wait is the variable {env.TIMEOUT_S.name}",
}
"""An option of nccl-tests or of OSU's benchmarks that `commlib bench` has not, and what to type here."""


def no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option: what to type here, or the one that was meant, if the help has it."""
    of_bench = OF_OTHERS if error.ctx is not None and error.ctx.info_name == "bench" else {}
    if here := of_bench.get(error.option_name):
        return click.UsageError(f"no option {error.option_name}; {here}", error.ctx)
    params = error.ctx.command.params if error.ctx is not None else []
    shown = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    known = [name for param in shown for name in (*param.opts, *param.secondary_opts)]
    return click.UsageError(f"no option {error.option_name}{meant(error.option_name, known)}", error.ctx)
