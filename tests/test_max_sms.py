"""max_sms= of a call: every collective takes it, and CPUs, which have no multiprocessors, do as without."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from commlib.collectives import COLLECTIVES
from commlib.communicator import Communicator
from commlib.messages import Messages
from commlib.methods import Collectives
from commlib.testing import Ranks
from commlib.testing.conformance import Scope, check_algorithm
from tests.limited import Limited


def wrong_values(comm: Communicator, max_sms: int) -> list[str]:
    """Make calls of each collective with a limit; return what is wrong with their values."""
    limited: Any = Limited(comm, max_sms)
    rows = [(name, next(iter(spec.rows(comm.backend)))) for name, spec in COLLECTIVES.items()]
    return [text for row in rows if (text := check_algorithm(limited, *row, Scope((33, 5000))).wrong)]


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
def test_on_cpus_a_limit_changes_nothing(request: pytest.FixtureRequest, backend: str) -> None:
    ranks: Ranks = request.getfixturevalue(backend)
    for max_sms in (1, 16):
        assert ranks.run(wrong_values, max_sms, world=2) == [[], []]


def test_every_collective_takes_it_and_messages_of_a_pair_do_not() -> None:
    for kind, calls in ((Collectives, True), (Messages, False)):
        public = {
            name: call
            for name, call in vars(kind).items()
            if inspect.isfunction(call) and name[0] != "_" and name != "barrier"
        }
        assert {"max_sms" in inspect.signature(call).parameters for call in public.values()} == {calls}


def later_and_less(comm: Communicator) -> list[float]:
    x, y = torch.full((8,), comm.rank + 1.0), torch.full((8,), comm.rank + 1.0)
    work = comm.all_reduce(x, async_op=True, max_sms=4)
    assert work.result() is x
    norm = comm.all_reduce_rms_norm(y.clone(), None, torch.ones(8), max_sms=4)[1]
    return [float(x[0]), float(norm[0]), float(comm.all_reduce(y, max_sms=0)[0])]


def test_a_limit_goes_with_async_op_and_with_a_norm(shm_ranks: Ranks) -> None:
    assert shm_ranks.run(later_and_less, world=2) == [[3.0, 3.0, 3.0]] * 2


def refused(comm: Communicator) -> list[str]:
    said = []
    for wrong in (-1, 1.5):
        with pytest.raises((ValueError, TypeError)) as raised:
            comm.all_reduce(torch.ones(2), max_sms=wrong)  # type: ignore[call-overload]
        said.append(f"{raised.type.__name__}: {raised.value}")
    return said


@pytest.mark.parametrize("backend", ["shm_ranks", "torch_ranks"])
def test_what_is_no_number_of_multiprocessors_is_refused_by_name(request: pytest.FixtureRequest, backend: str) -> None:
    ranks: Ranks = request.getfixturevalue(backend)
    (negative, broken), _ = ranks.run(refused, world=2)
    assert negative.startswith("ValueError: max_sms=-1: expected a number of multiprocessors, or 0 for no limit")
    assert broken.startswith("TypeError: max_sms=1.5: ")


def explained(comm: Communicator) -> str:
    assert comm.explain("all_reduce", 8, max_sms=4) == comm.explain("all_reduce", 8)
    with pytest.raises(ValueError, match="max_sms=-2: expected a number of multiprocessors"):
        comm.explain("all_reduce", 8, max_sms=-2)
    return str(comm.explain("all_reduce", 8, max_sms=4))


def test_an_explanation_on_cpus_knows_no_multiprocessors(shm_ranks: Ranks) -> None:
    assert "multiprocessors" not in "".join(shm_ranks.run(explained, world=2))
