"""`DistributedTest`, which ships whole: decorators see the gate's name, init_process_group and bodies the backend's."""

import os

from tests.torch_suite.forked_ranks import ForkedRanks
from tests.torch_suite.setting import BACKEND, GATE, RANKS, Served

os.environ["BACKEND"] = GATE  # for the decorators, which read it when the module is imported
os.environ["INIT_METHOD"] = "file://"  # likewise
from torch.testing._internal.distributed import distributed_test

distributed_test.BACKEND = Served(BACKEND)
if GATE != "nccl":  # the only name that bodies look for here
    # skip_if_small_worldsize asks for 8 ranks, save with MPI; its tests need three.
    os.environ["BACKEND"] = "mpi" if RANKS > 2 else "gloo"


class Distributed(ForkedRanks, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, *args, **kwargs):
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]  # the file of this test
        super()._run(*args, **kwargs)
