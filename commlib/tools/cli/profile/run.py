"""One run of `commlib profile`: measure case after case, and keep what was measured whatever ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from commlib.tools.baselines.kernels.measure import measure_case
from commlib.tools.cli.profile.job import Job
from commlib.tools.cli.profile.report import ProfileReport
from commlib.tools.report.run import Output, until_it_ends


def main(job: Job, output: Output, command: str) -> int:
    """Measure until the end, an error or Ctrl-C, and report what was measured; return the exit code."""
    report = ProfileReport(job, command)
    if job.settings.on_gpu:
        torch.cuda.set_device(job.settings.device)
    with one_thread(not job.settings.on_gpu):
        code = until_it_ends(partial(_measure, job, report, output), output.finish)
    return code or int(report.failed)


def _measure(job: Job, report: ProfileReport, output: Output) -> None:
    lacking = output.lacks()
    output.open(report, len(job.cases))
    for done, case in enumerate(job.cases):
        output.show(done, str(case))
        group = measure_case(case, job.settings, job.seconds / len(job.cases))
        report.notes = [*lacking, *job.settings.compiler.notes()]
        output.rows(report.add(group))


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread, as ours does: several stall where cores are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
