"""`--ncu` and `--nsys`: the command line that profiles one call of ours; printed, and run where the tool is."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import click
import torch

from commlib.peers.kernels import load
from commlib.peers.kernels.case import OURS, Case
from commlib.peers.kernels.compiled import Compiler

WARM_CALLS = 3  # before the one that is looked at: they compile and load


def command(tool: str, case: Case) -> list[str]:
    """Return the exact command for one call of ours of the case."""
    program = [sys.executable, "-m", "commlib", "profile", *once_words(case)]
    output = "-".join(filter(None, [case.kernel, case.variant, str(case.n), str(case.dim)]))
    if tool == "nsys":
        chosen = ["--trace=cuda,nvtx,osrt", "--capture-range=cudaProfilerApi", "--force-overwrite=true"]
        return ["nsys", "profile", *chosen, f"--output={output}", *program]
    chosen = ["--profile-from-start=off", f"--kernel-name=regex:{case.kernel}", "--launch-count=1"]
    return ["ncu", "--set=full", *chosen, "--force-overwrite", f"--export={output}", *program]


def once_words(case: Case) -> list[str]:
    """Return the words after `commlib profile` that make just this case's call."""
    words = [case.kernel, "--once", f"--dim={case.dim}", f"--rows={case.n}", f"--dtype={case.type}"]
    words += [f"--pattern={case.pattern}"] if case.pattern != "random" else []
    return words + ([f"--{case.variant}"] if case.variant else [])


def profile(tool: str, case: Case) -> int:
    """Print the command and run it if the tool is here; return its exit code."""
    words = command(tool, case)
    click.echo(shlex.join(words))
    if shutil.which(tool) is None:
        click.echo(f"commlib: {tool} is not here; run the line above where it is", err=True)
        return 0
    return subprocess.run(words, check=False).returncode


def once(case: Case, device: torch.device) -> int:
    """Make the call of ours a few times; a profiler looks at the last one only."""
    kernel = load(case.kernel)
    (inputs,) = kernel.inputs(case, 1, device)
    ours = next(each for each in kernel.candidates(case, Compiler("not asked for")) if each.role == OURS)
    if ours.prepare is None:
        raise click.ClickException(ours.reason)
    run = ours.prepare(inputs)
    for _ in range(WARM_CALLS):
        run()
    if device.type != "cuda":
        run()
        return 0
    torch.cuda.synchronize(device)
    with torch.cuda.profiler.profile():
        run()
        torch.cuda.synchronize(device)
    return 0
