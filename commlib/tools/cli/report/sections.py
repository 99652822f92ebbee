"""SECTIONS: for each stage how its documents are read, what is written of one, and which calls it timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from commlib.tools.bench import rows as bench_rows
from commlib.tools.cli import plan as plan_command
from commlib.tools.cli import test as test_command
from commlib.tools.cli.doctor import command as doctor_command
from commlib.tools.cli.profile import attention as attention_command
from commlib.tools.cli.profile import comm as comm_command
from commlib.tools.cli.profile import comm_analysis as analysis_command
from commlib.tools.cli.profile import radix as radix_command
from commlib.tools.cli.profile import report as profile_command
from commlib.tools.cli.report import collectives, kernels, machine
from commlib.tools.cli.report.bottleneck import Call
from commlib.tools.report.document import Kind
from commlib.tools.report.page import Block

Document = dict[str, Any]


def _none(document: Document) -> Iterable[Call]:
    return ()


class Reader(NamedTuple):
    """How the documents of a stage are read."""

    kind: Kind
    blocks: Callable[[Document], list[Block]]
    calls: Callable[[Document], Iterable[Call]] = _none


_KERNEL = Reader(profile_command.KIND, kernels.kernel, kernels.kernel_calls)
_ATTENTION = Reader(attention_command.KIND, kernels.attention, kernels.attention_calls)
SECTIONS = {
    "environment": Reader(doctor_command.KIND, machine.environment),
    "correctness": Reader(test_command.KIND, machine.correctness),
    "index": _KERNEL,
    "store": _KERNEL,
    "metadata": _KERNEL,
    "radix": Reader(radix_command.KIND, kernels.radix, kernels.radix_calls),
    "attention": _ATTENTION,
    "prefill": _ATTENTION,
    "collectives": Reader(bench_rows.KIND, collectives.section, collectives.bench_calls),
    "comm": Reader(comm_command.KIND, collectives.one_call),
    "paths": Reader(analysis_command.KIND, collectives.paths),
    "plan": Reader(plan_command.KIND, machine.plan),
}
