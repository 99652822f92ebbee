"""The command line: COMMANDS is its table of contents, and a command's module is loaded when it is run."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import click

from commlib import env
from commlib.errors import BuildFailed, CommError, limit_of, meant
from commlib.version import __version__

# Name → (module:command, help). The help stands here so that `commlib --help` loads no command.
COMMANDS = {
    "run": ("commlib.tools.cli.run:run", "Start a program on several ranks of this machine."),
    "bench": ("commlib.tools.cli.bench.command:bench", "Time collectives and kernels next to other libraries."),
    "tune": ("commlib.tools.cli.tune:tune", "Measure every algorithm here and write the plan init() takes."),
    "plan": ("commlib.tools.cli.plan:plan", "Show which algorithm a call gets, and why."),
    "debug": ("commlib.tools.cli.debug:debug", "Show what a job hangs in, and which rank the others wait for."),
    "doctor": (
        "commlib.tools.cli.doctor.command:doctor",
        "Check what works on this machine, and how to mend the rest.",
    ),
    "build": ("commlib.tools.cli.build:build", "Compile the GPU kernels ahead of their first use."),
    "report": ("commlib.tools.cli.report.command:report", "Measure this machine from end to end; write pages of it."),
    "test": ("commlib.tools.cli.test:test", "Check every algorithm of this installation on live ranks."),
}
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
FIRST = 6  # what a newcomer needs
Table = dict[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group that knows its commands by name and help, from a table such as COMMANDS, and loads one when it is run."""

    table: Table
    heading = "Commands"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return with_plain_values(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; of one that does not exist say what replaces it, or which was meant."""
        name = " ".join([*ctx.command_path.split()[1:], args[0]])
        if name in REMOVED:
            ctx.fail(f"`commlib {name}` was removed; {REMOVED[name]}")
        if args[0] not in self.table and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{meant(args[0], self.table)}")
        return super().resolve_command(ctx, args)

    def headings(self) -> dict[str, list[str]]:
        return {self.heading: list(self.table)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table's own help instead of loading every command for its."""
        for heading, names in self.headings().items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.table[name][1]) for name in names])


class Main(LazyGroup):
    """The group of all commands, which turns errors into one line and an exit code."""

    table = COMMANDS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Save the words: the ranks that -n starts are called with the same."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def headings(self) -> dict[str, list[str]]:
        return {"Start here": list(COMMANDS)[:FIRST], "More commands": list(COMMANDS)[FIRST:]}

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; unless `standalone_mode` is off, end the process with its exit code."""
        if env.foreign("NO_COLOR"):  # https://no-color.org
            extra["color"] = False
        call = partial(super().main, *args, standalone_mode=False, **extra)
        return _exit_with(call) if standalone_mode else call()


def with_plain_values(command: click.Command) -> click.Command:
    """Call numbers numbers, in the help and in errors, where click says FLOAT RANGE."""
    for param in command.params:
        if isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):
            param.type.name, param.metavar = "number", param.metavar or "N"
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        with_plain_values(inner)
    return command


def _exit_with(call: Any) -> NoReturn:
    """End the process with 0, 1 (the world), 2 (the caller) or 130 (Ctrl-C), and one line on stderr."""
    try:
        code = call()
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(_usage_text(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader went away (`commlib … | head`); nothing more can be said to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (CommError, OSError, ValueError) as error:
        if env.TRACEBACK.get():
            raise
        _fail(_world_text(error), 2 if isinstance(error, ValueError) else 1)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_text(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        error = _no_such_option(error)
    text = error.format_message().rstrip(".")
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return text
    return f"{text}{'' if text.endswith('?') else ';'} see `{error.ctx.command_path} --help`"


def _world_text(error: Exception) -> str:
    """Return the line; what a compiler says has lines, which are printed above it."""
    text = "; ".join(filter(None, (str(error), limit_of(error))))
    first, _, log = text.partition("\n")
    if not isinstance(error, BuildFailed) or not log:
        return text or type(error).__name__
    print(log, file=sys.stderr)
    return f"{first.rstrip(':')}; the compiler's message is above"


def _no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option: what to type here, or the one that was meant, if the help has it."""
    of_bench = OF_OTHERS if error.ctx is not None and error.ctx.info_name == "bench" else {}
    if here := of_bench.get(error.option_name):
        return click.UsageError(f"no option {error.option_name}; {here}", error.ctx)
    params = error.ctx.command.params if error.ctx is not None else []
    shown = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    known = [name for param in shown for name in (*param.opts, *param.secondary_opts)]
    return click.UsageError(f"no option {error.option_name}{meant(error.option_name, known)}", error.ctx)


def _fail(message: str, code: int) -> NoReturn:
    print(f"commlib: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Collectives measured on the box they run on, for tensor-parallel inference."""
