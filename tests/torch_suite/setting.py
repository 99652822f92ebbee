"""What a run is told through its environment: every process of it, forked or not, imports this."""

import os

BACKEND = os.environ["TORCH_SUITE_BACKEND"]  # the name that init_process_group gets
GATE = os.environ["TORCH_SUITE_GATE"]  # the backend whose name decides which tests run
DEVICE = os.environ["TORCH_SUITE_DEVICE"]  # "cpu" or "cuda"
RANKS = int(os.environ["WORLD_SIZE"])
DEADLINE_S = int(os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"])  # PyTorch's own variable


def touch_device() -> None:
    """Use the device once: the first forked process does, to find out whether forked ranks can."""
    if DEVICE == "cuda":
        import torch

        torch.ones(1, device=DEVICE)


class Served(str):
    """The backend's name, which also equals the gate's: `BACKEND == "gloo"` in a test's body stays true."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in {str(self), GATE}

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return BACKEND
