"""An all-reduce of bfloat16 in CuTe DSL: compiled ahead of time, without a GPU, and run where only tvm-ffi is.

    pip install "nvidia-cutlass-dsl[cu13]>=4.8"
    CUTE_DSL_ARCH=sm_90a python examples/tvm_ffi/cute_oneshot.py  # writes nccl_cute_oneshot.so next to this file
    COMMLIB_PLUGINS=examples/tvm_ffi/cute_oneshot.py commlib test --quick --op all_reduce

One exchange, as in nccl_ffi_oneshot.cu: push my piece into every peer's room | signal | wait | add all in rank order.
"""

import subprocess
from pathlib import Path
from typing import Any

import torch

from commlib.collectives import Algorithm

NAME = "nccl_cute_oneshot"
LIBRARY = Path(__file__).resolve().with_name(f"{NAME}.so")
BLOCKS, THREADS, MAX_RANKS = 32, 512, 8
SLOT_BYTES = 16 << 10  # BLOCKS × MAX_RANKS × 2 of them are 8 MiB
POLLS_BETWEEN, ASK_NS = 64, 1_000_000  # between looks at the deadline, which lies in the host's memory

# The static library of the compiler's runtime lacks this one; the shared one has 43 MB.
RAISE = r"""
#include <stdio.h>
void CuteDSLRT_TVMFFISetRaisedCudaError(void (*raise)(const char*, const char**, int), int code) {
  char number[32];
  snprintf(number, sizeof(number), "%d", code);
  const char* parts[] = {"CUDA error ", number};
  raise("RuntimeError", parts, 2);
}
"""


def compile_library() -> None:
    """Write the library."""
    import cutlass
    from cutlass import BFloat16, Boolean, Int32, Int64, cute
    from cutlass.cute.runtime import find_runtime_libraries, make_fake_compact_tensor, make_fake_stream
    from cutlass.memory import SmemAllocator

    @cute.jit
    def word(address: Int64):
        return cute.make_ptr(Int64, address, cute.AddressSpace.gmem)

    @cute.jit
    def signal(address: Int64, step: Int64):
        cute.arch.fence_acq_rel_sys()
        cute.arch.store(word(address), step, sem="relaxed", scope="sys")

    @cute.jit
    def read(address: Int64):
        return cute.arch.load(word(address), Int64, sem="relaxed", scope="sys")

    @cute.jit
    def wait(address: Int64, step: Int64, peer: Int32, deadline: Int64):
        came, waits = Boolean(False), Boolean(True)
        polls, since, asked = Int32(0), Int64(0), Int64(0)
        while waits:
            polls += 1
            if cute.arch.load(word(address), Int64, sem="acquire", scope="sys") >= step:
                came, waits = Boolean(True), Boolean(False)
            elif polls % POLLS_BETWEEN == 0:
                now = Int64(cute.arch.globaltimer())
                if since == 0:
                    since = now
                if now - asked >= ASK_NS:
                    asked = now
                    if read(deadline) != 0 or read(deadline + 16) != 0:
                        waits = Boolean(False)
                    elif now - since >= read(deadline + 8):
                        cute.arch.store(word(deadline + 16), Int64(peer) + 1, sem="relaxed", scope="sys")
                        waits = Boolean(False)
        return came

    @cute.jit
    def pack(address: Int64, wide: cutlass.Constexpr):
        """`wide` elements that one thread moves at a time."""
        at = cute.make_ptr(BFloat16, address, cute.AddressSpace.gmem, assumed_align=2 * wide)
        return cute.make_tensor(at, cute.make_layout(wide))

    @cute.jit
    def slot(room: Int64, half: Int64, size: Int64, source: Int64, block: Int32):
        """In a room, what rank `source` pushes into this half."""
        return room + ((half * size + source) * BLOCKS + block) * SLOT_BYTES

    @cute.jit
    def exchange(out, x, peers, signals, rank, size, calls, deadline, wide: cutlass.Constexpr):
        tid, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        all_came = cute.make_tensor(SmemAllocator().allocate_array(Int32, 1), cute.make_layout(1))
        if tid == 0:
            all_came[0] = 1
        pack_bytes = 2 * wide
        num_bytes = 2 * Int64(cute.size(x))
        # A pack may be one element: pieces are the same on ranks whose tensors are aligned otherwise.
        piece = cutlass.min(SLOT_BYTES, cutlass.max(1024, (num_bytes + BLOCKS * 16 - 1) // (BLOCKS * 16) * 16))
        source, target = x.iterator.toint(), out.iterator.toint()
        room, mine, theirs = peers[rank], (block * MAX_RANKS + rank) * 8, (block * MAX_RANKS + tid) * 8
        step, first, going = calls[block], block * piece, Boolean(True)
        while going and first < num_bytes:
            step += 1
            begin, end = first + tid * pack_bytes, cutlass.min(first + piece, num_bytes)
            for r in range(size):
                if r != rank:
                    to = slot(peers[r], step % 2, size, rank, block) - first
                    for at in range(begin, end, THREADS * pack_bytes):
                        pack(to + at, wide).store(pack(source + at, wide).load())
            cute.arch.sync_threads()
            if tid < size and tid != rank:
                signal(signals[tid] + mine, step)
                if not wait(signals[rank] + theirs, step, tid, deadline):
                    all_came[0] = 0
            cute.arch.sync_threads()
            going = all_came[0] == 1
            if going:
                for at in range(begin, end, THREADS * pack_bytes):
                    place = slot(room, step % 2, size, Int64(0), block) + at - first
                    if rank == 0:
                        place = source + at
                    total = pack(place, wide).load().to(cutlass.Float32)
                    for r in range(1, size):
                        place = slot(room, step % 2, size, r, block) + at - first
                        if r == rank:
                            place = source + at
                        total = total + pack(place, wide).load().to(cutlass.Float32)
                    pack(target + at, wide).store(total.to(BFloat16))
            first += BLOCKS * piece
        if tid == 0:
            calls[block] = step

    @cute.kernel
    def oneshot(
        out: cute.Tensor,
        x: cute.Tensor,
        peers: cute.Tensor,
        signals: cute.Tensor,
        rank: Int64,
        size: Int64,
        calls: cute.Tensor,
        deadline: cute.Tensor,
    ):
        words = deadline.iterator.toint()
        if (out.iterator.toint() | x.iterator.toint()) % 16 == 0 and cute.size(x) % 8 == 0:
            exchange(out, x, peers, signals, rank, size, calls, words, 8)
        else:
            exchange(out, x, peers, signals, rank, size, calls, words, 1)

    @cute.jit
    def launch(
        out: cute.Tensor,
        x: cute.Tensor,
        peers: cute.Tensor,
        signals: cute.Tensor,
        rank: Int64,
        size: Int64,
        calls: cute.Tensor,
        deadline: cute.Tensor,
        stream,
    ):
        kernel = oneshot(out, x, peers, signals, rank, size, calls, deadline)
        kernel.launch(grid=[BLOCKS, 1, 1], block=[THREADS, 1, 1], stream=stream)

    tensor, count, ranks = make_fake_compact_tensor, cute.sym_int64(), cute.sym_int64()
    arguments = [
        *(tensor(BFloat16, (count,)) for _ in ("out", "x")),
        *(tensor(Int64, (ranks,)) for _ in ("peers", "signals")),
        *(Int64(0), Int64(2)),  # any rank and size
        *(tensor(Int64, (words,)) for words in (1024, 5)),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    ]
    compiled = cute.compile(launch, *arguments, options="--enable-tvm-ffi")
    code = LIBRARY.with_suffix(".o")
    compiled.export_to_c(str(code), NAME, export_only_tvm_ffi_symbols=True)
    runtime, ffi = (Path(path).parent for path in find_runtime_libraries())
    libraries = [runtime / "libcuda_dialect_runtime_static.a", f"-L{ffi}", "-ltvm_ffi", "-lcudart"]
    link = ["g++", "-shared", "-fPIC", "-o", LIBRARY, code, "-xc", "-", "-xnone", *libraries, "-L/usr/local/cuda/lib64"]
    subprocess.run(link, input=RAISE.encode(), check=True)
    code.unlink()


def load() -> Any:
    """Load the library."""
    import tvm_ffi

    return tvm_ffi.load_module(str(LIBRARY))[NAME]


def refuses(dtype: torch.dtype, redop: str, size: int) -> str | None:
    """Say what the function does not do; a plan then runs something else."""
    return None if redop == "sum" and dtype == torch.bfloat16 else "it only sums bfloat16"


ALGORITHMS = {"all_reduce": [Algorithm(NAME, "nccl", function=load, room_bytes=8 << 20, refuses=refuses)]}

if __name__ == "__main__":
    compile_library()
