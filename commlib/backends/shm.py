"""The shm backend: ranks of one host on anonymous shared memory."""

from __future__ import annotations

import os
import secrets

import torch

from commlib import env
from commlib.backends.base import NativeBackend, Options
from commlib.bootstrap.world import World
from commlib.errors import CommError
from commlib.native import library
from commlib.users import current_user


class ShmBackend(NativeBackend["library.ShmGroup"]):
    """Memory that rank 0 makes and the others open through its descriptor; no name, so nothing to clean up."""

    name = "shm"
    device = torch.device("cpu")

    def __init__(self, world: World, options: Options) -> None:
        self.rank, self.size = world.rank, world.size
        self._group = self._join(world, options)

    def _join(self, world: World, options: Options) -> library.ShmGroup:
        """Two rounds: where the memory is, then whether everyone got in; all ranks fail together."""
        group: library.ShmGroup | None = None
        # Bytes of an arena, a nonce, and where the memory is: its maker's pid and descriptor.
        memory = options.max_bytes, secrets.randbits(62), 0, -1
        failure = ""
        if world.rank == 0:
            try:
                group = library.open_shm(world.size, 0, *memory)
                memory = *memory[:2], os.getpid(), group.fd()
            except CommError as error:
                failure = str(error)
        memory, failure = world.exchange([memory, failure], options.timeout_s)[0]
        if not failure and world.rank != 0:
            try:
                current_user()  # by it, peers' memory is known to be of this user
                group = library.open_shm(world.size, world.rank, *memory)
            except CommError as error:
                failure = str(error)
        for failed in world.failures(failure, options.timeout_s):
            raise CommError(failed)
        assert group is not None
        self.recorded_as = memory[1]
        group.start(options.timeout_s, env.ISA.get(), options.checked)
        # Nobody may fail a peer's liveness check or leave before every rank watches every other.
        world.all_gather(b"", options.timeout_s)
        return group

    def close(self) -> None:
        """Tell the peers; the memory goes with the last tensor in it."""
        group, self._group = self._group, None
        if group is not None:
            group.close()
