"""barrier: nobody leaves before everybody came."""

from __future__ import annotations

import torch
from torch.distributed import BarrierOptions

from commlib.backends.torch_dist import TorchBackend
from commlib.collectives.hier_calls import doubling, gather, hosts_of
from commlib.collectives.params import PACKETS
from commlib.collectives.spec import Algorithm, Collective


def torch_direct(backend: TorchBackend) -> None:
    """Call the process group's barrier."""
    options = backend.options(BarrierOptions())
    if backend.device.type == "cuda":
        options.device_ids = [backend.device.index]
    backend.wait(backend.group.barrier(options), "barrier")


def hier_oneshot(backend: TorchBackend) -> None:
    """Wait for the ranks of this host, then for one of each other host, and let those of this host go."""
    hosts = hosts_of(backend)
    hosts.calls.barrier()
    if hosts.local == 0:
        gather(backend, torch.zeros(1, dtype=torch.uint8), [members[0] for members in hosts.ranks], "barrier")
    hosts.calls.barrier()


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
        Algorithm(
            "hier_oneshot",
            "torch",
            hosts=True,
            run=hier_oneshot,
            link=lambda hosts, _: doubling(hosts, 1),
        ),
    ),
)
