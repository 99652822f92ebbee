"""Kill random ranks in random collectives and report who noticed, how fast, and what was left behind.

python benchmarks/faults.py --kills 100 -o benchmarks/results/faults.json
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from written import command_line, head, write

from commlib.collectives import COLLECTIVES
from commlib.collectives.spec import Call
from commlib.communicator import Communicator
from commlib.errors import PeerLost
from commlib.tools.testing import Ranks


def repeat(comm: Communicator, name: str, count: int) -> tuple[float, str]:
    """Run one collective until it raises; return when that was, and the error."""
    spec = COLLECTIVES[name]
    call = Call(comm.rank, comm.size, count, torch.float32)
    elements_in, elements_out = spec.shapes(call)
    x, out = torch.ones(elements_in), torch.zeros(elements_out)
    try:
        while True:
            spec.invoke(comm, x, out, call)
    except PeerLost as error:
        return time.monotonic(), str(error)


def left_behind() -> dict[str, int]:
    """Count what a crash could leave: files in /dev/shm, descriptors, processes that carry our name."""
    return {
        "dev_shm": len(list(Path("/dev/shm").iterdir())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def one_kill(ranks: Ranks, rng: random.Random) -> dict[str, Any]:
    """Start a collective, kill one rank in the middle, and collect the others' errors."""
    name, count = rng.choice(list(COLLECTIVES)), rng.choice([1, 1000, 300_000])
    victim = rng.randrange(ranks.size)
    ranks.restart()
    handle = ranks.start(repeat, name, count)
    time.sleep(rng.uniform(0.0, 0.1))
    killed = time.monotonic()
    ranks.kill(victim)
    answers = [handle.result(rank) for rank in range(ranks.size) if rank != victim]
    seconds = max(at for at, _ in answers) - killed
    named = all(f"rank {victim} " in error and "died" in error for _, error in answers)
    return {"op": name, "count": count, "ranks": ranks.size, "victim": victim, "named": named, "seconds": seconds}


def main() -> int:
    """Run the kills and write what happened."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kills: list[dict[str, Any]] = []
    with Ranks(2) as first:
        first.run(Communicator.barrier)  # the fork server and its pipes exist from here on
    before = left_behind()
    for size in (2, 3, 4):
        with Ranks(size, backend="shm", timeout_s=20.0, max_bytes=1 << 20) as ranks:
            share = options.kills // 3 + (size == 2) * (options.kills % 3)
            kills += [one_kill(ranks, rng) for _ in range(share)]
    after = left_behind()
    seconds = [kill["seconds"] for kill in kills]
    found = {
        "kills": len(kills),
        "named": sum(bool(kill["named"]) for kill in kills),
        "median_s": statistics.median(seconds),
        "worst_s": max(seconds),
        "before": before,
        "after": after,
    }
    print(json.dumps(found, indent=1))
    write(options.output, {**head("faults", 4, "shm"), **found, "rows": kills})
    return 0 if found["named"] == len(kills) else 1


if __name__ == "__main__":
    sys.exit(main())
