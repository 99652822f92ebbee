"""Peers of the kernels for `commlib bench index|store --peer`: mini-sglang's, and a probe of what latency allows.

    PYTHONPATH=DIR commlib bench index --sweep --peer benchmarks/kernel_peers.py

DIR holds mini-sglang's package `minisgl`; its kernels are built by nvcc when first called, and left out where they
cannot be. The probe is a kernel of one warp with the two dependent reads that a gather cannot avoid, launched as ours
are: nobody who reads an id and then its row is faster, whatever the row's size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from cuda.bindings import driver

from commlib.build.device_code import compiler
from commlib.errors import one_line

Call = Callable[[], object]

_PROBE = r"""
extern "C" __global__ void probe(const long long* ids, const char* from, long long row, char* to, long long to_row) {
  asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory");
  const long long id = ids[0];
  const ulonglong2 word = *reinterpret_cast<const ulonglong2*>(from + (row ? id * row : 0) + threadIdx.x % 8 * 16);
  *reinterpret_cast<ulonglong2*>(to + (to_row ? id * to_row : 0) + threadIdx.x % 8 * 16) = word;
}
"""


def candidates(kernel: str, case: Any, inputs: Any) -> dict[str, Call | str]:
    """Return the calls that a kernel is measured next to."""
    if kernel == "index":
        options = {"output": inputs.out, "vocab_range": inputs.vocab_range}
        gather = _upstream("index", "indexing", inputs.weights, inputs.ids, **options)
        return {"mini-sglang": gather, "probe": _probe_gather(inputs)}
    if kernel == "store":
        tensors = (inputs.k_cache, inputs.v_cache, inputs.slots, inputs.k, inputs.v)
        scatter = "no 8-bit floats" if case.variant else _upstream("store", "store_cache", *tensors)
        return {"mini-sglang": scatter, "probe": _probe_scatter(inputs)}
    return {}


def _upstream(module: str, function: str, *tensors: torch.Tensor, **options: Any) -> Call | str:
    """Return a call of mini-sglang's that works here, or why there is none."""
    try:
        call = partial(getattr(import_module(f"minisgl.kernel.{module}"), function), *tensors, **options)
        call()
    except Exception as error:
        return one_line(error)
    return call


def _probe_gather(inputs: Any) -> Call:
    first = inputs.ids - inputs.start  # masked ids may name no row here: the probe reads one that is
    ids = torch.where((first >= 0) & (first < inputs.length), first, 0)
    row = inputs.weights.stride(0) * inputs.weights.itemsize
    return lambda: _launch(ids, inputs.weights, row, inputs.out, 0)


def _probe_scatter(inputs: Any) -> Call:
    row = inputs.k_cache.stride(0) * inputs.k_cache.itemsize
    return lambda: _launch(inputs.slots, inputs.k, 0, inputs.k_cache, row)


def _launch(ids: torch.Tensor, source: torch.Tensor, row: int, target: torch.Tensor, to_row: int) -> None:
    values = (ids.data_ptr(), source.data_ptr(), row, target.data_ptr(), to_row)
    early = driver.CUlaunchAttribute()
    early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream = torch.cuda.current_stream().cuda_stream
    config.attrs, config.numAttrs = [early], 1
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    (status,) = driver.cuLaunchKernelEx(config, _function(), (values, types), 0)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuLaunchKernelEx: {status.name}")


@cache
def _function() -> Any:
    major, minor = torch.cuda.get_device_capability()
    code, log = compiler().run(_PROBE, ["--std=c++17", f"--gpu-architecture=sm_{major}{minor}"])
    if not code:
        raise RuntimeError(log)
    status, module = driver.cuModuleLoadData(code)
    assert status == driver.CUresult.CUDA_SUCCESS, status.name
    status, function = driver.cuModuleGetFunction(module, b"probe")
    assert status == driver.CUresult.CUDA_SUCCESS, status.name
    return function
