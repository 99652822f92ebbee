"""Two network namespaces of this machine stand for two hosts, and ranks in a user namespace that maps no user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import torch, commlib
with commlib.init(timeout_s=60) as comm:
    total = comm.all_reduce(torch.full((200_001,), comm.rank + 1.0))
    print(comm.backend, comm.explain("all_reduce", 4 * 200_001).algorithm, comm.local_rank, float(total[-1]))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces() -> Iterator[list[tuple[str, str]]]:
    """Names of two network namespaces, with an address each."""
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` (iproute2)")
    names = [f"commlib{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.99.7.{number + 1}/24", "dev", "veth0")
            for device in ("veth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        pytest.skip(f"network namespaces are refused here: {error.stderr.strip()}")
    yield [(name, f"10.99.7.{number + 1}") for number, name in enumerate(names)]
    for name in names:
        ip("netns", "del", name)


@pytest.mark.slow
def test_hosts_with_addresses_of_their_own_reach_each_other(namespaces):
    ranks = []
    for rank, (name, _) in enumerate([namespaces[0], namespaces[1], namespaces[1]]):
        where = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": namespaces[0][1], "MASTER_PORT": "29411"}
        command = ["ip", "netns", "exec", name, sys.executable, "-c", PROGRAM]
        environ = {**os.environ, **where, "COMMLIB_HOST": name}
        ranks.append(subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    said = [process.communicate(timeout=120) for process in ranks]
    expected = [["torch", "hier_twoshot", local, "6.0"] for local in ("0", "0", "1")]
    assert [out.split() for out, _ in said] == expected, said


UNMAPPED = """
import os, socket
from commlib.bootstrap.door import Door, Greeting, Place, knock
from commlib.debug.jobs import jobs_here
from commlib.errors import Unsupported

assert os.geteuid() == 65534
sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0anyones")
sock.listen()
for trusts in (lambda: Door(Place("0 ", "here"), 2), lambda: knock("anyones", Greeting(1, 2, 1), 0.1), jobs_here):
    try:
        trusts()
    except Unsupported as error:
        assert "; run as a user that is mapped" in str(error)
    else:
        raise AssertionError(trusts)
"""


def test_where_every_user_looks_alike_nobody_is_trusted():
    unshare = ["unshare", "--user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("user namespaces are refused here")
    subprocess.run([*unshare, sys.executable, "-c", UNMAPPED], check=True)
