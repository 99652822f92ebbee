"""Matrix products that leave some of a GPU's multiprocessors to calls that run at the same time."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from commlib.errors import Unsupported


@contextmanager
def leaving(multiprocessors: int) -> Iterator[None]:
    """Have this thread's cuBLAS plan products for a GPU with so many multiprocessors less; 0 changes nothing.

    Such a product otherwise takes the whole GPU until it ends, and a call that starts behind it waits for that.
    """
    if not multiprocessors:
        yield
        return
    there = torch.cuda.get_device_properties().multi_processor_count
    if multiprocessors >= there:
        raise ValueError(f"products cannot leave {multiprocessors} of the GPU's {there} multiprocessors; leave fewer")
    carveout = torch._C._get_sm_carveout_experimental()
    _plan_for(there - multiprocessors)
    try:
        torch._C._set_sm_carveout_experimental(multiprocessors)  # products with a bias are cuBLASLt's
        yield
    finally:
        torch._C._set_sm_carveout_experimental(carveout)
        _plan_for(0)


def _plan_for(multiprocessors: int) -> None:
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    if status := _cublas().cublasSetSmCountTarget(handle, ctypes.c_int(multiprocessors)):
        raise Unsupported(
            f"cublasSetSmCountTarget({multiprocessors}) failed with status {status}; use a Pipeline without max_sms"
        )


@cache
def _cublas() -> Any:
    """Return the library that torch has loaded."""
    loaded = re.search(r"\S*/libcublas\.so\S*", Path("/proc/self/maps").read_text(encoding="utf-8"))
    if loaded is None or not hasattr(library := ctypes.CDLL(loaded[0]), "cublasSetSmCountTarget"):
        raise Unsupported(
            "products cannot leave multiprocessors to calls: torch has no cuBLAS with cublasSetSmCountTarget (11.5 or "
            "later); use a Pipeline without max_sms"
        )
    return library
