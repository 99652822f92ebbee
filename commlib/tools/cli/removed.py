"""Removed commands: what a user who types one of them reads instead."""

from __future__ import annotations

import click

REMOVED = {
    "plan diff": "write both plans with `commlib plan show PLAN --json`, and compare the files with diff",
    "plan export": "read the sizes from `commlib plan show --json`",
    "profile": "`commlib bench index|store|metadata|attention|radix` measures kernels, "
    "`commlib bench OP --phases` one call, and `commlib plan explain` replaces --analyze",
    "radix": "run make_traces.py and simulate.py in benchmarks/radix of a checkout",
}
"""A command, without the name of the program, and what does its work now."""


class Group(click.Group):
    """A group whose removed commands name their successor."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called, as click does; for a removed one raise what replaces it."""
        name = " ".join([*ctx.command_path.split()[1:], *args[:1]])
        if name in REMOVED:
            ctx.fail(f"`commlib {name}` was removed; {REMOVED[name]}")
        return super().resolve_command(ctx, args)
