"""What options of several commands share: times, sizes, lists of names, element types, and where a result goes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commlib import env
from commlib.build.sources import load_module
from commlib.errors import meant
from commlib.tools.report.chart import check_name
from commlib.tools.report.document import unwritable, write
from commlib.tools.report.formats import csv_text, json_text

if TYPE_CHECKING:
    import torch

F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.ParamType):  # type: ignore[type-arg]  # click has one since 8.5
    """A time above 0, in one grammar for all commands: 5 and 5s are seconds; 500ms, 2m, 1h."""

    name = "time"
    UNITS: Mapping[str, float] = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        parts = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s|m|h|)", str(value).strip())
        seconds = float(parts[1]) * self.UNITS[parts[2]] if parts else 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no finite time above 0: write 5, 5s, 2m or 1h", param, ctx)
        return seconds


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers or sizes, such as 1,64,16K, each once."""

    name = "a,b"

    def __init__(self, high: int = 1 << 40, low: int = 1) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            numbers = tuple(dict.fromkeys(env.parse_bytes(item.strip()) for item in str(value).split(",")))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers; write 1,64,16K", param, ctx)
        if not self.low <= min(numbers) <= max(numbers) <= self.high:
            self.fail(f"{value!r} has a number below {self.low} or above {self.high}", param, ctx)
        return numbers


EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
Command = Callable[..., Any]


class GroupedOption(click.Option):
    """An option that stands below a heading of its command's help."""

    def __init__(self, *names: Any, group: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Leave out the range, such as [x>=1]."""
        return {name: text for name, text in super().get_help_extra(ctx).items() if name != "range"}


def grouped_options(group: str) -> Callable[..., Callable[[Command], Command]]:
    """Return click.option for the options below one heading."""
    return partial(click.option, cls=GroupedOption, group=group)


def write_groups(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter, only: Sequence[str] = ()
) -> None:
    """Write a command's options below their headings: all of them, or only some."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
            sections.setdefault(getattr(param, "group", "Output"), []).append(record)
    for heading, records in sections.items():
        if not only or heading in only:
            with formatter.section(heading):
                formatter.write_dl(records)


def ranks_option(default: int | None, text: str) -> Callable[[F], F]:
    return click.option("-n", "--ranks", type=click.IntRange(1), default=default, help=text)


@dataclass
class Result:
    """Where a command's result goes: lines or a JSON document to stdout, and a file whose suffix is its form."""

    as_json: bool = False
    output: Path | None = None
    _lines: list[str] = field(default_factory=list, init=False)

    def say(self, text: str) -> None:
        self._lines.append(text)
        if not self.as_json:
            click.echo(text)

    def finish(self, document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the file, and print the document if it is asked for; .csv has its rows, .md and .txt the lines."""
        if self.output is not None:
            form, lines = self.output.suffix[1:], click.unstyle("\n".join(self._lines))
            text = csv_text(rows) if form == "csv" else f"```text\n{lines}\n```" if form == "md" else lines
            write(self.output, text if form in ("csv", "md", "txt") else json_text(document))
        if self.as_json:
            click.echo(json_text(document))


def result_options(command: F) -> F:
    """Give a command `--json` and `-o FILE`, as as_json and output."""

    def checked(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        check_files(value, None, endings=(".json", ".csv", ".md", ".txt"))
        return value

    text = "Also write FILE: JSON, or .csv, .md, .txt by its suffix."
    command = click.option("-o", "--output", type=FILE, metavar="FILE", callback=checked, help=text)(command)
    return click.option("--json", "as_json", is_flag=True, help="Print a JSON document instead of lines.")(command)


def read_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Turn a size such as 4096, 64K, 8M or 1G into bytes: `callback=read_bytes` of an option."""
    try:
        return None if value is None else env.parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def read_names(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the comma-separated names, each once; an unknown one is answered with those that there are."""
    return tuple(dict.fromkeys(known_name(name.strip(), known, what) for name in text.split(",")))


def known_name(name: str, known: Iterable[str], what: str) -> str:
    """Return a name that is known, or say which one was meant, and which there are."""
    if name not in known:
        raise click.UsageError(f"no {what} {name!r}{meant(name, known) or ';'} there are {', '.join(known)}")
    return name


def read_dtypes(text: str) -> tuple[torch.dtype, ...]:
    """Return the element types of comma-separated names, torch's or short ones; or all."""
    from commlib.redops import DTYPES, dtype_named

    names = DTYPES if text == "all" else text.split(",")
    return tuple(dict.fromkeys(dtype_named(name.strip()) for name in names))


def check_files(output: Path | None, picture: Path | None, endings: Iterable[str] = (".json", ".csv", ".md")) -> None:
    """Refuse what could not be written in the end."""
    check_name(picture)
    if output is not None and output.suffix not in ("", *endings):
        raise click.UsageError(f"-o {output}: results end in {', '.join(endings)}; give the file such a name")
    for name, path in (("-o", output), ("--plot", picture)):
        if path is not None and (why := unwritable(path)):
            raise click.UsageError(f"{name} {path}: {why}")


def python_file(path: Path, function: str) -> Any:
    """Return the module that a Python file of the caller's is; it must have the function."""
    if path.suffix != ".py":
        raise click.UsageError(f"--peer {path} is no Python file")
    sys.path.insert(0, str(path.parent))  # it may import what lies next to it
    try:
        module = load_module(path.absolute())
    except Exception as error:
        raise click.UsageError(f"--peer {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    if not callable(getattr(module, function, None)):
        raise click.UsageError(f"--peer {path} has no function {function}()")
    return module
