"""Make process groups, use each and destroy it, and count what this process holds."""

import gc
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

PROCESS = Path("/proc/self")


def held() -> Counter[str]:
    """Return how much memory, and how many descriptors, threads and mappings this process has."""
    gc.collect()
    status = dict(line.split(":", 1) for line in (PROCESS / "status").read_text().splitlines())
    counts = Counter({name: len(list((PROCESS / name).iterdir())) for name in ("fd", "task")})
    counts["maps"] = len((PROCESS / "maps").read_text().splitlines())
    counts["kib"] = int(status["VmRSS"].split()[0])
    return counts


def two_groups(device: torch.device, number: int) -> None:
    """Make a group of all ranks and one of a single rank, call a collective in both, and destroy them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for ranks in ([*range(size)], [number % size]):
        group = dist.new_group(ranks)
        if rank in ranks:
            x = torch.full((1000,), rank + number, device=device, dtype=torch.float64)
            dist.all_reduce(x, group=group)
            assert x.eq(sum(ranks) + number * len(ranks)).all(), f"group {number} of {ranks}: {x[0]}"
            dist.destroy_process_group(group)


def grown(device: torch.device, groups: int, warm_up: int) -> Counter[str]:
    """Return what this process holds more after so many groups than before them, but after the warm-up's."""
    for number in range(warm_up // 2):
        two_groups(device, number)
    before = held()
    for number in range(groups // 2):
        two_groups(device, number)
    after = held()
    after.subtract(before)
    return after
