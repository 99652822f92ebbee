"""Ranks that count as on several hosts: shared memory inside each, messages over loopback between them."""

import os
from typing import Any

from commlib import env
from commlib.bootstrap.world import World
from commlib.communicator import Communicator
from commlib.debug import answering, asking, card
from commlib.tools.testing.worker import create_communicator


def stand_apart(host: str) -> None:
    """Have this process count as one of another machine, to readers of records too."""
    for module in (card, answering, asking):
        module.here = lambda: ("boot", host)  # type: ignore[assignment]


def create_apart(world: World, hosts: str, **options: Any) -> Communicator:
    """Do as create, with ranks that readers of records on other hosts do not see."""
    stand_apart(hosts[world.rank])
    return create(world, hosts, **options)


def create(world: World, hosts: str, **options: Any) -> Communicator:
    """Make a rank's communicator; letter r of `hosts` is the name of rank r's host."""
    os.environ[env.HOST.name] = hosts[world.rank]
    made: Communicator = create_communicator(world, **options)
    return made
