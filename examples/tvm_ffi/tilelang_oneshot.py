"""An all-reduce of bfloat16 in TileLang: compiled ahead of time, without a GPU, and run where only tvm-ffi is.

TileLang 0.1.12 wants an older tvm-ffi than commlib, so it compiles in an environment of its own, with nvcc on PATH:

    pip install torch tilelang==0.1.12 && pip install --no-deps .  # of this checkout
    python examples/tvm_ffi/tilelang_oneshot.py  # writes tilelang_lib/: the function, and the runtime that it needs
    COMMLIB_PLUGINS=examples/tvm_ffi/tilelang_oneshot.py commlib test --quick --op all_reduce

One exchange, as in nccl_ffi_oneshot.cu: push my piece into every peer's room | signal | wait | add all in rank order.
"""

import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from commlib.collectives import Algorithm

NAME = "nccl_tilelang_oneshot"
HERE = Path(__file__).resolve().parent
LIBRARIES = HERE / "tilelang_lib"
BLOCKS, THREADS, MAX_RANKS = 32, 512, 8
SLOT = 8192  # elements of a slot; BLOCKS × MAX_RANKS × 2 of them are 8 MiB

# TileLang's own atomics reach as far as the GPU: signal() and wait() come from the header.
WORDS = """
#include <commlib/ffi.h>
__device__ __forceinline__ void set_word(int64_t word, int64_t step, int64_t* deadline) {
  commlib::ffi::signal((uint64_t*)word, step, (commlib::ffi::Deadline*)deadline);
}
__device__ __forceinline__ int wait_for(int64_t word, int64_t step, int peer, int64_t* deadline) {
  return commlib::ffi::wait((uint64_t*)word, step, peer, (commlib::ffi::Deadline*)deadline);
}
"""


def compile_library() -> None:
    """Write the library, and copy the runtime next to it."""
    import tilelang
    import tilelang.language as T

    count, ranks = T.dynamic("count", "int64"), T.dynamic("ranks", "int64")

    @T.macro
    def exchange(out, x, peers, signals, rank, size, calls, deadline, block, wide):
        """By `wide` elements, which one thread moves at a time."""
        tid = T.get_thread_binding()
        total = count // wide
        source = T.make_tensor_from_addr(T.address_of(x[0]), (total, wide), "bfloat16")
        target = T.make_tensor_from_addr(T.address_of(out[0]), (total, wide), "bfloat16")
        part, sums = T.alloc_local((wide,), "bfloat16"), T.alloc_local((wide,), "float32")
        # The same bytes on all ranks, also where their tensors are aligned otherwise.
        piece = T.min(SLOT, T.max(512, T.ceildiv(count, BLOCKS * 8) * 8)) // wide
        step = T.alloc_var("int64", init=calls[block])
        first = T.alloc_var("int64", init=block * piece)
        came = T.alloc_var("int32", init=1)
        while first < total:
            step += 1
            slots = step % 2 * size  # of this half
            steps = T.ceildiv(T.min(piece, total - first) - tid, THREADS)
            for r in T.serial(size):
                if r != rank:
                    to = peers[r] + ((slots + rank) * BLOCKS + block) * SLOT * 2
                    slot = T.make_tensor_from_addr(to, (SLOT // wide, wide), "bfloat16")
                    for i in T.serial(steps):
                        for v in T.vectorized(wide):
                            slot[i * THREADS + tid, v] = source[first + i * THREADS + tid, v]
            T.sync_threads()
            if tid < size and tid != rank:
                mine, theirs = (block * MAX_RANKS + rank) * 8, (block * MAX_RANKS + tid) * 8
                T.call_extern("handle", "set_word", signals[tid] + mine, step, T.address_of(deadline[0]))
                came = T.call_extern("int32", "wait_for", signals[rank] + theirs, step, tid, T.address_of(deadline[0]))
            if T.syncthreads_and(came) == 0:
                T.loop_break()
            for i in T.serial(steps):
                at = i * THREADS + tid
                for r in T.serial(size):
                    if r == rank:
                        for v in T.vectorized(wide):
                            part[v] = source[first + at, v]
                    else:
                        place = peers[rank] + ((slots + r) * BLOCKS + block) * SLOT * 2
                        slot = T.make_tensor_from_addr(place, (SLOT // wide, wide), "bfloat16")
                        for v in T.vectorized(wide):
                            part[v] = slot[at, v]
                    for v in T.unroll(wide):
                        value = T.cast(part[v], "float32")
                        sums[v] = T.if_then_else(r == 0, value, sums[v] + value)
                for v in T.vectorized(wide):
                    part[v] = T.cast(sums[v], "bfloat16")
                for v in T.vectorized(wide):
                    target[first + at, v] = part[v]
            first += BLOCKS * piece
        if tid == 0:
            calls[block] = step

    @T.prim_func
    def oneshot(
        out: T.Tensor((count,), "bfloat16"),
        x: T.Tensor((count,), "bfloat16"),
        peers: T.Tensor((ranks,), "int64"),
        signals: T.Tensor((ranks,), "int64"),
        rank: T.int64,
        size: T.int64,
        calls: T.Tensor((1024,), "int64"),
        deadline: T.Tensor((5,), "int64"),
    ):
        with T.Kernel(BLOCKS, threads=THREADS) as block:
            T.import_source(WORDS)
            T.annotate_restrict_buffers(out, x)  # they may be the same memory
            places = T.reinterpret("uint64", T.address_of(x[0])) | T.reinterpret("uint64", T.address_of(out[0]))
            if T.bitwise_and(places, T.uint64(15)) == 0 and count % 8 == 0:
                exchange(out, x, peers, signals, rank, size, calls, deadline, block, 8)
            else:
                exchange(out, x, peers, signals, rank, size, calls, deadline, block, 1)

    tilelang.disable_cache()  # what comes from it cannot be exported
    kernel = tilelang.compile(
        oneshot.with_attr("global_symbol", NAME),
        target={"kind": "cuda", "arch": "sm_90a"},
        execution_backend="tvm_ffi",
        compile_flags=[f"-I{HERE.parents[1] / 'csrc' / 'include'}"],
        pass_configs={tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True},  # loops end where tensors do
    )
    kernel.export_library(str(LIBRARIES / f"{NAME}.so"))
    for name in ("libtvm_runtime", "libstub_cuda", "libstub_cudart", "libstub_hip"):
        shutil.copy(Path(tilelang.__file__).parent / "lib" / f"{name}.so", LIBRARIES)


def load() -> Any:
    """Load the library, after TVM's runtime: lazily, as that names a function which our tvm-ffi does not have."""
    import tvm_ffi

    ctypes.CDLL(str(LIBRARIES / "libtvm_runtime.so"), os.RTLD_LAZY | os.RTLD_GLOBAL)
    return tvm_ffi.load_module(str(LIBRARIES / f"{NAME}.so"))[NAME]


def refuses(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Say what the function does not do; a plan then runs something else."""
    return None if redop == "sum" and dtype == torch.bfloat16 else "it only sums bfloat16"


ALGORITHMS = {"all_reduce": [Algorithm(NAME, "nccl", function=load, room_bytes=8 << 20, refuses=refuses)]}

if __name__ == "__main__":
    compile_library()
