"""`commlib report`: measure everything once, keep each document, and write pages that people read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commlib.tools.cli.options import read_names
from commlib.tools.cli.report import SCOPES, STAGES, Settings
from commlib.tools.report import nsight

if TYPE_CHECKING:
    from commlib.tools.cli.report.folder import Folder

INTERRUPTED = 130


@click.command()
@click.option("--quick", "scope", flag_value="quick", default=None, help="Few sizes: about two minutes.")
@click.option("--all", "scope", flag_value="all", help="Every size and pattern: up to an hour.")
@click.option("-n", "--ranks", type=click.IntRange(1), help="Ranks of collectives.  [default: one for each GPU, or 2]")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder to write; what it has is kept, and the run goes on from there.",
)
@click.option("--only", metavar="A,B", help=f"Measure these stages alone: {', '.join(STAGES)}.")
@click.option("--skip", metavar="A,B", help="Leave these stages out.")
@click.option("--show", is_flag=True, help="Measure nothing; write the pages again from what the folder has.")
@click.option(
    "--baseline",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of another report: say what changed since then beyond the noise.",
)
@click.option("--ncu", is_flag=True, help="Also print and run the ncu command for one call of each kernel.")
@click.option("--nsys", is_flag=True, help="Also print and run the nsys command for one call of each kernel.")
@click.pass_context
def report(ctx: click.Context, /, output: Path, show: bool, **options: Any) -> None:
    """Measure this machine from end to end, and write report.html and a Markdown file for each stage.

    Each stage is a command of commlib, whose JSON document is kept in the folder. Ctrl-C keeps what is done, and the
    same command goes on from there. A stage that fails is said in the report, and does not stop the others; the exit
    code is then 1.
    """
    from commlib.tools.cli.report.folder import Folder
    from commlib.tools.cli.report.pages import PAGE, write_pages
    from commlib.tools.cli.report.run import look, measure
    from commlib.tools.report.page import Text

    names = _chosen(options["only"], options["skip"])
    before = Folder(options["baseline"]) if options["baseline"] else None
    folder = Folder(output) if show else _opened(output, options["scope"], options["ranks"])
    todo = [] if show else [name for name in names if not folder.has(name)]
    interrupted = measure(folder, todo)
    for tool in nsight.HELP:
        if options[tool] and not interrupted:
            look(folder, tool)
    for block in write_pages(folder, before).blocks:
        if isinstance(block, Text):
            click.echo(block.text)
    click.echo(f"report: {output / PAGE}")
    if interrupted:
        click.echo(f"commlib: interrupted; `commlib report -o {output}` goes on", err=True)
        ctx.exit(INTERRUPTED)
    ctx.exit(int(any(ended["code"] or not folder.has(name) for name, ended in folder.stages.items())))


def _chosen(only: str | None, skip: str | None) -> list[str]:
    """Return the stages that are asked for, in the order of the table."""
    wanted = read_names(only, STAGES, "stage") if only is not None else tuple(STAGES)
    left_out = read_names(skip, STAGES, "stage") if skip is not None else ()
    return [name for name in STAGES if name in wanted and name not in left_out]


def _opened(path: Path, scope: str | None, ranks: int | None) -> Folder:
    """Return the folder, new or as it was left; what is asked for must be what it has."""
    from commlib.tools.cli.report.folder import STATE, Folder

    if (path / STATE).exists():
        folder = Folder(path)
        for what, asked, has in (("scope", scope, folder.settings.scope), ("ranks", ranks, folder.settings.ranks)):
            if asked not in (None, has):
                remedy = "leave the option out to go on, or name another folder"
                raise click.UsageError(f"{path} has {what} {has}, and {asked} is asked for; {remedy}")
        return folder
    if path.exists() and any(path.iterdir()):
        raise click.UsageError(f"{path} has files that are not of a report; name a new folder")
    path.mkdir(parents=True, exist_ok=True)
    return Folder(path, _settings(scope or SCOPES[1], ranks))


def _settings(scope: str, ranks: int | None) -> Settings:
    import torch

    from commlib import backends

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = ranks or max(gpus, 2)
    return Settings(scope, ranks, backends.here(ranks) == "nccl")
