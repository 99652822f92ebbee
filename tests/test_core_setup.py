"""What ranks settle: one plan for all, rank 0's, and COMMLIB_ALGORITHM on top of any."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from commlib.backends.base import Options
from commlib.communicator import Communicator, create
from commlib.core.setup import check_same_settings, split
from commlib.errors import PlanMismatch
from commlib.plan import Plan
from commlib.plan.search import shipped_plan, user_path
from commlib.tools.testing import RankError, Ranks
from commlib.tools.timing import fingerprint
from tests.errors_and_logs import message_of
from tests.on_ranks import on_ranks

SMALL = 1 << 20


def twoshot() -> Plan:
    return Plan.only({"all_reduce": "shm_twoshot"}, base=shipped_plan("shm"))


def read_plan(comm: Communicator) -> tuple[str, str, float]:
    return comm.plan.digest, comm.explain("all_reduce", 8).algorithm, float(comm.all_reduce(torch.ones(1)))


def make_at_home(world: Any, homes: list[str]) -> Communicator:
    """Give every rank a configuration folder of its own."""
    os.environ["XDG_CONFIG_HOME"] = homes[world.rank]
    return create(world, backend="shm", max_bytes=SMALL)


def source_of(comm: Communicator) -> tuple[str, str, str]:
    why = comm.explain("all_reduce", 8)
    return why.source, why.match, comm.plan.digest


def test_a_plan_that_only_rank_0_finds_is_everyones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = [str(tmp_path / str(rank)) for rank in range(2)]
    monkeypatch.setenv("XDG_CONFIG_HOME", homes[0])
    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**twoshot().document, "fingerprint": fingerprint("shm")}))
    with Ranks(2, create=make_at_home, homes=homes) as ranks:
        found = ranks.run(source_of)
    assert found[0] == found[1]
    assert found[0][:2] == (str(path), "match 6/6")


@pytest.mark.parametrize(
    ("pins", "told"), [("", "plan {path}: "), ("all_reduce:lsa_oneshot", "COMMLIB_ALGORITHM: all_reduce has no ")]
)
def test_a_faulty_plan_and_a_wrong_pin_are_the_same_error_on_all_ranks(tmp_path, monkeypatch, pins, told) -> None:
    monkeypatch.setenv("COMMLIB_ALGORITHM", pins)
    path = tmp_path / "plan.json"
    path.write_text(twoshot().file_text[: None if pins else 300])
    with pytest.raises(RankError) as caught, Ranks(2, backend="shm", plan=str(path)) as ranks:
        ranks.run(read_plan)
    errors = list(caught.value.errors.values())
    assert [type(error) for error in errors] == [ValueError] * 2
    (text,) = {str(error) for error in errors}
    assert text.startswith(told.format(path=path))


def make_different(world: Any, setting: str) -> Communicator:
    """Give every rank another plan, or another limit of multiprocessors."""
    plan, max_sms = shipped_plan("shm"), 0
    if setting == "plan":
        plan = Plan.only({"all_reduce": ("shm_oneshot", "shm_twoshot")[world.rank]}, base=plan)
    else:
        max_sms = world.rank
    return create(world, backend="shm", max_bytes=SMALL, plan=plan, max_sms=max_sms)


@pytest.mark.parametrize(
    ("setting", "pins", "told"),
    [
        ("plan", "", "pass the same plan= on every rank"),
        ("plan", "all_reduce:shm_oneshot", "pass the same plan= on every rank"),
        ("max_sms", "", "ranks disagree on max_sms (rank 0: 0, rank 1: 1); "),
    ],
)
def test_different_plans_and_settings_fail_on_all_ranks_with_one_message(monkeypatch, setting, pins, told) -> None:
    monkeypatch.setenv("COMMLIB_ALGORITHM", pins)
    with pytest.raises(RankError) as caught, Ranks(2, create=make_different, setting=setting) as ranks:
        ranks.run(read_plan)
    errors = list(caught.value.errors.values())
    assert [type(error) for error in errors] == [PlanMismatch] * 2
    (text,) = set(map(str, errors))
    assert told in text


COMPARED = (
    *("max_sms", "COMMLIB_ISA", "COMMLIB_GUARD"),
    *("commlib version", "backend", "max_bytes", "checked mode", "plugins"),
)


@pytest.mark.parametrize("setting", COMPARED)
def test_each_setting_is_compared(setting: str) -> None:
    world: Any = SimpleNamespace(exchange=lambda mine, timeout_s: [mine, {**mine, setting: "another"}])
    with pytest.raises(PlanMismatch, match=f"ranks disagree on {setting} .*, rank 1: another"):
        check_same_settings(world, Options(timeout_s=1.0, max_bytes=0, checked=False), "shm")


@on_ranks(2)
def test_a_split_may_have_another_limit_of_multiprocessors_the_same_on_all_ranks(comm: Communicator) -> None:
    with comm.split(0, max_sms=3) as few, few.split(0) as part:
        assert (few.options.max_sms, part.options.max_sms) == (3, 3)
    told = "ranks disagree on max_sms (rank 0: 1, rank 1: 2); start every rank with the same settings"
    assert message_of(lambda: comm.split(0, max_sms=1 + comm.rank), PlanMismatch) == told


def test_what_a_split_has_made_is_closed_where_the_parent_does_not_go_on() -> None:
    parent, made = mock.MagicMock(rank=0, size=1), mock.Mock()
    parent.all_gather_object.side_effect = [[(0, 0)], KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        split(parent, 0, 0, lambda world: made)
    made.close.assert_called_once_with()


def pinned(comm: Communicator) -> tuple[str, bool, str, str]:
    """What explain says, and the digests of the plan and of a split's."""
    why = comm.explain("all_reduce", 1 << 20)
    part = comm.split(0, comm.rank)
    assert part is not None
    with part:
        assert float(part.all_reduce(torch.ones(1))) == comm.size
        return why.algorithm, "pinned by COMMLIB_ALGORITHM" in str(why), comm.plan.digest, part.plan.digest


@pytest.mark.parametrize("plan", ["auto", twoshot()], ids=["auto", "an object"])
def test_the_environment_pins_on_top_of_every_plan(monkeypatch: pytest.MonkeyPatch, plan: Any) -> None:
    monkeypatch.setenv("COMMLIB_ALGORITHM", "all_reduce:shm_oneshot, barrier:shm_oneshot")
    with Ranks(2, backend="shm", plan=plan, max_bytes=SMALL) as ranks:
        found = ranks.run(pinned)
    assert found[0] == found[1]
    algorithm, told, digest, digest_of_split = found[0]
    assert (algorithm, told, digest_of_split) == ("shm_oneshot", True, digest)
    assert digest != twoshot().digest
