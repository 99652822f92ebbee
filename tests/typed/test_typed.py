"""What type checkers and help() see of the public names."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import commlib
from tests.on_ranks import on_ranks

PROGRAM = Path(__file__).parent / "program.py"
PUBLIC = {
    *("all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_gatherv", "all_reduce"),
    "all_reduce_rms_norm",
    *("all_to_all_single", "barrier", "broadcast", "broadcast_object", "gather", "recv", "reduce"),
    *("reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatterv", "scatter", "send", "send_recv"),
    *("abort", "check", "close", "empty", "explain", "on_error", "on_slow", "split", "symmetric", "use"),
    *("backend", "device", "local_rank", "plan", "rank", "size"),
}
METHODS = [name for name in sorted(PUBLIC) if callable(getattr(commlib.Communicator, name, None))]
WITH_EXAMPLE = [name for name in METHODS if ">>>" in (getattr(commlib.Communicator, name).__doc__ or "")]


def test_mypy_knows_what_calls_return_and_take():
    pytest.importorskip("mypy", reason="a tool of developers")
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=PROGRAM.parents[2])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_communicator_shows_what_is_for_users_and_nothing_else():
    with commlib.init(backend="shm", bootstrap="single", max_bytes=1 << 16) as comm:
        assert {name for name in dir(comm) if not name.startswith("_")} == PUBLIC


@pytest.mark.parametrize("name", WITH_EXAMPLE)
@on_ranks(2)
def test_the_example_in_help_is_true(comm, name):
    (example,) = doctest.DocTestParser().get_examples(getattr(type(comm), name).__doc__)
    source = example.source
    if comm.rank == 1 and "# rank 1: " in source:  # the other half of a message
        source = source.partition("# rank 1: ")[2]
    value = eval(source.partition("  # ")[0], {"comm": comm, "torch": torch})
    rank = re.search(r"# rank (\d) of two", example.source)
    if (rank is None or int(rank[1]) == comm.rank) and (example.want or comm.rank == 0):
        assert ("" if value is None else repr(value) + "\n") == example.want
