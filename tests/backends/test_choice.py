"""Which backend "auto" takes, by what the ranks say of their GPUs."""

import json

import pytest
import torch

from commlib import backends
from commlib.backends.base import Options
from commlib.bootstrap.world import SingleWorld

OPTIONS = Options(timeout_s=1.0, max_bytes=0, checked=False)


class Said(SingleWorld):
    """A world whose other rank has said what it sees."""

    size = 2

    def __init__(self, rank: int, other: list[str]) -> None:
        self.rank = self.local_rank = rank
        self._other = json.dumps(other).encode()

    def all_gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        return [data, self._other] if self.rank == 0 else [self._other, data]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("gpus", "visible", "other", "wanted"),
    [
        (1, "0", ["", "GPU 1"], ("nccl", "every rank has a GPU of its own")),
        (1, "0", ["", "GPU 0"], ("shm", "ranks 0 and 1 see one GPU between them")),
        (2, "", ["", ""], ("nccl", "every rank has a GPU of its own")),
        (2, "", ["rank x has no nccl4py", ""], ("shm", "rank x has no nccl4py")),
        (0, "", ["", ""], ("shm", "rank {} has no GPU of its own")),
    ],
)
def test_auto_takes_gpus_where_each_rank_has_its_own(monkeypatch, rank, gpus, visible, other, wanted):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(backends, "find_spec", lambda name: name)
    assert backends._best(Said(rank, other), OPTIONS) == (wanted[0], wanted[1].format(rank))
