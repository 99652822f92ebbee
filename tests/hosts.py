"""Ranks that count as on several hosts: shared memory inside each, messages over loopback between them."""

import os
from typing import Any

from commlib import env
from commlib.bootstrap.world import World
from commlib.communicator import Communicator
from commlib.tools.testing.worker import create_communicator


def create(world: World, hosts: str, **options: Any) -> Communicator:
    """Make a rank's communicator; letter r of `hosts` is the name of rank r's host."""
    os.environ[env.HOST.name] = hosts[world.rank]
    made: Communicator = create_communicator(world, **options)
    return made
