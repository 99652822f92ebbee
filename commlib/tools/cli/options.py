"""What options of several commands share: sizes, lists of names, element types, files to write."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib import env
from commlib.build.sources import load_module
from commlib.tools.report import files
from commlib.tools.report.chart import check_name

if TYPE_CHECKING:
    import torch


class Finite(click.FloatRange):
    """A range of numbers, without the two that Python also reads: nan, which no bound refuses, and inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Turn the text into a number of the range."""
        found = float(super().convert(value, param, ctx))
        return found if math.isfinite(found) else self.fail(f"{value} is not a finite number", param, ctx)


class Seconds(click.ParamType[float]):
    """A time: 5, 5s, 2m or 1h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Turn the text into seconds."""
        number, scale = str(value), 1.0
        if number[-1:] in UNITS_S:
            number, scale = number[:-1], UNITS_S[number[-1]]
        try:
            seconds = float(number) * scale
        except ValueError:
            self.fail(f"{value!r} is not a time; write 5, 5s, 2m or 1h", param, ctx)
        return seconds if 0 < seconds < math.inf else self.fail(f"{value!r} is no finite time above 0", param, ctx)


UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
POSITIVE = Finite(0, min_open=True)
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


def write_groups(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write a command's options below their headings."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
            sections.setdefault(getattr(param, "group", "Output"), []).append(record)
    for heading, records in sections.items():
        with formatter.section(heading):
            formatter.write_dl(records)


def picture(bare: str, text: str) -> dict[str, Any]:
    """Return the settings of `--plot`: the picture's name without FILE, and what it shows."""
    return {
        "type": FILE,
        "is_flag": False,
        "metavar": "[FILE]",
        "flag_value": bare,
        "help": f"Draw {text}: .png or .svg.",
    }


def read_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Turn a size such as 4096, 64K, 8M or 1G into bytes: `callback=read_bytes` of an option."""
    try:
        return None if value is None else env.parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def read_sizes(text: str) -> tuple[int, ...]:
    """Return the bytes of comma-separated sizes, in their order."""
    try:
        return tuple(env.parse_bytes(size.strip()) for size in text.split(","))
    except ValueError as error:
        raise click.UsageError(f"--bytes {text}: {error}") from None


def read_names(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the comma-separated names, each once; one that is not known is answered with those that are."""
    return tuple(dict.fromkeys(known_name(name.strip(), known, what) for name in text.split(",")))


def known_name(name: str, known: Iterable[str], what: str) -> str:
    """Return a name that is known, or say which are."""
    if name not in known:
        close = "".join(f"; did you mean {match}?" for match in get_close_matches(name, known, 1))
        raise click.UsageError(f"no {what} {name!r}; there are {', '.join(known)}{close}")
    return name


def read_dtypes(text: str) -> tuple[torch.dtype, ...]:
    """Return the element types of comma-separated names, torch's or short ones; or all."""
    from commlib.redops import DTYPES, dtype_named

    names = DTYPES if text == "all" else text.split(",")
    return tuple(dict.fromkeys(dtype_named(name.strip()) for name in names))


def check_files(
    output: Path | None, picture: Path | None, option: str = "-o", endings: Iterable[str] = (".json", ".csv", ".md")
) -> None:
    """Refuse what could not be written in the end; "-" is stdout."""
    check_name(picture)
    if output is not None and endings and output.suffix not in ("", *endings):
        raise click.UsageError(f"{option} {output}: results end in {', '.join(endings)}; give the file such a name")
    for name, path in ((option, output), ("--plot", picture)):
        if path is not None and str(path) != "-" and (why := files.unwritable(path)):
            raise click.UsageError(f"{name} {path}: {why}")


def python_file(path: Path, function: str, option: str = "--peer") -> Any:
    """Return the module that a Python file of the caller's is; it must have the function."""
    if path.suffix != ".py":
        raise click.UsageError(f"{option} {path} is no Python file")
    sys.path.insert(0, str(path.parent))  # it may import what lies next to it
    try:
        module = load_module(path.absolute())
    except Exception as error:
        raise click.UsageError(f"{option} {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    if not callable(getattr(module, function, None)):
        raise click.UsageError(f"{option} {path} has no function {function}()")
    return module
