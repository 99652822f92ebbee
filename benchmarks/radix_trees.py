"""RadixCache next to radix trees in Python, on five traces, in one run: requests per second of each.

    python benchmarks/radix_trees.py --native build/radix_rates -o benchmarks/results/radix_trees_xeon.json
    python benchmarks/radix_trees.py --minisgl DIR    # DIR: python/ of a checkout of mini-sglang

A request is match with its slots, lock, evict what is short, insert, unlock. Prompts are converted to what each tree
takes before the clock starts, and their lengths are known, as they are to a scheduler. `--native` is
tests/native/radix_rates.cc: the same requests without Python.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from python_trees import GallopTree, ZipTree
from written import command_line, head, write

from commlib import RadixCache

Prompts = list[np.ndarray[Any, Any]]
Play = Callable[[], float]  # one pass over a trace, on a tree of its own; us of a request


class Blocks:
    """Runs of tokens with numbers of their own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._next = 0

    def __call__(self, count: int) -> np.ndarray[Any, Any]:
        """Return the next so many."""
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int32)


def groups(block: Blocks) -> Prompts:
    """10k prompts of 2048, of which 64 groups share 1024."""
    shared = [block(1024) for _ in range(64)]
    return [np.concatenate([block.random.choice(shared), block(1024)]) for _ in range(10_000)]


def multi_turn(block: Blocks) -> Prompts:
    """500 conversations of 20 turns of 100, below one system prompt of 512."""
    system = block(512)
    talks = [system] * 500
    order = [talk for talk in range(500) for _ in range(20)]
    block.random.shuffle(order)
    prompts = []
    for talk in order:
        talks[talk] = np.concatenate([talks[talk], block(100)])
        prompts.append(talks[talk])
    return prompts


def three_levels(block: Blocks) -> Prompts:
    """10k prompts of 2048 in a tree of 8 x 16 prefixes of 512 each."""
    tops = [block(512) for _ in range(8)]
    middles = [np.concatenate([top, block(512)]) for top in tops for _ in range(16)]
    return [np.concatenate([block.random.choice(middles), block(1024)]) for _ in range(10_000)]


def zero_hit(block: Blocks) -> Prompts:
    """20k prompts of 64 that share nothing."""
    return [block(64) for _ in range(20_000)]


def long_prompts(block: Blocks) -> Prompts:
    """400 prompts of 32k about 8 documents: 95 % are there."""
    documents = [block(31_744) for _ in range(8)]
    return [np.concatenate([block.random.choice(documents), block(1024)]) for _ in range(400)]


TRACES: dict[str, tuple[Callable[[Blocks], Prompts], int]] = {  # requests, capacity in tokens
    "groups": (groups, 4_000_000),
    "multi_turn": (multi_turn, 600_000),
    "three_levels": (three_levels, 4_000_000),
    "zero_hit": (zero_hit, 1_000_000),
    "long_prompts": (long_prompts, 4_000_000),
}


def clocked(requests: Callable[[], object], count: int) -> float:
    """Return us of a request, without the garbage collector, and without freeing the tree that is returned."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        tree = requests()
        took_s = time.perf_counter() - start
        del tree
        return took_s / count * 1e6
    finally:
        gc.enable()


def tensors(prompts: Prompts) -> tuple[list[tuple[torch.Tensor, int]], dict[int, torch.Tensor]]:
    """Return prompts as tensors with their lengths, and slots for each length."""
    keys = [(torch.from_numpy(prompt), len(prompt)) for prompt in prompts]
    return keys, {count: torch.arange(count, dtype=torch.int32) for _, count in keys}


def ours(prompts: Prompts, capacity: int, page_size: int, into: bool = False) -> Play:
    """Ours from Python: a fresh tensor of slots for each match, or `into` one tensor."""
    keys, slots = tensors(prompts)
    out = {length: torch.empty(length, dtype=torch.int32) if into else None for length in slots}

    def requests() -> RadixCache:
        cache, held = RadixCache(page_size), 0
        for key, count in keys:
            length, _, handle = cache.match(key, out=out[count])
            cache.lock(handle)
            short = held + count - length - capacity
            if short > 0:
                held -= len(cache.evict(short))
            existing, _ = cache.insert(key, slots[count])
            held += count - count % page_size - existing
            cache.unlock(handle)
        return cache

    return partial(clocked, requests, len(keys))


def python_tree(kind: type[ZipTree], prompts: Prompts, capacity: int, page_size: int) -> Play:
    """One of python_trees.py."""
    keys = [kind.keys(prompt.tolist()) for prompt in prompts]
    slots = {len(key): torch.arange(len(key)) for key in keys}

    def requests() -> ZipTree:
        tree = kind(page_size)
        for key in keys:
            length, _, node = tree.match(key)
            tree.lock(node)
            short = tree.evictable + tree.locked + len(key) - length - capacity
            if short > 0:
                torch.cat(tree.evict(short))
            tree.insert(key, slots[len(key)])
            tree.unlock(node)
        return tree

    return partial(clocked, requests, len(keys))


def mini_sglang(folder: Path) -> Callable[[Prompts, int, int], Play]:
    """Return the play of upstream's tree, loaded from its own files and without what they import beside it."""
    sys.path.insert(0, str(folder))
    for name in ("minisgl.utils", "minisgl.kernel", "minisgl.kvcache"):
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    sys.modules["minisgl.utils"].__dict__["align_down"] = import_module("minisgl.utils.misc").align_down
    sys.modules["minisgl.kernel"].__dict__["fast_compare_key"] = import_module("minisgl.kernel.radix").fast_compare_key
    core, module = import_module("minisgl.core"), import_module("minisgl.kvcache.radix_cache")

    def prepare(prompts: Prompts, capacity: int, page_size: int) -> Play:
        keys, slots = tensors(prompts)

        def requests() -> Any:
            core.__dict__["_GLOBAL_CTX"] = SimpleNamespace(page_size=page_size)
            tree = module.RadixPrefixCache(torch.device("cpu"))
            for key, count in keys:
                handle = tree.match_prefix(key).cuda_handle
                if handle.cached_len:  # of nothing it raises
                    handle.get_matched_indices()
                tree.lock_handle(handle)
                short = tree.size_info.total_size + count - handle.cached_len - capacity
                if short > 0:
                    tree.evict(short)
                tree.insert_prefix(key, slots[count])
                tree.lock_handle(handle, unlock=True)
            return tree

        return partial(clocked, requests, len(keys))

    return prepare


def answer(program: Path, *words: str) -> Any:
    """Return the JSON that a program prints."""
    return json.loads(subprocess.run([str(program), *words], capture_output=True, text=True, check=True).stdout)


def native(program: Path, prompts: Prompts, capacity: int, page_size: int) -> Play:
    """Return the play of the same requests in C++."""
    file = tempfile.NamedTemporaryFile(suffix=".trace")  # lives as long as play
    file.write(array("i", [page_size, capacity]).tobytes())
    for prompt in prompts:
        file.write(array("i", [len(prompt)]).tobytes() + prompt.tobytes())
    file.flush()
    return lambda: float(answer(program, "trace", file.name, "1")["us"][0])


def measure(trace: str, page_size: int, trees: dict[str, Any], runs: dict[str, int]) -> dict[str, Any]:
    """Return requests per second of each tree on one trace; passes of all take turns."""
    make, capacity = TRACES[trace]
    prompts = make(Blocks(0))
    plays = {name: prepare(prompts, capacity, page_size) for name, prepare in trees.items()}
    times: dict[str, list[float]] = {name: [] for name in plays}
    most = max(runs.values())
    for turn in range(most):
        for name, play in plays.items():
            if turn * runs[name] // most != (turn + 1) * runs[name] // most:  # spread over all turns
                times[name].append(play())
    rates = {name: per_second(found) for name, found in times.items()}
    medians = {name: rate["median"] for name, rate in rates.items()}
    best = max((name for name in medians if not name.startswith("commlib")), key=medians.__getitem__)
    ratio = {name: round(medians[name] / medians[best], 1) for name in medians if name.startswith("commlib")}
    load = round(os.getloadavg()[0], 2)  # 1 where nothing else runs
    row = {"trace": trace, "page_size": page_size, "requests": len(prompts), "capacity": capacity, "load": load}
    return {**row, "per_second": rates, "best_peer": best, "times_best_peer": ratio}


def per_second(us: list[float]) -> dict[str, float]:
    """Return what is kept of the passes over a trace."""
    return {"median": round(1e6 / statistics.median(us), 1), "best": round(1e6 / min(us), 1), "runs": len(us)}


def main() -> int:
    """Measure, print a line for each trace and write them."""
    parser = command_line(__doc__)
    parser.add_argument("--minisgl", type=Path)
    parser.add_argument("--native", type=Path)
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--pages", default="1,16")
    parser.add_argument("--runs", type=int, default=9, help="of ours")
    parser.add_argument("--peer-runs", type=int, default=1, help="of the others, which take seconds each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trees: dict[str, Any] = {"commlib": ours, "commlib out=": partial(ours, into=True)}
    if options.native:
        trees["commlib native"] = partial(native, options.native)
    trees |= {"zip loop": partial(python_tree, ZipTree), "gallop": partial(python_tree, GallopTree)}
    if options.minisgl:
        trees["mini-sglang"] = mini_sglang(options.minisgl)
    runs = {name: options.runs if name.startswith("commlib") else options.peer_runs for name in trees}
    rows = []
    for page_size in map(int, options.pages.split(",")):
        for trace in options.traces.split(","):
            rows.append(measure(trace, page_size, trees, runs))
            rates = ", ".join(f"{name} {rate['median'] / 1e3:.1f}k" for name, rate in rows[-1]["per_second"].items())
            print(f"{trace}, page {page_size}: {rates}; {rows[-1]['times_best_peer']} of the best peer's", flush=True)
    calls = answer(options.native, "calls") if options.native else None
    print(calls or "")
    write(options.output, {**head("radix_trees", 1, "cpu"), "rows": rows, "native_calls": calls})
    return 0


if __name__ == "__main__":
    sys.exit(main())
