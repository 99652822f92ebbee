"""send and recv: a tensor from one rank to another; pairs match in the order of their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.spec import Algorithm, Call, Collective
from commlib.collectives.torch_calls import as_bytes, refuses_lonely

if TYPE_CHECKING:
    from commlib.communicator import Communicator


def torch_direct(backend: TorchBackend, x: torch.Tensor, peer: int, sends: bool) -> None:
    """Call the process group's send or recv."""
    if sends:
        backend.wait(backend.group.send([as_bytes(x)], peer, 0), f"send to rank {peer}")
    else:
        backend.wait(backend.group.recv([as_bytes(x)], peer, 0), f"recv from rank {peer}")


def _pass_on(comm: Communicator, x: torch.Tensor, out: torch.Tensor, call: Call) -> None:
    """Send to the next rank and receive from the one before: the ring of nccl-tests' sendrecv."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank % 2 == 0:
        comm.send(x, after)
        comm.recv(out, before)
    else:
        comm.recv(out, before)
        comm.send(x, after)


SEND_RECV = Collective(
    name="send_recv",
    shapes=lambda call: (call.count, call.count),
    reference=lambda call, inputs, fold: inputs[(call.rank - 1) % call.size],
    invoke=_pass_on,
    size_count=lambda call: call.count,
    bus_factor=lambda n: 1.0,
    algorithms=(
        Algorithm("shm_mailbox", "shm"),
        Algorithm("nccl_direct", "nccl", refuses=refuses_lonely),
        Algorithm("torch_direct", "torch", run=torch_direct, refuses=refuses_lonely),
    ),
)
