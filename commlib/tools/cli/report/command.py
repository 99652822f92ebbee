"""`commlib report`: measure everything once, keep each document, and write pages that people read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from commlib.tools.cli.options import read_names
from commlib.tools.cli.report.run import STATE, Folder, measure
from commlib.tools.cli.report.steps import STEPS, Settings

INTERRUPTED = 130


@click.command()
@click.option("--quick", "scope", flag_value="quick", default=None, help="Few sizes: about three minutes.")
@click.option("--all", "scope", flag_value="all", help="Every size and pattern: up to an hour.")
@click.option("-n", "--ranks", type=click.IntRange(1), help="Ranks of collectives.  [default: one for each GPU, or 2]")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder to write; what it has stays, and the run goes on from there.",
)
@click.option("--only", metavar="A,B", help=f"Measure only these steps: {', '.join(STEPS)}.")
@click.option("--skip", metavar="A,B", help="Leave these steps out.")
@click.option("--show", is_flag=True, help="Measure nothing; write the pages again from what the folder has.")
@click.pass_context
def report(ctx: click.Context, /, output: Path, show: bool, **asked: Any) -> None:
    """Measure this machine from end to end, and write report.html and a Markdown file for each step.

    Each step is a command of commlib, whose JSON document stays in the folder. Ctrl-C keeps what is done, and the same
    command goes on from there. A step that fails does not stop the others: the report names it, and the exit code is 1.
    """
    from commlib.tools.cli.report.pages import write_pages

    wanted = STEPS if asked["only"] is None else read_names(asked["only"], STEPS, "step")
    left_out = () if asked["skip"] is None else read_names(asked["skip"], STEPS, "step")
    folder = Folder(output) if show else _opened(output, asked["scope"], asked["ranks"])
    todo = [name for name in STEPS if name in wanted and name not in left_out and not folder.has(name)]
    interrupted = measure(folder, [] if show else todo)
    for _, text in write_pages(folder).text:
        click.echo(text)
    click.echo(f"report: {output / 'report.html'}")
    if interrupted:
        click.echo(f"commlib: interrupted; `commlib report -o {output}` goes on", err=True)
        ctx.exit(INTERRUPTED)
    ctx.exit(int(any(ended.code or not folder.has(name) for name, ended in folder.ended.items())))


def _opened(path: Path, scope: Any, ranks: int | None) -> Folder:
    """Return the folder, new or as it was left; what is asked for must be what it has."""
    if (path / STATE).exists():
        folder = Folder(path)
        for what, asked, has in (("scope", scope, folder.settings.scope), ("ranks", ranks, folder.settings.ranks)):
            if asked not in (None, has):
                remedy = "leave the option out to go on, or name another folder"
                raise click.UsageError(f"{path} has {what} {has}, and {asked} is asked for; {remedy}")
        return folder
    if path.exists() and any(path.iterdir()):
        raise click.UsageError(f"{path} has files that are not of a report; name a new folder")
    import torch

    from commlib import backends

    path.mkdir(parents=True, exist_ok=True)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = ranks or max(gpus, 2)
    return Folder(path, Settings(scope or "usual", ranks, backends.here(ranks) == "nccl"))
