"""What a call through tvm-ffi costs the host, next to ours: the thread's time on its core, medians of blocks.

One rank, so that nobody is waited for:

python benchmarks/ffi_calls.py -o ffi_calls.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import tvm_ffi.cpp
from written import command_line, head, write

import commlib
import commlib.ffi

BLOCKS, CALLS = 31, 20_000
HOST = """
#include <time.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>
using namespace tvm::ffi;
double now_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}
double block(String path, int64_t handle, TensorView x, int64_t calls) {
  const Function all_reduce = Module::LoadFromFile(path)->GetFunction("all_reduce").value();
  const double start = now_ns();
  for (int64_t i = 0; i < calls; ++i) all_reduce(handle, x);
  return (now_ns() - start) / calls;
}
"""


def block_of(call: Callable[[], object]) -> float:
    """Return the nanoseconds of a call."""
    start = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - start) / CALLS


def main() -> None:
    """Time the kinds of calls in turns."""
    options = command_line(__doc__).parse_args()
    host = tvm_ffi.cpp.load_inline("host", cpp_sources=HOST, functions="block").block
    mod = tvm_ffi.load_module(commlib.ffi.path())
    comm = commlib.init(backend="shm", bootstrap="single")
    handle, x, path = commlib.ffi.handle(comm), torch.ones(4), commlib.ffi.path()
    native, shared, view = comm.dispatcher.calls.all_reduce, mod.all_reduce, tvm_ffi.from_dlpack(x)

    def from_cpp(release: bool) -> float:
        host.release_gil = release
        return float(host(path, handle, x, CALLS))

    kinds: dict[str, Callable[[], float]] = {
        "Python, comm.all_reduce(x)": lambda: block_of(lambda: comm.all_reduce(x)),
        "Python, the native function under it": lambda: block_of(lambda: native(x, "sum", None)),
        "Python, tvm-ffi, a torch tensor": lambda: block_of(lambda: shared(handle, x)),
        "Python, tvm-ffi, a torch tensor and a name": lambda: block_of(lambda: shared(handle, x, "sum")),
        "Python, tvm-ffi, a tensor of tvm-ffi": lambda: block_of(lambda: shared(handle, view)),
        "C++, with the interpreter's lock": lambda: from_cpp(False),
        "C++, without it": lambda: from_cpp(True),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(BLOCKS):
        for name, measure in kinds.items():
            found[name].append(measure())
    for name, blocks in found.items():
        print(f"{name:44} {statistics.median(blocks):5.0f} ns  [{min(blocks):.0f}–{max(blocks):.0f}]")
    rows = [
        {"call": name, "median_ns": statistics.median(blocks), "low_ns": min(blocks), "high_ns": max(blocks)}
        for name, blocks in found.items()
    ]
    write(options.output, {**head("ffi_calls", 1, "shm"), "rows": rows})


if __name__ == "__main__":
    main()
