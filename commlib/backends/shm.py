"""The shm backend: ranks of one host on anonymous shared memory."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from commlib import env, native
from commlib.backends.base import Backend, Options
from commlib.bootstrap.world import World
from commlib.errors import CommError
from commlib.plan import Plan, Rule
from commlib.redops import DTYPES, REDOPS

DEFAULT_CHUNK_BYTES = 128 << 10
_UNLIMITED = (1 << 62) - 1


class ShmBackend(Backend):
    """Memory that rank 0 makes and the others open through its descriptor; no name, so nothing to clean up."""

    name = "shm"
    native = True
    device = torch.device("cpu")

    def __init__(self, world: World, options: Options) -> None:
        self._world_size = world.size
        self._group = self._join(world, options)
        self._range: tuple[int, int] = (0, 0)

    def _join(self, world: World, options: Options) -> Any:
        """Two rounds: where the memory is, then whether everyone got in; all ranks fail together."""
        group, offer, failure = None, {}, ""
        if world.rank == 0:
            nonce = secrets.randbits(62)
            try:
                group = native.open_shm(world.size, 0, options.max_bytes, nonce, 0, -1)
                offer = {
                    "pid": os.getpid(),
                    "fd": group.fd(),
                    "nonce": nonce,
                    "arena_bytes": options.max_bytes,
                }
            except CommError as error:
                failure = f"rank 0: {error}"
        reply = world.broadcast(json.dumps([offer, failure]).encode(), 0, options.timeout_s)
        offer, failure = json.loads(reply)
        if not failure and world.rank != 0:
            try:
                group = native.open_shm(
                    world.size, world.rank, offer["arena_bytes"], offer["nonce"], offer["pid"], offer["fd"]
                )
            except CommError as error:
                failure = f"rank {world.rank}: {error}"
        failures = [f.decode() for f in world.all_gather(failure.encode(), options.timeout_s) if f]
        if failures:
            raise CommError(failures[0])
        assert group is not None
        group.start(options.timeout_s, env.ISA.get(), options.checked)
        # Nobody may fail a peer's liveness check or leave before every rank watches every other.
        world.all_gather(b"", options.timeout_s)
        return group

    def bind(self, name: str) -> Callable[..., Any]:
        """Return the native function; the interpreter's lock is its own business."""
        return native.keep_interpreter(self._group.bind(name))

    def set_plan(self, plan: Plan) -> None:
        """Compile the plan's rules for this world into the native table."""
        self._group.clear_plan()
        for rule in plan.rules_for(self._world_size, "eager"):
            self._add(rule)

    def _add(self, rule: Rule) -> None:
        ranges: list[int] = []
        for entry in rule.ranges:
            algorithm = native.algorithm_id(rule.op, entry.algorithm)
            if algorithm < 0:
                raise ValueError(f"{rule.where}: {rule.op} has no algorithm {entry.algorithm!r} on shm")
            unknown = set(entry.params) - {"chunk_bytes", "hot"}
            if unknown:
                raise ValueError(f"{rule.where}: unknown params {sorted(unknown)}; shm knows chunk_bytes and hot")
            limit = _UNLIMITED if entry.max_bytes is None else entry.max_bytes
            chunk_bytes = int(entry.params.get("chunk_bytes", DEFAULT_CHUNK_BYTES))
            ranges += [limit, algorithm, chunk_bytes, int(entry.params.get("hot", 0))]
        dtype = -1 if rule.dtype == "*" else DTYPES.index(rule.dtype)
        redop = -1 if rule.redop == "*" else REDOPS.index(rule.redop)
        self._group.add_rule(rule.op, rule.placement == "symmetric", dtype, redop, ranges)

    def choice(self, op: str, num_bytes: int, dtype: str, redop: str, placement: str) -> str:
        """Return the algorithm as the native table finds it: the plan's own words must agree with it."""
        codes = DTYPES.index(dtype), REDOPS.index(redop)
        return str(self._group.choice(op, placement == "symmetric", *codes, num_bytes))

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes of this rank's arena; the tensor keeps them alive, also past close()."""
        return torch.utils.dlpack.from_dlpack(self._group.empty(num_bytes))

    def check(self) -> None:
        """Raise PeerLost if a peer died."""
        self._group.check()

    def abort(self, why: str) -> None:
        """Write the reason where every rank looks while it waits."""
        self._group.abort(why)

    def close(self) -> None:
        """Tell the peers; the memory goes with the last tensor in it."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def abandon(self) -> None:
        """Leave the parent's part of the memory alone."""
        self._group.abandon()
