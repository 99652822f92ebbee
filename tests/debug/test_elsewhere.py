"""commlib debug: a job on several hosts is looked at from one of them, which says who is elsewhere."""

import time
from typing import Any

import pytest
from click.testing import CliRunner

from commlib.bootstrap.world import World
from commlib.communicator import Communicator
from commlib.debug.jobs import look
from commlib.tools.cli.debug import debug
from commlib.tools.debug import host
from commlib.tools.testing import Ranks
from commlib.tools.testing.worker import create_communicator
from tests.debug.test_debug import come, stay_away

LONG_S = 30.0


def create_apart(world: World, hosts: str, **options: Any) -> Communicator:
    """Make a communicator of a rank that counts as one of the host that letter r of `hosts` names."""
    placed = zip(world.infos, hosts, strict=True)
    world.infos = [info._replace(boot=info.boot + name, hostname=name) for info, name in placed]
    made: Communicator = create_communicator(world, **options)
    return made


@pytest.mark.parametrize("rank", [1, 3])
def test_ranks_elsewhere_are_named(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(4, create=create_apart, hosts="aabb", backend="torch", timeout_s=LONG_S) as ranks:
        monkeypatch.setattr(host, "processes", lambda wanted=None: iter(ranks.pids[:2]))
        assert [one.elsewhere for one in look(ranks.pids[:2]).ranks.values()] == [False, False, True, True]
        handle = ranks.start(stay_away, LONG_S, rank)
        time.sleep(1.5)
        shown = CliRunner().invoke(debug, [str(ranks.pids[0])], standalone_mode=False)
        text = " ".join(shown.output.split())
        assert shown.return_value == 3
        assert "2 of 4 ranks here" in text
        assert "what ranks 2 and 3 do is not known here; run commlib debug on their hosts" in text
        assert ("rank 1 has not made all_reduce #2" in text) == (rank == 1)
        come(ranks, handle, rank)
