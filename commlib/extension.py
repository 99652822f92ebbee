"""Functions of the native library that Python calls without tvm-ffi, where a call must cost next to nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from commlib import env, native
from commlib.errors import Unsupported


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions of csrc/binding/extension.cc by name; they take positional arguments only."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        raise Unsupported(f"torch {torch.__version__} has no C interface for tensors; install 2.11 or later")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # A PyDLL keeps the interpreter's lock through the call, which makes Python objects.
    entry = ctypes.PyDLL(native.library_path()).commlib_extension
    entry.restype, entry.argtypes = ctypes.py_object, [ctypes.c_void_p, *[ctypes.py_object] * 2, ctypes.c_char_p]
    try:
        made: dict[str, Callable[..., Any]] = entry(
            pointer(capsule, b"dlpack_exchange_api"), torch.Tensor, torch.nn.Parameter, env.ISA.get().encode()
        )
    except ValueError as error:
        raise Unsupported(f"the native library does not work in this process: {error}") from None
    return made


def direct(name: str) -> Callable[..., Any]:
    """Return a function that native code has registered for tvm-ffi; it takes positional arguments only."""
    native.load()
    function: Callable[..., Any] = functions()["direct"](name)
    return function
