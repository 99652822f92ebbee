"""torch's own all-reduces on its symmetric memory: one shot out of place, two shots in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from commlib.collectives import Call, Collective
from commlib.communicator import Communicator
from commlib.errors import Unsupported
from commlib.tools.baselines.peer import Peer
from commlib.tools.baselines.torch import join_default_group, leave_default_group
from commlib.tools.timing import Candidate, Run

DTYPES = (torch.float32, torch.bfloat16)  # what its kernels add


class Symm(Peer):
    """Kernels of torch.ops.symm_mem in torch's default process group; tensors are registered by all ranks together."""

    name = "symm"
    title = "torch symmetric memory"
    labels = ("symm_oneshot", "symm_twoshot")

    def lacks(self, comm: Communicator) -> str:
        if comm.device.type != "cuda":
            return f"torch's symmetric memory is on GPUs; this job is on {comm.device.type}"
        return "" if hasattr(torch.ops.symm_mem, "one_shot_all_reduce_out") else "this torch has no one-shot all_reduce"

    def join(self, comm: Communicator) -> None:
        self._device = comm.device
        join_default_group(comm)
        dist.all_reduce(torch.ones(1, device=comm.device))

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        if collective.name != "all_reduce":
            return self.refused(f"torch.ops.symm_mem has no {collective.name} to compare with", in_place)
        ways = self.refused(f"it works {'out of' if in_place else 'in'} place only", in_place)
        here = int(in_place)  # two shots, in place, is the second of the labels
        ways[here] = Candidate(self.labels[here], _prepare, in_place, self.empty)
        return ways

    def stop(self) -> None:
        leave_default_group()

    def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate symmetric memory, on all ranks together."""
        import torch.distributed._symmetric_memory as symm_mem

        tensor = symm_mem.empty(elements, dtype=dtype, device=self._device)
        symm_mem.rendezvous(tensor, group_name())
        return tensor


make = Symm


def _prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
    if call.dtype not in DTYPES or call.redop != "sum":
        raise Unsupported("torch's symmetric memory adds float32 and bfloat16 only")
    ops: Any = torch.ops.symm_mem
    if out is x:
        return partial(ops.two_shot_all_reduce_, x, "sum", group_name())
    return partial(ops.one_shot_all_reduce_out, x, "sum", group_name(), out)


def group_name() -> Any:
    return dist.group.WORLD.group_name  # type: ignore[union-attr]  # join() made it
