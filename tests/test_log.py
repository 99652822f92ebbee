"""COMMLIB_LOG shows what init() decided and which algorithm runs; variables that nothing reads are named."""

import logging
import os
import subprocess
from pathlib import Path

import pytest
import torch

import commlib
from commlib.collectives.signatures import kind_of
from tests.epilogues import INT8
from tests.errors_and_logs import logged
from tests.on_ranks import on_ranks

PROGRAM = """
import logging, sys, torch
{before}
import commlib
for _ in range(2):
    with commlib.init(backend="shm", bootstrap="single", max_bytes=1 << 20) as comm:
        comm.all_reduce(torch.ones(2))
"""


def run(quick_python: Path, before: str = "", **variables: str) -> list[str]:
    """Return the lines that a program which makes two communicators writes to stderr."""
    environment = {**os.environ, **variables}
    command = [str(quick_python), "-c", PROGRAM.format(before=before)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_unknown_variables_are_named_once_with_the_nearest_known_name(quick_python):
    lines = run(quick_python, COMMLIB_TIMOUT_S="3", COMMLIB_XYZZY="1")
    assert lines == [
        "the environment variable COMMLIB_TIMOUT_S is not known; did you mean COMMLIB_TIMEOUT_S?",
        "the environment variable COMMLIB_XYZZY is not known; docs/environment.md lists all",
    ]


def test_info_shows_what_init_decided(quick_python):
    lines = run(quick_python, COMMLIB_LOG="info")
    digest = commlib.Plan.load(Path(commlib.__file__).parent / "plans/shm.json").digest
    first = [
        "commlib: backend shm: asked for",
        "commlib: 1 rank by single on cpu, 1M of arena each, deadline 300 s",
        f"commlib: plan {digest} from plans/shm.json: not measured on this machine (`commlib tune` does)",
    ]
    assert lines == first * 2


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("logging.basicConfig(format='mine %(levelname)s %(message).7s', stream=sys.stderr)", "mine INFO backend"),
        ("logging.getLogger('commlib').setLevel(logging.ERROR)", None),
        ("logging.getLogger('commlib').addHandler(logging.NullHandler())", None),
    ],
    ids=["handlers", "a level", "a handler that drops"],
)
def test_a_programs_own_logging_decides(quick_python, before, expected):
    lines = run(quick_python, before, COMMLIB_LOG="info")
    assert lines[:1] == ([expected] if expected else [])
    assert not any(line.startswith("commlib:") for line in lines)


def test_a_level_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("COMMLIB_LOG", "loud")
    with pytest.raises(ValueError, match="COMMLIB_LOG='loud': expected one of warning, info, debug"):
        commlib.init(bootstrap="single")


@on_ranks(2)
def test_the_first_calls_are_told_by_size_type_reduction_and_placement(comm):
    with logged(logging.DEBUG) as told, comm.split(0, comm.rank) as part:
        told.clear()
        x, arena = torch.ones(1000), part.empty(1000)
        for _ in range(2):
            part.all_reduce(x, "max")
            part.all_reduce(arena, "max")
            part.all_reduce(arena)
            part.all_reduce(x[:500].double(), "max")
            part.all_reduce(x[:4])
            INT8(part, x[:512].view(4, 128))
            part.gather(x, 0)
            part.send(x, 1 - part.rank)
            part.recv(x, 1 - part.rank)
    kinds = [line.partition(f"rank {comm.rank}: first ")[2].rpartition(", eager: ")[::2] for line in told]
    assert [kind.partition(", plain")[0] for kind, _ in kinds] == [
        "all_reduce of 4000 B of float32 by max",
        "all_reduce of 4000 B of float32 by max, symmetric",
        "all_reduce of 4000 B of float32 by sum, symmetric",
        "all_reduce of 4000 B of float64 by max",
        "all_reduce of 16 B of float32 by sum",
        "all_reduce of 2K of float32 by sum",
        "gather of 8000 B of float32",
        "send_recv of 4000 B of float32",
    ]
    assert kinds[-1][1] == "shm_mailbox"


def test_off_no_call_makes_a_detour(comm):
    assert not comm.dispatcher.detour


def test_why_a_backend_was_taken_is_told():
    with logged(logging.INFO) as told, commlib.init(bootstrap="single", max_bytes=1 << 16) as comm:
        (reason,) = [text for text in told if text.startswith("backend ")]
    why = {"shm": "rank 0 has no GPU of its own", "nccl": "every rank has a GPU of its own"}
    assert reason == f"backend {comm.backend}: {why[comm.backend]}"


def test_gather_and_scatter_are_of_one_size_on_all_ranks():
    whole, block = torch.ones(8), torch.ones(2)
    for name, root, other in (
        ("scatter", (block, whole, 0), (block, None, 0)),
        ("gather", (whole, block, 0), (None, block, 0)),
    ):
        assert kind_of(name, root, 4) == kind_of(name, other, 4) == (32, "float32", "sum")
