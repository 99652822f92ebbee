"""What a user reads who types a command or an option that does not exist: the one meant, or what replaces it."""

from __future__ import annotations

import click

from commlib import env
from commlib.errors import meant

REMOVED = {
    "plan diff": "write both plans with `commlib plan show PLAN --json`, and compare the files with diff",
    "plan validate": "`commlib plan show FILE` names the first mistake of a file",
    "plan threshold": "write `Plan.threshold(…).file_text` of Python, or edit a copy of a shipped plan",
    "plan export": "read the sizes from `commlib plan show --json`",
    "profile": "`commlib bench index|store|metadata|attention|radix` measures kernels, "
    "`commlib bench OP --phases` one call, and `commlib plan explain` replaces --analyze",
    "radix": "run make_traces.py and simulate.py in benchmarks/radix of a checkout",
}
"""A command, without the name of the program, and what does its work now."""
OPTIONS = {
    "--world": "it is -n/--ranks now",
    "--seconds": "it is --time now",
    "--penalty": "it is --margin now",
    "--resume": "`commlib tune` writes the plan after each table: name the collectives that are left",
    "--force": "`commlib tune` writes nothing that is slower than the fastest by --margin",
    "--results": "`commlib bench OP --algorithms auto` measures what a call takes",
    "--seed": "nothing here is drawn at random",
    "--params": "parameters stand in a plan (--plan FILE); `commlib tune` tries several",
    "--window": "a message is sent when the one before has arrived; for windows of messages run osu_bw",
    "--overlap": "benchmarks/beside.py of a checkout times calls next to matrix products",
    "--percentiles": "the JSON has p0, p10, p50, p90 and p100 of each row: -o results.json",
    "--show": "`commlib report -o FOLDER` writes the pages again, and measures only what is not done",
    "--skip": "name the steps to measure with --only",
    "--watch": "run `watch commlib debug`",
    "--native": "run `py-spy dump --native --pid PROCESS` or gdb on the process that `commlib debug` names",
    "--baseline": "`commlib bench compare OLD/collectives.json NEW/collectives.json` compares two reports",
    "--flush": "cold cases whose tensors fit into the cache find it empty, always",
    "--compare-patterns": "run it twice: --pattern sequential and --pattern random",
    "--plot": "draw the figures of -o FILE, or of the samples next to a plan",
    "--phase": "decoding is measured; prompts run on kernels of other libraries",
    "--ncu": "start it: ncu --kernel-name=regex:NAME --launch-count=1 commlib bench …",
    "--trace": "--phases has a table of all ranks, and -o FILE its figures",
    "--nsys": "start it: nsys profile commlib bench …",
}
"""An option that a command has no more, and what does its work now."""
OF_OTHERS = {
    "-g": "a rank for each GPU: -n 8",
    "--ngpus": "a rank for each GPU: -n 8",
    "-i": "sizes grow by a factor (-f 2) or are named (--sizes 1M,2M,3M); iterations are --iters 100",
    "-x": "iterations before the clock are -w 5",
    "-m": "calls are not aggregated, each has its own place in line; sizes are -b 8 -e 1M",
    "-N": "for how long to measure is --time 60",
    "--op": "the reduction is --redop sum",
    "--datatype": "the element type is -d bf16",
    "-G": "replays of CUDA graphs are timed with --graph",
    "-T": f"the deadline of a wait is the variable {env.TIMEOUT_S.name}",
}
"""An option of nccl-tests or of OSU's benchmarks that `commlib bench` has not, and what to type here."""


class Group(click.Group):
    """A group whose removed commands name their successor, and whose mistyped ones the one that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, as click does; for one that does not exist raise what to type."""
        name = " ".join([*ctx.command_path.split()[1:], *args[:1]])
        if name in REMOVED:
            ctx.fail(f"`commlib {name}` was removed; {REMOVED[name]}")
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{meant(args[0], known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command whole, where click cuts it."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in commands if command])


def no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option: what replaces it, or the one that was meant, if the help has it."""
    of_bench = OF_OTHERS if error.ctx is not None and error.ctx.info_name == "bench" else {}
    if successor := of_bench.get(error.option_name) or OPTIONS.get(error.option_name):
        return click.UsageError(f"no option {error.option_name}; {successor}", error.ctx)
    params = error.ctx.command.params if error.ctx is not None else []
    shown = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    known = [name for param in shown for name in (*param.opts, *param.secondary_opts)]
    return click.UsageError(f"no option {error.option_name}{meant(error.option_name, known)}", error.ctx)
