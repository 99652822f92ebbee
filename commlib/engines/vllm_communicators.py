"""CpuCommunicator: vLLM's communicator of a CPU group, on commlib's shared memory. Imported by vLLM."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from vllm.distributed.device_communicators import cpu_communicator

from commlib.engines.custom_all_reduce import CustomAllReduce


class CpuCommunicator(cpu_communicator.CpuCommunicator):
    """vLLM's class; groups of tensor parallelism call commlib, and others vLLM's code."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: CustomAllReduce | None = None
        if self.world_size > 1 and self.unique_name.split(":")[0] == "tp":
            self.calls = CustomAllReduce(self.cpu_group, self.device, name=f"vLLM {self.unique_name}")

    def all_reduce(self, input_: Tensor) -> Tensor:
        """Sum a tensor in place, as vLLM's does; a tensor that is not served goes vLLM's way."""
        if self.calls is None or self.calls.comm is None or not self.calls.should_custom_ar(input_):
            return cast("Tensor", super().all_reduce(input_))
        return self.calls.comm.all_reduce(input_)

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        rows = input_.movedim(dim, 0).contiguous()
        whole = None if self.calls is None else self.calls.custom_all_gather(rows)
        return super().all_gather(input_, dim) if whole is None else whole.movedim(0, dim).contiguous()

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        rows = input_.movedim(dim, 0).contiguous()
        part = None if self.calls is None else self.calls.custom_reduce_scatter(rows)
        return super().reduce_scatter(input_, dim) if part is None else part.movedim(0, dim).contiguous()

    def gather(self, input_: Tensor, dst: int = 0, dim: int = -1) -> Tensor | None:
        """Return all ranks' tensors along a dimension on rank `dst` of the group, None on the others."""
        if self.calls is None or self.calls.comm is None:
            return cast("Tensor | None", super().gather(input_, dst, dim))
        parts = self.calls.comm.gather(input_.contiguous(), dst)
        return None if parts is None else torch.cat(parts.unbind(), dim)

    def suspend(self) -> None:
        """Refuse: commlib's memory stays mapped as long as its communicator lives."""
        raise NotImplementedError(
            "commlib cannot give its memory back and keep its graphs; restart the server without COMMLIB_ENGINES=vllm"
        )

    resume = suspend

    def destroy(self) -> None:
        if self.calls is not None:
            self.calls.close()
        super().destroy()
