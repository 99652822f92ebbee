"""barrier: nobody leaves before everybody came."""

from __future__ import annotations

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.params import PACKETS
from commlib.collectives.spec import Algorithm, Collective


def torch_direct(backend: TorchBackend) -> None:
    """Call the process group's barrier."""
    backend.wait(backend.group.barrier(), "barrier")


BARRIER = Collective(
    name="barrier",
    shapes=lambda call: (0, 0),
    reference=lambda call, inputs, fold: None,
    invoke=lambda comm, x, out, call: comm.barrier(),
    size_count=lambda call: 0,
    bus_factor=lambda n: 0.0,
    algorithms=(
        Algorithm("shm_oneshot", "shm"),
        Algorithm("nccl_direct", "nccl"),
        Algorithm("lsa_ll_exchange", "nccl", kernel="barrier", params=PACKETS),
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)
