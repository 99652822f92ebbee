"""Which backend "auto" takes, by what the ranks say of their GPUs."""

import json
from unittest import mock

import pytest
import torch

from commlib import backends
from commlib.backends.base import Options
from commlib.backends.shm import ShmBackend
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


def test_the_mark_of_inner_calls_ends_with_the_outermost_block_also_after_an_error():
    backend = ShmBackend.__new__(ShmBackend)
    backend._group = group = mock.Mock()
    for _ in range(2):
        with pytest.raises(KeyError), backend.inner():
            with backend.inner():
                pass
            raise KeyError
    assert [call.args[0] for call in group.set_inner.call_args_list] == [True, True, True, False] * 2
    with backend.inner():
        backend.close()  # as a hook may
