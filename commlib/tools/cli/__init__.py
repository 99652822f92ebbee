"""The command line: COMMANDS is its table of contents, and a command's module is loaded when it is run."""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import click

from commlib import env
from commlib.errors import CommError, limit_of
from commlib.tools.cli.removed import Group
from commlib.version import __version__

# Name → (module:command, help). The help stands here so that `commlib --help` loads no command.
COMMANDS = {
    "bench": (
        "commlib.tools.cli.bench.command:bench",
        "Time collectives, algorithms and kernels beside other libraries.",
    ),
    "build": ("commlib.tools.cli.build:build", "Compile the GPU kernels ahead of their first use."),
    "debug": ("commlib.tools.cli.debug:debug", "Say what the ranks of a job are in, and which of them keeps it."),
    "doctor": ("commlib.tools.cli.doctor.command:doctor", "Say what is here, what works, and why something does not."),
    "plan": ("commlib.tools.cli.plan:plan", "Show a plan, or explain which algorithm a call gets and why."),
    "report": (
        "commlib.tools.cli.report.command:report",
        "Measure this machine from end to end, and write pages of it.",
    ),
    "run": ("commlib.tools.cli.run:run", "Start a command on several ranks of this machine."),
    "tune": ("commlib.tools.cli.tune.command:tune", "Measure every algorithm here and write the plan init() takes."),
    "test": ("commlib.tools.cli.test:test", "Check every algorithm of this installation on live ranks."),
}
Table = dict[str, tuple[str, str]]


class LazyGroup(Group):
    """A group that knows its commands by name and help, from a table such as COMMANDS, and loads one when it is run."""

    table: Table
    heading = "Commands"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the table."""
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the module of one command."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table's own help instead of loading every command for its."""
        with formatter.section(self.heading):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])


class Main(LazyGroup):
    """The group of all commands, which turns errors into one line and an exit code."""

    table = COMMANDS

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; unless `standalone_mode` is off, end the process with its exit code."""
        _open_streams()
        call = partial(super().main, *args, standalone_mode=False, **extra)
        return _exit_with(call) if standalone_mode else call()


def _open_streams() -> None:
    """Put /dev/null where the caller closed stdin, stdout or stderr: the next file would take its number."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # takes the least number that is free
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, "w" if fd else "r", encoding="utf-8"))


def _exit_with(call: Any) -> NoReturn:
    """End the process with 0, 1 (the world), 2 (the caller) or 130 (Ctrl-C), and one line on stderr."""
    try:
        code = call()
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        see = f"; see `{error.ctx.command_path} --help`" if error.ctx is not None else ""
        _fail(error.format_message().rstrip(".") + see, error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader went away (`commlib … | head`); nothing more can be said to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (CommError, OSError, ValueError) as error:
        if _shows_tracebacks():
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:  # of a write
            _fail(f"cannot write: {error.strerror}; make room, or write elsewhere", 1)
        text = "; ".join(filter(None, (str(error), limit_of(error))))
        _fail(text or type(error).__name__, 2 if isinstance(error, ValueError) else 1)
    sys.exit(code if isinstance(code, int) else 0)


def _shows_tracebacks() -> bool:
    try:
        return env.TRACEBACK.get()
    except ValueError as error:
        _fail(str(error), 2)


def _fail(message: str, code: int) -> NoReturn:
    print(f"commlib: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Collectives measured on the box they run on, for tensor-parallel inference."""
