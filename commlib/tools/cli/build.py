"""`commlib build`: compile the GPU kernels ahead of their first use."""

from __future__ import annotations

import os
import re
import time

import click

from commlib import env
from commlib.tools.cli.options import Numbers, read_dtypes

DTYPES = "float32,bfloat16,float16"
MAX_WORLD = 8  # as in commlib.build.device_code, which loads the compiler


@click.command()
@click.option("--arch", metavar="LIST", help="Architectures such as sm_90,sm_100; without it, those of the GPUs here.")
@click.option("-n", "--ranks", "worlds", type=Numbers(MAX_WORLD), default="2,4,8", help="Numbers of ranks.")
@click.option("-d", "--dtype", "dtypes", metavar="LIST", default=DTYPES, help="Of reductions (bf16 … too), or all.")
@click.option("--jobs", type=click.IntRange(min=1), help="Compiler threads; without it, one for each core.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each kernel.")
def build(arch: str | None, worlds: tuple[int, ...], dtypes: str, jobs: int | None, verbose: bool) -> None:
    """Compile the GPU kernels into the cache, so that no call has to wait for the compiler.

    No GPU is needed to compile for one: name its architecture. The cache is $COMMLIB_CACHE_DIR.
    """
    from commlib.build.cache import cache_dir, check_writable
    from commlib.build.device_code import compiler
    from commlib.errors import BuildFailed
    from commlib.native import library
    from commlib.tools.kernel_list import Request, compile_many, kernels

    folder = cache_dir()
    try:
        check_writable(folder)
    except OSError as error:
        raise click.UsageError(
            f"the cache {folder} cannot be written: {error.strerror}; {env.CACHE_DIR.name}=FOLDER names another"
        ) from None
    names = [str(dtype).removeprefix("torch.") for dtype in read_dtypes(dtypes)]
    requests = [
        Request(source, expression, name)
        for name in _architectures(arch)
        for source, expression in [*kernels(worlds, names), *library.device_kernels()]
    ]
    tool, start = compiler(), time.perf_counter()
    compiled, failures = 0, []
    for request, kernel in compile_many(requests, jobs or len(os.sched_getaffinity(0))):
        if isinstance(kernel, BuildFailed):
            failures.append(str(kernel))
            continue
        compiled += not kernel.cached
        if verbose:
            state = "cached  " if kernel.cached else "compiled"
            spilled = f", {kernel.spill_bytes} B spilled" if kernel.spill_bytes else ""
            click.echo(f"{state}  {request.arch}  {request.expression}  {kernel.registers} registers{spilled}")
    if failures:
        click.echo(failures[0], err=True)
        raise BuildFailed(f"{len(failures)} of {len(requests)} kernels failed to compile; the first is above")
    spent = time.perf_counter() - start
    known = len(requests) - compiled
    click.echo(f"{compiled} compiled, {known} from the cache in {spent:.1f} s with {tool.name}: {folder}")


def _architectures(text: str | None) -> list[str]:
    if text is not None:
        names = text.split(",")
        for name in names:
            if not re.fullmatch(r"sm_\d+[af]?", name):
                raise click.BadParameter(f"{name!r} is no architecture; write sm_90,sm_100", param_hint="--arch")
        return names
    import torch

    here = {torch.cuda.get_device_capability(device) for device in range(torch.cuda.device_count())}
    if not here:
        raise click.UsageError("no GPU here whose architecture to take; give one, such as --arch sm_90")
    return [f"sm_{major}{minor}" for major, minor in sorted(here)]
