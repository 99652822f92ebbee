"""An all-reduce of one's own for each backend, as functions of tvm-ffi: `COMMLIB_PLUGINS=examples/tvm_ffi/oneshot.py`.

The kernels next to this file are compiled when a communicator is made; docs/tvm_ffi.md says what they get.
"""

from pathlib import Path
from typing import Any

import torch

from commlib.collectives import Algorithm

HERE = Path(__file__).resolve().parent


def shm() -> Any:
    """Compile the C++."""
    import tvm_ffi.cpp

    import commlib.ffi

    name, include = "shm_ffi_oneshot", [commlib.ffi.include()]
    code, flags = (HERE / f"{name}.cc").read_text(), ["-O3", "-march=native"]
    made = tvm_ffi.cpp.load_inline(
        name, cpp_sources=code, functions=name, extra_include_paths=include, extra_cflags=flags
    )
    return made[name]


def nccl() -> Any:
    """Compile the CUDA, which needs nvcc."""
    import tvm_ffi.cpp

    import commlib.ffi

    name, include = "nccl_ffi_oneshot", [commlib.ffi.include()]
    code = (HERE / f"{name}.cu").read_text()
    return tvm_ffi.cpp.load_inline(name, cuda_sources=code, functions=name, extra_include_paths=include)[name]


def refuses(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Say what the functions do not do; a plan then runs something else."""
    if redop == "sum" and dtype in (torch.float32, torch.bfloat16):
        return None
    return "it only sums float32 and bfloat16"


def refuses_shm(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Say the same of the C++."""
    return None if redop == "sum" and dtype == torch.float32 else "it only sums float32"


ALGORITHMS = {
    "all_reduce": [
        Algorithm("shm_ffi_oneshot", "shm", function=shm, room_bytes=4 << 20, refuses=refuses_shm),
        Algorithm("nccl_ffi_oneshot", "nccl", function=nccl, room_bytes=32 << 20, sms=128, refuses=refuses),
    ]
}
