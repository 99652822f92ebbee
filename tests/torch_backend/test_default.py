"""COMMLIB_TORCH_DEFAULT=1: a program that names no backend gets commlib; without it nothing changes."""

import subprocess
import sys
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from commlib import torch_backend
from commlib.communicator import Communicator
from commlib.torch_backend.group import CommlibGroup
from tests.on_ranks import on_ranks
from tests.torch_backend.cases import run_case, start

OURS = {"cpu": "commlib", "cuda": "commlib"}


@pytest.mark.parametrize(
    ("value", "other", "ours", "warning"),
    [
        ("", "nccl", [], ""),
        ("0", "nccl", [], ""),
        ("1", "nccl", ["cpu", "cuda"], ""),
        ("1", "without nccl4py", ["cpu"], "cuda stays 'nccl', as commlib needs nccl4py"),
        ("1", "mccl", ["cpu"], "cuda stays 'mccl'"),
        ("maybe", "nccl", [], "cpu:gloo, cuda:nccl: COMMLIB_TORCH_DEFAULT='maybe': expected 0 or 1"),
    ],
)
def test_the_variable_decides_and_a_mistake_is_a_warning(monkeypatch, caplog, value, other, ours, warning) -> None:
    monkeypatch.setenv("COMMLIB_TORCH_DEFAULT", value)
    monkeypatch.setattr(torch_backend, "find_spec", lambda name: None if other == "without nccl4py" else name)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    before = {"cpu": "gloo", "cuda": "mccl" if other == "mccl" else "nccl", "mps": "gloo"}
    defaults = dict(before)
    torch_backend._become_default(defaults)
    assert defaults == before | dict.fromkeys(ours, "commlib")
    assert warning in caplog.text
    assert len(caplog.records) == bool(warning)


PROGRAM = """
import sys, torch, torch.distributed as dist
print('COMMLIB' in dist.Backend._plugins, dist.Backend.backend_capability['commlib'])
print(*sorted(name for name in sys.modules if name.startswith('commlib.')))
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(2)
dist.all_reduce(x)
for name in ("all_gather_single", "reduce_scatter_single"):
    getattr(dist, name, lambda *_: None)(x, x + 1)
print(dist.get_backend_config())
import commlib.kernels
print('commlib.build.device_code' in sys.modules)  # else native code lacks the compiler, which shows only on GPUs
dist.destroy_process_group()
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the program's tensors are on the CPU")
@pytest.mark.parametrize(("value", "backend"), [("", "cpu:gloo"), ("1", "cpu:commlib")])
def test_a_program_without_a_backend_runs_unchanged_and_without_a_warning(value: str, backend: str) -> None:
    """And importing torch registers the backend and loads nothing more."""
    command = ["env", f"COMMLIB_TORCH_DEFAULT={value}", sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    registered = ["True ['cpu', 'cuda']", "commlib.env commlib.errors commlib.torch_backend commlib.version"]
    assert done.stdout.splitlines() == [*registered, backend, "True"]
    assert value or not done.stderr  # with it, a torch for CUDA may miss nccl4py


def test_torch_finds_the_backend_in_both_groups() -> None:
    for group in ("torch.backends", "torch.distributed.backends"):
        (entry,) = (entry for entry in entry_points(group=group) if entry.name == "commlib")
        assert entry.load() is torch_backend.register


@pytest.mark.parametrize("string", ["{cpu}", "cuda:{cuda},cpu:gloo"])
@on_ranks(3)
def test_a_trainer_that_asks_torch_for_its_default_trains(comm: Communicator, tmp_path: Path, string: str) -> None:
    """torchtitan/distributed: init_distributed, ParallelDims.build_mesh, clip_grad_norm_, set_pg_timeouts."""
    from torch.distributed.fsdp import fully_shard  # here, as it takes a second

    with mock.patch.dict(dist.Backend.default_device_backend_map, OURS) as defaults:
        start(comm, str(tmp_path / "store"), string.format(**defaults))
        mesh = init_device_mesh("cpu", (1, comm.size), mesh_dim_names=("pp", "fsdp"), backend_override={"pp": "fake"})
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=mesh["fsdp"])
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in (mesh["fsdp"].get_group(), dist.group.WORLD):
        assert isinstance(group, CommlibGroup)
        with pytest.warns(UserWarning, match="timeout of .* stays 0:"):
            group.set_timeout(timedelta(seconds=30))  # dist.set_timeout of torch 2.14
    dist.destroy_process_group()


MIXTURES = [("commlib", "cuda"), ("cpu:gloo,cuda:commlib", "cuda"), ("cpu:commlib,cuda:nccl", "cpu")]


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
@pytest.mark.parametrize(("backend", "kind"), MIXTURES)
@on_ranks(3)
def test_every_mixture_serves_its_calls_and_is_split(comm, tmp_path, backend, kind) -> None:
    """torch splits groups of GPUs only; here it takes this machine for one that has some."""
    start(comm, str(tmp_path / "store"), backend)
    for case in ("coalesced", "functional"):
        run_case(comm, case)
    dist.group.WORLD.bound_device_id = torch.device(kind, 0)
    accelerator = {"is_available": lambda: True, "current_accelerator": lambda *_, **__: torch.device(kind)}
    with mock.patch.multiple(torch.accelerator, **accelerator):
        pair = dist.split_group(split_ranks=[[0, 2]])
        groups = [(dist.split_group(split_ranks=[[0, 1, 2]], timeout=timedelta(seconds=30)), 3)]
        if comm.rank != 1:
            groups += [(pair, 2), (dist.split_group(pair, [[0], [1]]), 1)]
    for group, size in groups:
        x = torch.ones(5)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [size] * 5
        assert dist.get_backend_config(group) == dist.get_backend_config()
    dist.destroy_process_group()
