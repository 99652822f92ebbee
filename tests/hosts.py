"""Ranks that count as on several hosts: messages over loopback between all of them."""

from typing import Any

from commlib.bootstrap.world import World
from commlib.communicator import Communicator
from commlib.tools.testing.ranks import create_communicator


def create(world: World, hosts: str, **options: Any) -> Communicator:
    """Make a rank's communicator; letter r of `hosts` is the name of rank r's host."""
    placed = zip(world.infos, hosts, strict=True)
    world.infos = [info._replace(boot=info.boot + name, host=name, hostname=name) for info, name in placed]
    made: Communicator = create_communicator(world, **options)
    return made
