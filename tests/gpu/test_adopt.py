"""A communicator of NCCL's that the program has already: commlib runs on it and leaves its end to the program."""

import pytest
import torch

from commlib.communicator import Communicator, create
from commlib.tools.testing import Ranks
from tests.gpu.fresh import Borrowed


def run_on_given(comm: Communicator, as_address: bool) -> tuple[float, float]:
    control = comm.resources.control  # the live communicator's own plays the program's
    given = control.ptr if as_address else control._communicator
    made = create(Borrowed(comm.world), backend=given, timeout_s=30.0, max_bytes=1 << 20)
    total = float(made.all_reduce(torch.full((5000,), made.rank + 1.0, device=made.device))[4999])
    made.close()
    return total, float(comm.all_reduce(torch.ones(1, device=comm.device)))


@pytest.mark.parametrize("as_address", [False, True], ids=["nccl4py's", "address"])
def test_a_given_communicator_is_used_and_lives_on(nccl_ranks: Ranks, as_address: bool) -> None:
    n = nccl_ranks.size
    assert set(nccl_ranks.run(run_on_given, as_address)) == {(n * (n + 1) / 2, float(n))}
