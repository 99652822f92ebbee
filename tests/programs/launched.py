"""Start a program on live ranks as torchrun would: its rank and the address of the others are in the environment."""

import contextlib
import random
import socket
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commlib.communicator import Communicator
from commlib.tools.testing import Ranks


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test where a package of the extra `programs` is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}, of the extra `programs`")


def launched(comm: Communicator, program: Callable[..., Any], backend: str, *args: Any) -> Any:
    """Do on this rank what each program does first and last, and between run program(device, *args)."""
    port = comm.broadcast_object(free_port() if comm.rank == 0 else None, 0)
    variables = {"RANK": comm.rank, "LOCAL_RANK": comm.rank, "WORLD_SIZE": comm.size, "MASTER_PORT": port}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        for name, value in variables.items():
            patch.setenv(name, str(value))
        if comm.device.type == "cuda":
            torch.cuda.set_device(comm.device)
        dist.init_process_group(backend)
        assert dist.get_backend() == backend
        torch.manual_seed(0)  # all ranks begin with one model
        result = program(comm.device, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
    return result


def both(
    ranks: Ranks, world: int, names: tuple[str, str], program: Callable[..., Any], *args: Any
) -> tuple[list[Any], list[Any]]:
    """Run a program with either backend; return what each rank gave."""
    ours, theirs = (ranks.run(launched, program, name, *args, world=world) for name in names)
    return ours, theirs


def same(ours: Any, theirs: Any, tolerance: float = 0.0) -> None:
    """Compare every number; without a tolerance every bit."""
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=tolerance)


def free_port() -> int:
    """Return a port that is free and stays so: sockets that ask for any get those from 32768 on."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
