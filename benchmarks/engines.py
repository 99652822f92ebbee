"""What copy engines reach between two GPUs, without any library: the bound of `engine_pull`.

python benchmarks/engines.py -o engines.json

One process drives two GPUs. Each reads from the other, or writes to it, one alone or both at once, with one copy or two
halves side by side; "own" also copies as much inside each GPU, as an all_gather out of place does.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from written import command_line, head, write

SIZES = (8 << 20, 32 << 20, 128 << 20, 256 << 20)
COPIES, BLOCKS = 10, 9
Copy = tuple[torch.cuda.Stream, int, int, int]  # on it: to, from, bytes


class Pair:
    """A tensor to read and one to write on each of two GPUs, and streams."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.tensors = [
            [torch.ones(num_bytes, dtype=torch.uint8, device=f"cuda:{gpu}") for _ in range(3)] for gpu in range(2)
        ]
        for gpu in range(2):  # torch lets the GPUs reach each other with its first copy
            self.tensors[gpu][1].copy_(self.tensors[1 - gpu][0])
        self.streams = [[torch.cuda.Stream(gpu) for _ in range(3)] for gpu in range(2)]
        self._copy = ctypes.CDLL("libcuda.so.1").cuMemcpyAsync

    def copies(self, gpu: int, writes: bool, parts: int, own: bool) -> Iterator[Copy]:
        """Yield what a GPU does: copies over the link in parts, and one inside."""
        source, to, inside = (x.data_ptr() for x in self.tensors[gpu])
        there = self.tensors[1 - gpu]
        part = self.num_bytes // parts
        for at in range(parts):
            ends = (there[1].data_ptr(), source) if writes else (to, there[0].data_ptr())
            yield self.streams[gpu][at], ends[0] + at * part, ends[1] + at * part, part
        if own:
            yield self.streams[gpu][2], inside, source, self.num_bytes

    def time_us(self, gpus: int, writes: bool, parts: int, own: bool) -> float:
        """Return what it takes, the median of blocks."""
        made = [(gpu, list(self.copies(gpu, writes, parts, own))) for gpu in range(gpus)]
        found = []
        for _ in range(BLOCKS + 1):
            self._wait()
            start = time.perf_counter()
            for _, (gpu, copies) in itertools.product(range(COPIES), made):
                with torch.cuda.device(gpu):
                    for stream, to, source, num_bytes in copies:
                        self._start(stream, to, source, num_bytes)
            self._wait()
            found.append((time.perf_counter() - start) / COPIES * 1e6)
        return statistics.median(found[1:])

    def _start(self, stream: torch.cuda.Stream, to: int, source: int, num_bytes: int) -> None:
        words = map(ctypes.c_uint64, (to, source, num_bytes, stream.cuda_stream))
        if (error := self._copy(*words)) != 0:
            raise RuntimeError(f"cuMemcpyAsync of {num_bytes} bytes: CUDA error {error}")

    @staticmethod
    def _wait() -> None:
        for gpu in range(2):
            torch.cuda.synchronize(gpu)


def main() -> int:
    """Print a line for each way and size."""
    options = command_line(__doc__).parse_args()
    if torch.cuda.device_count() < 2:
        print("engines.py needs two GPUs", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    for num_bytes in SIZES:
        pair = Pair(num_bytes)
        for writes, gpus, parts, own in itertools.product((False, True), (1, 2), (1, 2), (False, True)):
            us = pair.time_us(gpus, writes, parts, own)
            way = f"{'writes' if writes else 'reads'}, {gpus} GPU{'s' * (gpus > 1)}, parts {parts}{', own' * own}"
            rows.append({"bytes": num_bytes, "way": way, "us": us, "gb_per_s": num_bytes / us / 1e3})
            print(f"{num_bytes >> 20:5} MiB  {way:32} {us:8.1f} us {num_bytes / us / 1e3:6.0f} GB/s each way")
        del pair
    write(options.output, {**head("engines", 2), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
