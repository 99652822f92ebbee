"""barrier: nobody leaves before everybody came."""

from __future__ import annotations

from torch.distributed import BarrierOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives import rows
from commlib.collectives.spec import Algorithm, Collective


def torch_direct(backend: TorchBackend) -> None:
    options = backend.options(BarrierOptions())
    if backend.device.type == "cuda":
        options.device_ids = [backend.device.index]
    backend.wait(backend.group.barrier(options), "barrier")


BARRIER = Collective(
    name="barrier",
    shapes=lambda call: (0, 0),
    has_in_place=False,
    reference=lambda call, inputs, fold: None,
    invoke=lambda comm, x, out, call: comm.barrier(),
    bus_factor=lambda n: 0.0,
    algorithms=(
        Algorithm("shm_oneshot", "shm"),
        Algorithm("nccl_direct", "nccl"),
        Algorithm("lsa_ll_exchange", "nccl", kernel="barrier", params=rows.PACKETS),
        Algorithm("torch_direct", "torch", run=torch_direct),
    ),
)
