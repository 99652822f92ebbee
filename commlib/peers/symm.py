"""torch's own all-reduces on its symmetric memory: one shot out of place, two shots in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from commlib.errors import Unsupported
from commlib.peers.peer import Peer, refusing
from commlib.peers.torch import join_default_group
from commlib.timing import Candidate, Prepare, Run, plain_on

if TYPE_CHECKING:
    from commlib.collectives import Call, Collective
    from commlib.communicator import Communicator

DTYPES = (torch.float32, torch.bfloat16)  # what its kernels add


class Symm(Peer):
    """Kernels of torch.ops.symm_mem in torch's default process group; tensors are registered by all ranks together."""

    name = "symm"
    labels = ("symm_oneshot", "symm_twoshot")

    def lacks(self, comm: Communicator) -> str:
        """Say what is missing for symmetric memory of torch's."""
        if comm.device.type != "cuda":
            return f"torch's symmetric memory is on GPUs; this job is on {comm.device.type}"
        return "" if hasattr(torch.ops.symm_mem, "one_shot_all_reduce_out") else "this torch has no one-shot all_reduce"

    def join(self, comm: Communicator) -> None:
        """Make the process group, and the collective that symmetric memory wants before it."""
        self._device = comm.device
        join_default_group(comm)
        dist.all_reduce(torch.ones(1, device=comm.device))

    def candidates(self, comm: Communicator, collective: Collective, in_place: bool) -> list[Candidate]:
        """Return both, each for the one form that it has."""
        if collective.name != "all_reduce":
            reason = f"torch.ops.symm_mem has no {collective.name} to compare with"
            return [Candidate(label, refusing(reason), in_place) for label in self.labels]
        one_shot = refusing("it works out of place only") if in_place else _ready(_one_shot)
        two_shot = _ready(_two_shot) if in_place else refusing("it works in place only")
        empties = (plain_on(comm.device), self._empty) if in_place else (self._empty, plain_on(comm.device))
        return [
            Candidate(label, prepare, in_place, empty)
            for label, prepare, empty in zip(self.labels, (one_shot, two_shot), empties, strict=True)
        ]

    def stop(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        import torch.distributed._symmetric_memory as symm_mem

        tensor = symm_mem.empty(elements, dtype=dtype, device=self._device)
        symm_mem.rendezvous(tensor, _group())
        return tensor


def make() -> Symm:
    """Make the peer."""
    return Symm()


def _group() -> Any:
    return dist.group.WORLD.group_name  # type: ignore[union-attr]  # join() made it


def _ready(way: Callable[[torch.Tensor, torch.Tensor, Any], Run]) -> Prepare:
    def prepare(x: torch.Tensor, out: torch.Tensor, call: Call) -> Run:
        if call.dtype not in DTYPES or call.redop != "sum":
            raise Unsupported("torch's symmetric memory adds float32 and bfloat16 only")
        return way(x, out, _group())

    return prepare


def _one_shot(x: torch.Tensor, out: torch.Tensor, group: Any) -> Run:
    return partial(_ops().one_shot_all_reduce_out, x, "sum", group, out)


def _two_shot(x: torch.Tensor, out: torch.Tensor, group: Any) -> Run:
    return partial(_ops().two_shot_all_reduce_, x, "sum", group)


def _ops() -> Any:
    return torch.ops.symm_mem
