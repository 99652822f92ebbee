"""The checks of `commlib doctor` that load heavy libraries; it runs them in processes of their own."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from commlib.cli.checks import LIBRARIES, Finding
from commlib.errors import CommError, one_line

if TYPE_CHECKING:
    from commlib.communicator import Communicator


def report() -> None:
    """Print one finding per line, each before the next is tried: what is not there is what crashed."""
    for topic, check in zip(LIBRARIES, (_torch, _native, _gpu, _nccl, _gpu_backend), strict=True):
        try:
            finding = check()
        except Exception as error:
            finding = Finding(topic, "broken", f"{type(error).__name__}: {error}", "reinstall it", True)
        print(json.dumps(asdict(finding)), flush=True)


def two_ranks() -> None:
    """Sum over two live ranks through shared memory and print what happened."""
    from commlib.testing import Ranks

    start = time.perf_counter()
    try:
        with Ranks(2, timeout_s=30.0, backend="shm") as ranks:
            totals = ranks.run(_sum_of_ranks)
    except Exception as error:
        sys.exit(one_line(error))
    if totals != [3.0, 3.0]:
        sys.exit(f"all_reduce gave {totals} where 1 + 2 on each rank was expected")
    print(f"started, summed over shared memory and closed in {time.perf_counter() - start:.1f} s")


def _sum_of_ranks(comm: Communicator) -> float:
    import torch

    x = torch.full((1000,), comm.rank + 1.0)
    comm.all_reduce(x)
    return float(x.mean())


def _torch() -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding("torch", "ok", f"{torch.__version__}, {build}", needed=True)


def _native() -> Finding:
    importlib.import_module("commlib.native")
    return Finding("native library", "ok", f"commlib {importlib.metadata.version('commlib')}", needed=True)


def _gpu() -> Finding:
    import torch

    if not Path("/dev/nvidiactl").exists():
        return Finding("gpu", "missing", "no NVIDIA driver; ranks use the CPU")
    if torch.version.cuda is None:
        return Finding("gpu", "broken", "a GPU, but torch is a CPU build", "launch/setup.sh --gpu")
    if not torch.cuda.is_available():
        return Finding("gpu", "broken", "torch finds no usable GPU", "compare nvidia-smi with torch's CUDA")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("gpu", "ok", f"{len(names)} × {names[0]}")


def _nccl() -> Finding:
    for path in _nccl_candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        code = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(code))
        major, minor, patch = code.value // 10000, code.value // 100 % 100, code.value % 100
        return Finding("nccl", "ok", f"{major}.{minor}.{patch} ({path})")
    return Finding("nccl", "missing", "no libnccl.so.2; only needed with GPUs", "CUDA torch brings it along")


def _gpu_backend() -> Finding:
    """What backend "nccl" needs beside a GPU and NCCL, and which of NCCL's features are off."""
    import torch

    from commlib import jit
    from commlib.backends.nccl_control import nccl4py_here

    if not torch.cuda.is_available():
        return Finding("gpu backend", "missing", "no GPU: ranks use shared memory")
    try:
        (version, features), compiler = nccl4py_here(), jit.compiler().name
    except CommError as error:
        return Finding("gpu backend", "broken", str(error), 'pip install "commlib[gpu]"')
    off = [f"{feature} ({reason})" for feature, reason in features.items() if reason]
    detail = f"nccl4py {version}, kernels by {compiler} into {jit.cache_dir()}"
    return Finding("gpu backend", "ok", detail, f"off: {'; '.join(off)}" if off else "")


def _nccl_candidates() -> Iterator[str]:
    for folder in sys.path:
        path = Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            yield str(path)
    yield "libnccl.so.2"
