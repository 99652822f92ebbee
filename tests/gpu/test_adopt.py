"""A communicator of NCCL's that the program has already: commlib runs on it and leaves its end to the program."""

import pytest
import torch

from commlib.communicator import Communicator, create
from tests.gpu.fresh import Borrowed
from tests.gpu.on_ranks import on_every_rank


@pytest.mark.parametrize("as_address", [False, True], ids=["nccl4py's", "address"])
@on_every_rank
def test_a_given_communicator_is_used_and_lives_on(comm: Communicator, as_address: bool) -> None:
    control = comm.resources.control  # the live communicator's own plays the program's
    given = control.ptr if as_address else control._communicator
    made = create(Borrowed(comm.world), backend=given, timeout_s=30.0, max_bytes=1 << 20)
    total = float(made.all_reduce(torch.full((5000,), made.rank + 1.0, device=made.device))[4999])
    made.close()
    assert total == comm.size * (comm.size + 1) / 2
    assert float(comm.all_reduce(torch.ones(1, device=comm.device))) == comm.size
