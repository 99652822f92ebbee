"""Several ranks on one GPU, which NCCL refuses: commlib's kernels over memory that all ranks map.

`tests/gpu/one_gpu/run N COMMAND…` starts a command whose ranks, N at most, are all on GPU 0, with this as a plugin.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

from commlib.backends import nccl
from commlib.backends.nccl_control import capabilities
from commlib.bootstrap.world import World
from commlib.build.cache import cache_dir
from commlib.errors import Unsupported

RANKS = int(os.environ.get("RANKS_ON_ONE_GPU", "0"))  # 0: every rank has a GPU of its own
SOURCE = Path(__file__).with_name("nccl.cc")


def built() -> Path:
    """Return the library in NCCL's place."""
    path = cache_dir() / "one_gpu_nccl.so"
    if not path.exists() or path.stat().st_mtime < SOURCE.stat().st_mtime:
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_suffix(f".{os.getpid()}")
        flags = ("-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-x", "cu", "-o", mine)
        subprocess.run(["nvcc", *map(str, flags), str(SOURCE), "-lcuda"], check=True)
        mine.rename(path)
    return path


class OneGpu:
    """In the place of Control: a communicator whose ranks share a GPU."""

    def __init__(self, world: World, timeout_s: float) -> None:
        name = world.exchange(secrets.token_hex(8), timeout_s)[0]
        self.rank, self.size, self.library = world.rank, world.size, str(built())
        self._exports = ctypes.CDLL(self.library, use_errno=True)
        self._exports.one_gpu_open.restype = ctypes.c_void_p
        self.ptr = self._exports.one_gpu_open(world.rank, world.size, f"one_gpu/{name}".encode())
        if not self.ptr:
            raise OSError(ctypes.get_errno(), "one_gpu_open")
        world.all_gather(b"", timeout_s)
        version = ctypes.c_int()
        self._exports.ncclGetVersion(ctypes.byref(version))
        self.version = version.value

    @classmethod
    def create(cls, world: World, timeout_s: float, max_sms: int = 0) -> OneGpu:
        return cls(world, timeout_s)

    @classmethod
    def adopt(cls, source: Any) -> OneGpu:
        raise Unsupported("NCCL's communicators need a GPU for each rank")

    def features(self) -> dict[str, str]:
        return capabilities(self.version, lambda name: hasattr(self._exports, name))

    def destroy(self) -> bool:
        pointer, self.ptr = self.ptr, 0
        return not pointer or self._exports.ncclCommDestroy(ctypes.c_void_p(pointer)) == 0

    abort = destroy


# What makes this file a plugin, which every rank of a program loads before it makes a communicator.
ALGORITHMS: dict[str, Any] = {}
if RANKS:
    nccl.Control = OneGpu  # type: ignore[misc,assignment]
    nccl.require_distinct_gpus = lambda uuids: None
