"""send and recv: a tensor from one rank to another, in the order of the pair's calls; send_recv: both at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from commlib.backends.torch_dist import TorchBackend, as_bytes
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective
from commlib.collectives.torch_calls import refuses_lonely

Message: TypeAlias = "torch.Tensor | None"


def torch_direct(backend: TorchBackend, x: Message, dst: int, out: Message, src: int) -> None:
    """Call the process group's send, its recv, or both at once; None: not that one."""
    messages: list[tuple[Callable[[], Any], str]] = []
    if x is not None:
        messages.append((partial(backend.group.send, [as_bytes(x)], dst, 0), f"send to rank {dst}"))
    if out is not None:
        messages.append((partial(backend.group.recv, [as_bytes(out)], src, 0), f"recv from rank {src}"))
    backend.at_once(messages)


SEND_RECV = Collective(
    name="send_recv",
    reference=lambda call, inputs, fold: inputs[(call.rank - 1) % call.size],
    # Sends to the next rank and receives from the one before: the ring of nccl-tests' sendrecv.
    invoke=lambda comm, x, out, call: comm.send_recv(x, (call.rank + 1) % call.size, out, (call.rank - 1) % call.size),
    has_in_place=False,
    bus_factor=lambda n: 1.0,
    algorithms=(
        Algorithm("shm_mailbox", "shm", params=(rows.PULL,), variants=rows.pulled),
        Algorithm("nccl_direct", "nccl", refuses=refuses_lonely),
        rows.MESSAGES,
        Algorithm("torch_direct", "torch", run=torch_direct, refuses=refuses_lonely),
    ),
)
