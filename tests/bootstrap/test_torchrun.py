import re
import socket
import time
from importlib import import_module

import pytest

from commlib.bootstrap import connect
from commlib.errors import CommTimeout


def test_ranks_of_torchrun_exchange_bytes_and_torch_still_works_after(program, quick_python):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command = [str(quick_python), *torchrun, str(quick_python)]
    steps = program.command("exchange", "late", "torch_after")[1:]
    code, output = program.launch([*command, *steps])
    assert code == 0, output
    for rank in range(2):
        report = program.report(rank)
        assert (report["name"], report["rank"], report["size"]) == ("torchrun", rank, 2)
        assert report["local_rank"] == rank
        assert report["exchange"]
        assert report["torch_after"] == [0, 1]
    late = program.report(0)
    assert late["late"].startswith("CommTimeout") and "rank 1" in late["late"]
    assert 0.3 <= late["late_s"] < 0.9


@pytest.mark.parametrize("address", ["127.0.0.1", socket.gethostname()], ids=["loopback", "name"])
def test_variables_set_by_hand_make_a_world_that_names_a_dead_rank(program, by_hand, address):
    """The name of this host could be known to others, so its ranks meet at a store."""
    by_hand = [{**environ, "MASTER_ADDR": address} for environ in by_hand]
    codes, output = program.run(*by_hand, steps=["exchange", "torch_after", "late", "dead"])
    assert codes == [0, -9], output
    report = program.report(0)
    assert report["local_rank"] == 0
    assert "for rank 1" in report["late"]
    assert re.match(r"PeerLost: rank 0: rank 1 (ended|died)", report["dead"])
    assert report["dead_s"] < 2


def test_a_rank_that_has_left_is_named(program, by_hand):
    codes, output = program.run(*by_hand, steps=["exchange", "left"])
    assert codes == [0, 0], output
    assert "rank 1 closed" in program.report(0)["left"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_deadline_at_connect_names_the_missing_rank(rank, by_hand, monkeypatch):
    for name, value in by_hand[rank].items():
        monkeypatch.setenv(name, value)
    import_module("torch.distributed")  # takes seconds, which are no wait
    started = time.monotonic()
    with pytest.raises(CommTimeout, match=f"rank {rank} waited .*rank {1 - rank}"):
        connect(timeout_s=0.5)
    assert time.monotonic() - started < 5
