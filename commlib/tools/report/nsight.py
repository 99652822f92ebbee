"""`--ncu` and `--nsys`: Nsight's tools on one call; their command is printed, and run where the tool is."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from commlib.errors import Unsupported

WARM_CALLS = 3  # before the one that is looked at: they compile and load
HELP = {"ncu": "Print and run the ncu command for one call.", "nsys": "Print and run the nsys command for one call."}
FULL_NAMES = {"ncu": "NVIDIA Nsight Compute", "nsys": "NVIDIA Nsight Systems"}


def command(tool: str, output: str, arguments: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return the command line that looks at the call which `commlib ARGUMENTS` makes; `chosen` are options of ncu's."""
    program = [sys.executable, "-m", "commlib", *arguments]
    if tool == "nsys":
        options = ["--trace=cuda,nvtx,osrt", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        return ["nsys", "profile", *options, "--force-overwrite=true", f"--output={output}", *program]
    options = [*chosen, "--profile-from-start=off", "--force-overwrite", f"--export={output}"]
    return ["ncu", *options, *program]


def run(command: Sequence[str]) -> int:
    """Print the command and run it; return its exit code. Where the tool is not, Unsupported says what to do."""
    tool = command[0]
    sys.stdout.write(f"{shlex.join(command)}\n")
    sys.stdout.flush()
    if shutil.which(tool) is None:
        remedy = f"install {FULL_NAMES[tool]} and put it on the PATH, or run the line above where it is"
        raise Unsupported(f"{tool} is not here; {remedy}")
    return subprocess.run(command, check=False).returncode


def look_at(call: Callable[[], object], rest: Callable[[], object], looks: bool = True) -> None:
    """Make the call a few times; a profiler that started this process looks at the last one, until `rest` returns."""
    import torch

    for _ in range(WARM_CALLS):
        call()
    rest()
    if looks:
        torch.cuda.profiler.start()
    call()
    rest()
    if looks:
        torch.cuda.profiler.stop()
