"""MPI among ranks that no mpiexec started: only ranks of this user get an answer."""

import socket

from commlib.tools.baselines import pmi
from tests.bootstrap.processes import NOBODY, Running, needs_root


def ask(address):
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(10)
        rank.connect(address)
        rank.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\n")
        return rank.recv(1000)


def occupy(address):
    held = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for sock in held:
        sock.connect(address)
    return [sock.recv(100) for sock in held]


@needs_root
def test_another_user_takes_no_rank_s_place():
    address = Running(pmi.server, 2).result()
    other = Running(occupy, address, user=NOBODY)
    assert other.result() in ([b""] * 4, "ConnectionResetError: [Errno 104] Connection reset by peer")
    assert [ask(address) for _ in range(2)] == [b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"] * 2
