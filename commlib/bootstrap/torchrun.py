"""The world torchrun made: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by it or by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping

from commlib.bootstrap.launcher import announced, identity, port
from commlib.bootstrap.tcp import rendezvous
from commlib.bootstrap.world import World

START = "torchrun --nproc-per-node N"


def detect(environ: Mapping[str, str]) -> int | None:
    return announced(environ, "torchrun", "RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT"))


def connect(timeout_s: float) -> World:
    """Join the other ranks; past one host, through the store that torch.distributed uses, too."""
    environ = os.environ
    address = (environ["MASTER_ADDR"], port(environ, "MASTER_PORT"))
    who = identity(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    together = environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]
    return rendezvous("torchrun", address, who, timeout_s, together=together)
