"""The native library: the only module that imports tvm_ffi."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm_ffi.libinfo import load_lib_module

from commlib import env
from commlib.errors import KINDS, BuildFailed

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def load() -> None:
    """Load the library once; its objects and functions are then known by name."""
    for kind in KINDS:
        tvm_ffi.register_error(kind.__name__, kind)
    override = env.LIBRARY.get()
    try:
        if override:
            tvm_ffi.load_module(str(Path(override)))
        else:
            load_lib_module("commlib", "commlib")
    except (RuntimeError, ValueError, OSError) as error:
        raise BuildFailed(f"the native library is not there ({error}); run `pip install .` or `make setup`") from None


def open_shm(world: int, rank: int, arena_bytes: int, nonce: int, pid: int, fd: int) -> Any:
    """Return this rank's part of a shared segment (csrc/binding/shm_group.cc); pid 0 makes the memory."""
    load()
    return tvm_ffi.get_global_func("commlib.shm.open")(world, rank, arena_bytes, nonce, pid, fd)


def open_nccl(comm: int, rank: int, world: int, device: int, timeout_s: float, user_bytes: int) -> Any:
    """Return this rank's part of a group of GPUs (csrc/binding/nccl_group.cc) on the current CUDA device."""
    load()
    return tvm_ffi.get_global_func("commlib.nccl.open")(comm, rank, world, device, timeout_s, user_bytes)


def hint_nccl(path: str) -> None:
    """Say which libnccl to bind to, where the process has not loaded one yet."""
    load()
    tvm_ffi.get_global_func("commlib.nccl.hint")(path)


def library_path() -> str:
    """Return where the native library lies: torch's allocators are given by their file."""
    load()
    return str(tvm_ffi.get_global_func("commlib.library_path")())


def set_builder(build: Callable[[str, str, str], tuple[bytes, str]]) -> None:
    """Give native code the compiler: build(source, expression, arch) returns the cubin and the kernel's name in it."""
    load()
    tvm_ffi.get_global_func("commlib.kernels.set_builder")(build)


def keep_interpreter(function: Any) -> Callable[..., Any]:
    """Let a bound function enter with the interpreter's lock held: it gives the lock up itself when it waits."""
    function.release_gil = False
    return function  # type: ignore[no-any-return]
