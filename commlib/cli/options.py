"""What options of several commands share."""

from __future__ import annotations

import click

from commlib import env


def read_bytes(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Turn a size such as 4096, 64K, 8M or 1G into bytes: `callback=read_bytes` of an option."""
    try:
        return env.parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
