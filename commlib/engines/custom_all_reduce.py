"""CustomAllReduce: the class that vLLM and SGLang ask whether it takes an all-reduce, and then call."""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

import commlib
from commlib.collectives.all_reduce_rms_norm import TYPES as NORM_TYPES
from commlib.communicator import Communicator

_LOG = logging.getLogger("commlib")
REDUCED_TYPES = (*NORM_TYPES, torch.float64, torch.int32, torch.int64)


class CustomAllReduce:
    """Calls of one group of an engine on a communicator; every call returns a new tensor.

    A call that the communicator does not serve (`should_...` is False) is left to the engine. Sums are made in rank
    order whatever the size, so a result does not depend on the batch.

    Attributes:
        disabled: True where this group stays on the engine's own path.
        batch_invariant: True; vLLM then sends all sizes.
        comm: The communicator, None where disabled.
    """

    batch_invariant = True

    def __init__(self, group: Any, device: Any, *, name: str = "all_reduce") -> None:
        """Join the ranks of a group; its ranks must all do so.

        Args:
            group: A torch process group of the ranks, of CPU tensors; it only finds the ranks.
            device: The device of the tensors: torch.device, text, or the number of a GPU.
            name: What the log calls this group.
        """
        self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        self.name = name
        self.comm = _communicator(group, self.device, self.name)
        self.disabled = self.comm is None
        self._asked = self._taken = 0

    def should_custom_ar(self, x: Tensor) -> bool:
        """Say whether the next all_reduce of `x` is taken; all ranks answer alike for tensors that are alike."""
        taken = self._serves(x, REDUCED_TYPES)
        self._asked += 1
        self._taken += taken
        if self._asked in (1, 10, 100) or self._asked % 1000 == 0:
            _LOG.info("%s: %d of %d all_reduce calls on commlib", self.name, self._taken, self._asked)
        return taken

    def custom_all_reduce(self, x: Tensor) -> Tensor | None:
        """Return the sum of all ranks' `x`; None: not served."""
        if self.comm is None or not self._serves(x, REDUCED_TYPES):
            return None
        return self.comm.all_reduce(x, out=torch.empty_like(x))

    def should_custom_all_gather(self, x: Tensor) -> bool:
        return x.dim() > 0 and self._serves(x)

    def custom_all_gather(self, x: Tensor) -> Tensor | None:
        """Return all ranks' `x` one behind the other along the first dimension; None: not served."""
        if self.comm is None or not self.should_custom_all_gather(x):
            return None
        out = x.new_empty(self.comm.size * x.shape[0], *x.shape[1:])
        return self.comm.all_gather_into_tensor(out, x)

    def should_custom_reduce_scatter(self, x: Tensor) -> bool:
        divides = self.comm is not None and x.dim() > 0 and x.shape[0] % self.comm.size == 0
        return divides and self._serves(x, REDUCED_TYPES)

    def custom_reduce_scatter(self, x: Tensor) -> Tensor | None:
        """Return this rank's part of the sum of all ranks' `x` along the first dimension; None: not served."""
        if self.comm is None or not self.should_custom_reduce_scatter(x):
            return None
        out = x.new_empty(x.shape[0] // self.comm.size, *x.shape[1:])
        return self.comm.reduce_scatter_tensor(out, x)

    def fused_allreduce_rmsnorm(
        self, input_: Tensor, residual: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor] | None:
        """Return the norm of (sum of all ranks' `input_` + residual) and that sum, in one kernel; None: not served."""
        rows = (input_,) if residual is None else (input_, residual)
        if self.comm is None or weight.dtype not in (input_.dtype, torch.float32):
            return None
        if not all(self._serves(each, NORM_TYPES) and each.dtype == input_.dtype for each in rows):
            return None
        y, total = (torch.empty_like(input_) for _ in range(2))
        self.comm.all_reduce_rms_norm(input_, residual, weight, eps, out=y, residual_out=total)
        return y, total

    capture = staticmethod(nullcontext)  # our calls need no preparation for a graph: no buffer is registered

    def close(self) -> None:
        comm, self.comm, self.disabled = self.comm, None, True
        if comm is not None:
            comm.close()

    def _serves(self, x: Tensor, types: tuple[torch.dtype, ...] = ()) -> bool:
        served = not self.disabled and x.device == self.device and x.is_contiguous()
        return served and (not types or x.dtype in types)


def _communicator(group: Any, device: torch.device, name: str) -> Communicator | None:
    """Return a communicator of a group's ranks; None, with a warning, where the engine's own path must serve it."""
    try:
        if torch.distributed.get_world_size(group) == 1:
            return None
        comm = commlib.init(bootstrap=group, backend="shm" if device.type == "cpu" else "nccl")
    except (commlib.CommError, ValueError, TypeError) as error:
        _LOG.warning("%s stays on the engine's own path: %s", name, error)
        return None
    together = comm.all_gather_object(comm.local_rank) == list(range(comm.size)) and comm.device == device
    if together and comm.resources.has_arena:
        _LOG.info("%s: %d ranks on commlib, backend %s, %s", name, comm.size, comm.backend, comm.device)
        return comm
    reason = "no symmetric memory" if together else f"its ranks are on several hosts, or not on {comm.device}"
    _LOG.warning("%s stays on the engine's own path: %s", name, reason)
    with suppress(commlib.CommError):
        comm.close()
    return None
