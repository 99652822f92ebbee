"""What calls between 2 to 1024 hosts take on a link: by the rows of the tables, and in a simulation of the messages.

    python benchmarks/hosts.py LATENCY_US MB_PER_S [LANES]

`commlib bench send_recv` between two hosts fits both numbers. What happens inside a host is left out.
"""

from __future__ import annotations

import sys
from itertools import product

from commlib.collectives import COLLECTIVES

SIZES, HOSTS = (1 << 10, 1 << 20, 1 << 26), (2, 8, 32, 128, 1024)
EXCHANGES = {"all_reduce hier_twoshot": 2, "all_gather hier_oneshot": 1, "reduce_scatter hier_oneshot": 1}
TREE, DOUBLING = "broadcast hier_oneshot", "all_reduce hier_oneshot"


def messages(name: str, hosts: int, known: int, num_bytes: int, lanes: int) -> list[tuple[int, int, float]]:
    """Return who sends how much to whom in a round, each rank's messages in its order; `known`: hosts that know it."""
    if name == TREE:
        return [(host, host + known, num_bytes) for host in range(min(known, hosts - known))]
    if name == DOUBLING:
        return [(host, (host - known) % hosts, min(known, hosts - known) * num_bytes) for host in range(hosts)]
    share = num_bytes / hosts / lanes
    return [(h, (h + step) % hosts, share) for step in range(1, hosts) for h in range(hosts) for _ in range(lanes)]


def simulated(name: str, hosts: int, num_bytes: int, link: tuple[float, float, int]) -> float:
    """Return the end of the last message: ranks start theirs one by one, a link carries one each way at a time."""
    (latency, per_byte, lanes), ready = link, [0.0] * hosts
    for step in range(EXCHANGES.get(name, (hosts - 1).bit_length())):
        begun, sent, came = [0] * hosts, ready[:], ready[:]
        for source, to, size in messages(name, hosts, 1 << step, num_bytes, lanes):
            begun[source] += 1
            start = ready[source] + -(-begun[source] // (lanes if name in EXCHANGES else 1)) * latency
            sent[source] = came[to] = max(start, sent[source], came[to]) + size * per_byte
        ready = [max(pair) for pair in zip(sent, came, strict=True)]
    return max(ready)


latency_ms, ms_per_byte, lanes = float(sys.argv[1]) / 1e3, 1e-3 / float(sys.argv[2]), int((*sys.argv, "1")[3])
print("call | hosts | bytes | bytes sent by a host | ms by the row | ms simulated")
for name, size, hosts in product((DOUBLING, *EXCHANGES, TREE), SIZES, HOSTS):
    op, algorithm = name.split()
    row = COLLECTIVES[op].algorithm(algorithm).link(hosts, size)
    by_row = row.messages * latency_ms + row.num_bytes * ms_per_byte
    event = simulated(name, hosts, size, (latency_ms, ms_per_byte, lanes))
    print(f"{name} | {hosts} | {size} | {row.num_bytes} | {by_row:.2f} | {event:.2f}")
