"""One call of ours of a case, without a report: what `commlib profile --ncu` and `--nsys` look at."""

from __future__ import annotations

from functools import partial

import torch

from commlib.errors import Unsupported
from commlib.peers.kernels import load
from commlib.peers.kernels.case import OURS, Case
from commlib.peers.kernels.compiled import Compiler
from commlib.report import nsight


def command(tool: str, case: Case) -> list[str]:
    """Return the exact command for one call of ours of the case."""
    output = "-".join(filter(None, [case.kernel, case.variant, str(case.n), str(case.dim)]))
    chosen = ["--set=full", f"--kernel-name=regex:{case.kernel}", "--launch-count=1"]
    return nsight.command(tool, output, ["profile", *once_words(case)], chosen)


def once_words(case: Case) -> list[str]:
    """Return the words after `commlib profile` that make just this case's call."""
    words = [case.kernel, "--once", f"--dim={case.dim}", f"--rows={case.n}", f"--dtype={case.type}"]
    words += [f"--pattern={case.pattern}"] if case.pattern != "random" else []
    return words + ([f"--{case.variant}"] if case.variant else [])


def once(case: Case, device: torch.device) -> int:
    """Make the call of ours a few times; a profiler looks at the last one only."""
    kernel = load(case.kernel)
    (inputs,) = kernel.inputs(case, 1, device)
    ours = next(each for each in kernel.candidates(case, Compiler("not asked for")) if each.role == OURS)
    if ours.prepare is None:
        raise Unsupported(ours.reason)
    on_gpu = device.type == "cuda"
    rest = partial(torch.cuda.synchronize, device) if on_gpu else lambda: None
    nsight.look_at(ours.prepare(inputs), rest, looks=on_gpu)
    return 0
