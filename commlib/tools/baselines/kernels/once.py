"""One call of ours of a case, without a report: what `commlib profile --ncu` and `--nsys` look at."""

from __future__ import annotations

from functools import partial

import torch

from commlib.errors import Unsupported
from commlib.tools.baselines.kernels import load
from commlib.tools.baselines.kernels.case import OURS, Case
from commlib.tools.baselines.kernels.compiled import Compiler
from commlib.tools.report import nsight


def command(tool: str, case: Case) -> list[str]:
    """Return the exact command for one call of ours of the case."""
    output = "-".join(filter(None, [case.kernel, *case.variant.split(), str(case.n), str(case.dim)]))
    one = [f"--kernel-name=regex:{case.launched}", "--launch-count=1"] if case.launched else []
    return nsight.command(tool, output, ["profile", *case.words(), "--once"], ["--set=full", *one])


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
